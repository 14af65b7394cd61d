"""Allocators: the ground floor. They know no clock, no request's future and no file."""
