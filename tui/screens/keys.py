"""Key bindings of the playing screens. Each binding has an id, with which Textual lets users assign other keys."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

ASCII_KEYS: Final = {"left": "left/", "right": "right"}
"""Names of the arrow keys for terminals that cannot show arrows."""
_STEP = Binding.Group("Step", compact=True)
_EVENT = Binding.Group("Event", compact=True)
_SPEED = Binding.Group("Speed", compact=True)
_ZOOM = Binding.Group("Zoom", compact=True)
_NEXT = Binding.Group("Request", compact=True)

# The most important keys come first, because a narrow terminal shows only the first ones.
BINDINGS: Final = (
    Binding("space", "play", "Play", priority=False, id="play"),
    Binding("o", "color", "Colour", id="color"),
    Binding("v", "arrange", "Owners", id="arrange"),
    Binding("d", "diagnose", "Why", id="diagnose"),
    Binding("left", "step(-1)", "Step back", group=_STEP, id="step.back"),
    Binding("right", "step(1)", "Step", group=_STEP, id="step"),
    Binding("shift+left", "step(-10)", "Ten steps back", show=False, id="step.back10"),
    Binding("shift+right", "step(10)", "Ten steps", show=False, id="step.10"),
    Binding("left_square_bracket", "event(-1)", "Previous event", key_display="[", group=_EVENT, id="event.previous"),
    Binding("right_square_bracket", "event(1)", "Next event", key_display="]", group=_EVENT, id="event.next"),
    Binding("question_mark", "help", "Help", key_display="?", id="help"),
    Binding("q", "app.quit", "Quit", id="quit"),
    Binding("enter", "follow_next(1)", "Follow", show=False, id="follow"),
    Binding("n", "follow_next(1)", "Next request", group=_NEXT, id="follow.next"),
    Binding("N", "follow_next(-1)", "Previous request", group=_NEXT, id="follow.previous"),
    Binding("plus,equals_sign", "speed(1)", "Faster", key_display="+", group=_SPEED, id="speed.up"),
    Binding("minus", "speed(-1)", "Slower", key_display="-", group=_SPEED, id="speed.down"),
    Binding("home", "go(0)", "Beginning", show=False, id="go.begin"),
    Binding("end", "go(1)", "End", show=False, id="go.end"),
    Binding("z", "zoom(1)", "More detail", group=_ZOOM, id="zoom.in"),
    Binding("Z", "zoom(-1)", "Less detail", group=_ZOOM, id="zoom.out"),
    Binding("slash", "find", "Find", key_display="/", id="find"),
    Binding("c", "app.compare", "Compare", id="compare"),
    Binding("t", "tree", "Tree", show=False, id="tree"),
    Binding("l", "app.lessons", "Lessons", id="lessons"),
    Binding("s", "app.save('svg')", "Save", id="save"),
    Binding("S", "app.save('png')", "Save as PNG", show=False, id="save.png"),
    Binding("x", "app.save('csv')", "Save numbers", show=False, id="save.numbers"),
)

PANEL_BINDINGS: Final = (
    Binding("f", "filter", "Filter events", show=False, id="events.filter"),
    Binding("m", "maximise", "Maximise", show=False, id="maximise"),
    Binding("1", "toggle_panel('waste')", "Waste bar", show=False, id="panel.waste"),
    Binding("2", "toggle_panel('timeline')", "Timeline", show=False, id="panel.timeline"),
    Binding("3", "toggle_panel('inspector')", "Inspector", show=False, id="panel.inspector"),
    Binding("4", "toggle_panel('queue')", "Queue", show=False, id="panel.queue"),
    Binding("5", "toggle_panel('events')", "Events", show=False, id="panel.events"),
)
"""Additional keys of the screen that plays one run, which has panels."""
