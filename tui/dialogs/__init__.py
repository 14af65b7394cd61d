"""What lies on top of a screen for a moment: find, help, lessons, the palette."""
