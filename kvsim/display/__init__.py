"""Helpers for all output: escaping of untrusted text, and the colours of requests."""
