"""Characters and colours of the eight states of a slot, for terminals with and without colours and Unicode.

Without colours, each state has its own glyph; without Unicode, its own ASCII character.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from kvsim.display.palette import DARK_GROUND, HUES_ON_DARK, HUES_ON_LIGHT, channels_of, mixed
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATES_ON_DARK, STATES_ON_LIGHT

_GLYPHS: Final = {
    SlotState.TOKEN: "█#",
    SlotState.RESERVED: "▒r",
    SlotState.INTERNAL: "×x",
    SlotState.PADDING: "▓P",
    SlotState.EXPIRED: "--",
    SlotState.CACHED: "○c",
    SlotState.EXTERNAL: "~~",
    SlotState.FREE: "·.",
}
"""Unicode glyph, then ASCII character, of each state."""

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
"""Order of the states in bars and charts: use first, then waste, then free memory."""

VOID_COLOR: Final = DARK_GROUND
"""Background of dark pictures, and colour of dark text on light colours."""
LIGHT_INK: Final = "#ffffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours of pictures on a dark or a light background."""

    states: dict[SlotState, str] = field(hash=False)
    hues: tuple[str, ...]
    """Hues of owners. Successive hues differ in hue and in lightness, for colour-blind readers."""
    kinds: tuple[str, ...]
    """Colours of the kinds of layers, none of which is the hue of a request.

    In this order: full attention, two kinds with sliding windows, two kinds with recurrent states, other kinds.
    Drawings in lessons use the first two for two caches or two routers, the first also for times, speeds and weights.
    """
    shared: str
    """Colour of shared units. If colour means the number of holders, it is the colour of the units with the most."""
    shared_by_two: str
    """Colour of units with two holders, if colour means the number of holders."""
    aged: str
    """Colour of the units that have been held longest; new units have the colour of tokens."""
    changes: tuple[str, str, str, str]
    """Colours of units that have just been taken, freed, hit or evicted."""
    free_glyph_color: str
    """Colour of free memory that is drawn as a glyph."""
    void: str
    """Colour of the background."""
    ink: str
    """Colour of text."""
    cursor: str
    followed: str
    """Colour of the followed request, if the pool has more requests than hues."""
    next_free: str

    def on(self, background: str, ink: str) -> Palette:
        """Return the palette for another background, as dark or as light as before.

        Free memory gets the mixture of `background` and `ink` that has just enough contrast with the background.
        """
        free = next(
            color
            for share in range(10, 101)
            if contrast(color := mixed(background, ink, share / 100), background) >= LEAST_CONTRAST
        )
        return replace(self, void=background, ink=ink, states=self.states | {SlotState.FREE: free})


LEAST_CONTRAST: Final = 1.65
"""Smallest contrast between free memory and the background, as a contrast ratio of WCAG 2."""

DARK: Final = Palette(
    states=STATES_ON_DARK,
    hues=HUES_ON_DARK,
    kinds=("#e4ebf5", "#18a8cc", "#8f9fc0", "#d9a441", "#a8743a", "#6d8a5a"),
    shared="#fff6dc",
    shared_by_two="#a37a35",
    aged="#5340b8",
    changes=("#ffe600", "#ff4fd8", "#5dffb0", "#c04bff"),
    free_glyph_color="#77828f",
    void=VOID_COLOR,
    ink="#d7dde5",
    cursor="#ffffff",
    followed="#cf0a2c",
    next_free="#a8d820",
)
LIGHT: Final = Palette(
    states=STATES_ON_LIGHT,
    hues=HUES_ON_LIGHT,
    kinds=("#141a2c", "#0c84cc", "#7c8bab", "#b07d1e", "#7d5420", "#55704a"),
    shared="#6e4500",
    shared_by_two="#c99b4a",
    aged="#c9acf7",
    changes=("#ffb300", "#e6009e", "#00a86b", "#8a00d4"),
    free_glyph_color="#8a95a1",
    void="#f9fafb",
    ink="#1c2430",
    cursor="#000000",
    followed="#b00034",
    next_free="#86c81e",
)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it, 1 to 21."""
    low, high = sorted(_luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    linear = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in (value / 255 for value in channels_of(color))
    )
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def ink_on(color: str) -> str:
    """Return the colour of text, dark or light, that has more contrast with the background `color`."""
    return max(VOID_COLOR, LIGHT_INK, key=lambda ink: contrast(ink, color))


@dataclass(slots=True, kw_only=True)
class Symbols:
    """Characters that a terminal can show, and the palette of the theme. Only the palette changes during a session."""

    color: bool
    """True if states are shown by colours, False if by glyphs."""
    states: str
    """One character per state, in the order of `SlotState`."""
    up: str
    """Nine characters, from empty to full, that grow from the bottom."""
    right: str
    """Nine characters, from empty to full, that grow from the left. Empty if bars have whole characters only."""
    dot: str
    dash: str
    arrow: str
    track: str
    """Character of the time line."""
    held: str
    """Character of the time line where the followed request holds memory."""
    knob: str
    """Character of the current time on the time line."""
    times: str
    cut: str
    """Mark of a shortened text."""
    palette: Palette = DARK

    @property
    def ascii(self) -> bool:
        """True if only ASCII may be drawn."""
        return self.cut.isascii()


_UP, _RIGHT = " ▁▂▃▄▅▆▇█", " ▏▎▍▌▋▊▉█"
COLOR: Final = Symbols(
    color=True,
    states="".join(_GLYPHS[state][0] for state in SlotState),
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
    states="".join(_GLYPHS[state][1] for state in SlotState),
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
