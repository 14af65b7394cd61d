"""Appearance: number formats, states and their colours, bars of eighths, themes."""
