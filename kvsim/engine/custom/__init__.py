"""Custom policies in Python at work in an engine, and optimal eviction."""
