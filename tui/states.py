"""How the seven states of a slot are called and drawn.

Colour means state, and nothing else. The colours keep the hues of Okabe and Ito's colour-blind safe set, moved apart
in luminance until they stay distinct in greyscale; where there is no colour, each state has its own glyph, and where
there is no Unicode, its own letter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvsim.memory.waste import SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLook:
    """One state, as people read and see it."""

    name: str
    meaning: str
    """What the legend says, in at most 20 characters."""
    color: str
    glyph: str
    letter: str


LOOKS: Final[dict[SlotState, StateLook]] = {
    SlotState.TOKEN: StateLook(name="token", meaning="holds a live token", color="#8ad0f7", glyph="█", letter="#"),
    SlotState.RESERVED: StateLook(name="reserved", meaning="will be written", color="#1f5fa8", glyph="▒", letter="r"),
    SlotState.INTERNAL: StateLook(
        name="internal", meaning="never to be written", color="#e2601a", glyph="×", letter="x"
    ),
    SlotState.PADDING: StateLook(
        name="padding", meaning="only fills the batch", color="#f9ec5c", glyph="▓", letter="P"
    ),
    SlotState.CACHED: StateLook(name="cached", meaning="free, keeps a prefix", color="#17966c", glyph="○", letter="c"),
    SlotState.EXTERNAL: StateLook(
        name="external", meaning="free, but in pieces", color="#d58fb8", glyph="~", letter="~"
    ),
    SlotState.FREE: StateLook(name="free", meaning="free and usable", color="#262c35", glyph="·", letter="."),
}

STACK: Final = (
    SlotState.TOKEN,
    SlotState.PADDING,
    SlotState.INTERNAL,
    SlotState.RESERVED,
    SlotState.EXTERNAL,
    SlotState.CACHED,
    SlotState.FREE,
)
"""The order in which bars and charts pile the states up: use first, then waste, then what is left."""

VOID_COLOR: Final = "#12151a"
"""The background of dark pictures, and dark ink on light colours."""
LIGHT_INK: Final = "#ffffff"
_LIGHT: Final = 100
"""Luminance from which dark ink is read more easily than light ink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """The colours of pictures on a dark or on a light background."""

    states: dict[SlotState, str]
    free_glyph: str
    """Free memory as a glyph: a dot in its area's colour would not be seen."""
    void: str
    cursor: str

    def dimmed(self, color: str, amount: float = 0.72) -> str:
        """`color` moved towards the background, for everything that is not the request being followed."""
        channels = zip(_channels(color), _channels(self.void), strict=True)
        return "#" + "".join(f"{round(front + (back - front) * amount):02x}" for front, back in channels)


DARK: Final = Palette(
    states={state: look.color for state, look in LOOKS.items()},
    free_glyph="#77828f",
    void=VOID_COLOR,
    cursor="#ffffff",
)
LIGHT: Final = Palette(
    states={
        SlotState.TOKEN: "#083f75",
        SlotState.RESERVED: "#8fbdf0",
        SlotState.INTERNAL: "#d9480f",
        SlotState.PADDING: "#f7dc3a",
        SlotState.CACHED: "#0b7a53",
        SlotState.EXTERNAL: "#c77fae",
        SlotState.FREE: "#e2e8ee",
    },
    free_glyph="#8a95a1",
    void="#f9fafb",
    cursor="#000000",
)
"""The same hues, ordered the other way round in luminance: what is in use stands out from the paper."""


def luma(color: str) -> float:
    """How light `color` looks without its hue, 0 to 255 (ITU-R BT.601)."""
    red, green, blue = _channels(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def ink_on(color: str) -> str:
    """Dark or light ink, whichever is read more easily on `color`."""
    return VOID_COLOR if luma(color) > _LIGHT else LIGHT_INK


def _channels(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


@dataclass(slots=True, kw_only=True)
class Symbols:
    """The characters that a terminal can show, and the colours of the present theme: the one thing that may change."""

    color: bool
    """Whether states are told apart by colour; if not, by glyph."""
    states: str
    """One character per state, in the order of `SlotState`."""
    up: str
    """Nine characters, from empty to full, growing from the bottom."""
    right: str
    """Nine characters, from empty to full, growing from the left; empty where a bar is drawn with `states`."""
    dot: str
    dash: str
    arrow: str
    track: str
    held: str
    """The track while the followed request holds memory."""
    knob: str
    times: str
    cut: str
    """Ends a text that did not fit."""
    palette: Palette = DARK

    @property
    def ascii(self) -> bool:
        """Whether nothing but ASCII may be drawn."""
        return self.cut.isascii()


_UP, _RIGHT = " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█"
COLOR: Final = Symbols(
    color=True,
    states="".join(LOOKS[state].glyph for state in SlotState),
    up=_UP,
    right=_RIGHT,
    dot="·",
    dash="–",
    arrow="→",
    track="─",
    held="━",
    knob="●",
    times="×",
    cut="…",
)
GLYPHS: Final = replace(COLOR, color=False, right="")
ASCII: Final = Symbols(
    color=False,
    states="".join(LOOKS[state].letter for state in SlotState),
    up=" .:-=+*%#",
    right="",
    dot="|",
    dash="-",
    arrow=">",
    track="-",
    held="=",
    knob="O",
    times="x",
    cut="~",
)
