"""Policies in Python at work, and the bound of all evictions."""
