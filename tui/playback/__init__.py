"""Runs opened for watching, the clock, and the events to jump to. Nothing here draws."""
