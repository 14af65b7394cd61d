"""Follow a running server: its published events, and its Prometheus metrics.

A server is not trusted: its input is bounded in size and checked; a defect ends the feed with a sentence.
"""
