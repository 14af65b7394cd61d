"""Readers of a running server: its published events, and its Prometheus metrics.

The server is not trusted: everything it sends is bounded and checked, and invalid input ends the feed with a message.
"""
