"""How things look: words for figures, states and their colours, bars of eighths, themes."""
