"""How the eight states of a slot are called and drawn.

Where colour means state, the colours keep the hues of Okabe and Ito's colour-blind safe set, moved apart
in luminance until they stay distinct in greyscale; where there is no colour, each state has its own glyph, and where
there is no Unicode, its own letter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvsim.display.palette import HUES_ON_DARK, HUES_ON_LIGHT, channels_of, mixed
from kvsim.memory.waste import SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLook:
    """One state, as people read and see it."""

    meaning: str
    """The words of the legend, in at most 20 characters."""
    color: str
    glyph: str
    letter: str


LOOKS: Final[dict[SlotState, StateLook]] = {
    SlotState.TOKEN: StateLook(meaning="written and needed", color="#8ad0f7", glyph="█", letter="#"),
    SlotState.RESERVED: StateLook(meaning="will be written", color="#1f5fa8", glyph="▒", letter="r"),
    SlotState.INTERNAL: StateLook(meaning="held for nothing", color="#e2601a", glyph="×", letter="x"),
    SlotState.PADDING: StateLook(meaning="only fills the batch", color="#f9ec5c", glyph="▓", letter="P"),
    SlotState.EXPIRED: StateLook(meaning="left the window", color="#9d81d6", glyph="-", letter="-"),
    SlotState.CACHED: StateLook(meaning="free, keeps a prefix", color="#17966c", glyph="○", letter="c"),
    SlotState.EXTERNAL: StateLook(meaning="free, but in pieces", color="#d58fb8", glyph="~", letter="~"),
    SlotState.FREE: StateLook(meaning="free and usable", color="#3a424d", glyph="·", letter="."),
}

STACK: Final = (
    SlotState.TOKEN,
    SlotState.PADDING,
    SlotState.INTERNAL,
    SlotState.EXPIRED,
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
    hues: tuple[str, ...]
    """Hues that tell owners apart. Neighbours differ in hue and in lightness, whatever eyes look at them."""
    shared: str
    """Colour of units that several requests hold at once, and of those that the most hold."""
    shared_by_two: str
    """Colour of units that two requests hold, where the number is told."""
    aged: str
    """Colour of units that have been held longest; new ones have that of tokens. Free memory is grey beside it."""
    changes: tuple[str, str, str, str]
    """Colours of units that have just been taken, freed, hit, evicted."""
    free_glyph: str
    """Free memory as a glyph: a dot in its area's colour would not be seen."""
    void: str
    cursor: str

    def on(self, background: str, ink: str) -> Palette:
        """The palette on another background of the same kind: free memory stands out from it, in its own tone."""
        free = next(
            color
            for share in range(10, 101)
            if contrast(color := mixed(background, ink, share / 100), background) >= LEAST_CONTRAST
        )
        return replace(self, void=background, states=self.states | {SlotState.FREE: free})


LEAST_CONTRAST: Final = 1.65
"""The least contrast between free memory and the background."""

DARK: Final = Palette(
    states={state: look.color for state, look in LOOKS.items()},
    hues=HUES_ON_DARK,
    shared="#fff6dc",
    shared_by_two="#a37a35",
    aged="#5340b8",
    changes=("#ffe600", "#ff4fd8", "#5dffb0", "#c04bff"),
    free_glyph="#77828f",
    void=VOID_COLOR,
    cursor="#ffffff",
)
LIGHT: Final = Palette(
    states={
        SlotState.TOKEN: "#083f75",
        SlotState.RESERVED: "#84b4ea",
        SlotState.INTERNAL: "#d9480f",
        SlotState.PADDING: "#fae24c",
        SlotState.EXPIRED: "#2a1240",
        SlotState.CACHED: "#0b7a53",
        SlotState.EXTERNAL: "#b970a0",
        SlotState.FREE: "#bdc3cb",
    },
    hues=HUES_ON_LIGHT,
    shared="#452b00",
    shared_by_two="#c99b4a",
    aged="#c9acf7",
    changes=("#ffb300", "#e6009e", "#00a86b", "#8a00d4"),
    free_glyph="#8a95a1",
    void="#f9fafb",
    cursor="#000000",
)
"""The hues of states, ordered the other way round in luminance: what is in use stands out from the paper."""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG 2 defines it: 1 to 21."""
    low, high = sorted(_luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    linear = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (value / 255 for value in channels_of(color))
    )
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def luma(color: str) -> float:
    """How light `color` looks without its hue, 0 to 255 (ITU-R BT.601)."""
    red, green, blue = channels_of(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def ink_on(color: str) -> str:
    """Dark or light ink, whichever is read more easily on `color`."""
    return VOID_COLOR if luma(color) > _LIGHT else LIGHT_INK


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
