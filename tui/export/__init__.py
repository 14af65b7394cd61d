"""Files: SVG, PNG, CSV, and still pictures that need no terminal."""
