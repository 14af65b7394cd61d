"""Screens that play one run, or several in comparison, and the keys that they share."""
