"""Textual widgets: the pool, charts, strips and panels of which screens are composed."""
