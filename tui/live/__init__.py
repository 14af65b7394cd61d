"""Servers that are followed while they run: a screen over a growing recording, and one over /metrics."""
