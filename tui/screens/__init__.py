"""The screens that play: one run, or several in comparison; and the keys that all of them have."""
