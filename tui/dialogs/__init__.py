"""Dialogs over a screen: find, help, lessons, the palette."""
