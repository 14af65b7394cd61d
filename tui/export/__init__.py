"""Files with what a screen shows (SVG, PNG, CSV), and still pictures of a pool without a screen."""
