"""The player's keys. Each has an id, so that a person can bind another key to it."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

ASCII_KEYS: Final = {"left": "left/", "right": "right"}
"""How keys with arrows on them are called where those cannot be drawn."""
_STEP = Binding.Group("Step", compact=True)
_EVENT = Binding.Group("Event", compact=True)
_SPEED = Binding.Group("Speed", compact=True)
_ZOOM = Binding.Group("Zoom", compact=True)

BINDINGS: Final = (
    Binding("space", "play", "Play", priority=False, id="play"),
    Binding("left", "step(-1)", "Step back", group=_STEP, id="step.back"),
    Binding("right", "step(1)", "Step", group=_STEP, id="step"),
    Binding("shift+left", "step(-10)", "Ten steps back", show=False, id="step.back10"),
    Binding("shift+right", "step(10)", "Ten steps", show=False, id="step.10"),
    Binding("left_square_bracket", "event(-1)", "Previous event", key_display="[", group=_EVENT, id="event.previous"),
    Binding("right_square_bracket", "event(1)", "Next event", key_display="]", group=_EVENT, id="event.next"),
    Binding("plus,equals_sign", "speed(1)", "Faster", key_display="+", group=_SPEED, id="speed.up"),
    Binding("minus", "speed(-1)", "Slower", key_display="-", group=_SPEED, id="speed.down"),
    Binding("home", "go(0)", "Beginning", show=False, id="go.begin"),
    Binding("end", "go(1)", "End", show=False, id="go.end"),
    Binding("z", "zoom(1)", "More detail", group=_ZOOM, id="zoom.in"),
    Binding("Z", "zoom(-1)", "Less detail", group=_ZOOM, id="zoom.out"),
    Binding("slash", "find", "Find", key_display="/", id="find"),
    Binding("s", "save", "Save", id="save"),
    Binding("question_mark", "help", "Help", key_display="?", id="help"),
    Binding("q", "quit", "Quit", id="quit"),
)
