"""Appearance of the interface: number formats, characters and colours of states, bars, themes."""
