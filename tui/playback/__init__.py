"""Data and clock behind the playing screens: sessions, players, events and comparisons. Nothing here draws."""
