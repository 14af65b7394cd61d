"""Screens that watch a running server: one shows a growing recording, the other Prometheus metrics."""
