"""Follow a server that runs: the events that it publishes, and its Prometheus metrics.

A server is not trusted: what it sends is bounded in size, checked before it is shown, and ends in a sentence.
"""
