"""Screens that play one run, several runs in comparison, or a fleet, and the keys that they share."""
