"""Pictures and tables that are taken away: SVG, PNG, CSV, and stills that need no terminal."""
