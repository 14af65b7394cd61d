"""Screens of running servers: one over a growing recording, and one over /metrics."""
