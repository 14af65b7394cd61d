"""Colours of figures on a light and on a dark background: those of the interface, and one for each line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from kvsim.display.palette import DARK_GROUND, HUES_ON_DARK, HUES_ON_LIGHT, luma
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATES_ON_DARK, STATES_ON_LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Theme: TypeAlias = Literal["light", "dark"]

_DARK_INK: Final = "#1f2328"
_LIGHT: Final = 150
"""Least luminance, 0 to 255, of a colour on which text is dark: between orange and light blue."""
_DASHES: Final = ("-", "--", "-.", ":")
MOST_LINES: Final = len(_DASHES)
"""Largest number of lines that readers can tell apart in a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Colors:
    """Colours of everything that a figure draws, as `#rrggbb` or names that matplotlib knows."""

    ground: str
    ink: str
    """Colour of text."""
    muted: str
    """Colour of text and lines of less importance, and of axes."""
    grid: str
    pale: str
    """Colour of areas in the background."""
    states: dict[SlotState, str]
    """Colours of the states of a slot: those of the interface on this background."""
    owners: tuple[str, ...]
    """Colours of requests, as in the interface. A recording's request in row i has colour i modulo their number."""
    hues: tuple[str, str, str, str]
    """Colours of the first to the fourth recording in a comparison: blue, red, green and violet."""

    @property
    def lines(self) -> tuple[dict[str, Any], ...]:
        """Line properties of the first to the fourth recording in a comparison, for `axes.plot`."""
        return tuple({"color": color, "linestyle": dashes} for color, dashes in zip(self.hues, _DASHES, strict=True))

    def on(self, color: str) -> str:
        """Return the colour of text on an area of `color`: dark or white."""
        return _DARK_INK if luma(color) > _LIGHT else "white"


THEMES: Final[dict[Theme, Colors]] = {
    "light": Colors(
        ground="white",
        ink=_DARK_INK,
        muted="#5b636d",
        grid="#dde1e5",
        pale="#a9b4be",
        states=STATES_ON_LIGHT,
        owners=tuple(HUES_ON_LIGHT),
        hues=("#1d4f91", "#c9452d", "#2e9c76", "#3a1c46"),
    ),
    "dark": Colors(
        ground=DARK_GROUND,
        ink="#d7dde5",
        muted="#97a0ab",
        grid="#2b323b",
        pale="#6c7681",
        states=STATES_ON_DARK,
        owners=tuple(HUES_ON_DARK),
        hues=("#6fb1f0", "#f4836a", "#54c79d", "#e3c6f5"),
    ),
}


def figure_colors(axes: Axes) -> Colors:
    """Return the colours of the figure that `axes` belong to."""
    picture: Any = axes.get_figure()  # a `Picture`, whose module imports this one
    colors: Colors = picture.colors
    return colors
