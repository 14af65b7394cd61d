"""Colour themes of the interface, and the palette of pictures that belongs to a theme."""

from __future__ import annotations

from typing import Final

from textual.color import Color, ColorParseError
from textual.theme import Theme

from .states import DARK, LIGHT, VOID_COLOR, Palette

THEMES: Final = (
    Theme(
        name="kvsim-dark",
        primary="#8ad0f7",
        secondary="#5f8fb4",
        accent="#f9ec5c",
        warning="#e2601a",
        error="#e2601a",
        success="#17966c",
        foreground="#d7dde5",
        background=VOID_COLOR,
        surface="#181c22",
        panel="#1f252d",
        dark=True,
    ),
    Theme(
        name="kvsim-light",
        primary="#083f75",
        secondary="#3a6ea5",
        accent="#b3430b",
        warning="#c2410c",
        error="#c2410c",
        success="#0b7a53",
        foreground="#1c2430",
        background=LIGHT.void,
        surface="#eef1f5",
        panel="#e4e9ef",
        dark=False,
    ),
    Theme(
        name="kvsim-contrast",
        primary="#ffffff",
        secondary="#cfd8e3",
        accent="#f9ec5c",
        warning="#ff8a4c",
        error="#ff8a4c",
        success="#3fd6a2",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#101010",
        dark=True,
    ),
)


def palette_of(theme: Theme) -> Palette:
    """Return the palette of pictures in `theme`.

    The palette fits the theme's background, unless the terminal defines that colour.
    """
    palette = DARK if theme.dark else LIGHT
    colors = theme.to_color_system().generate()
    try:
        background, ink = (Color.parse(colors[name]) for name in ("background", "foreground"))
    except ColorParseError:  # the theme uses a colour that the terminal defines
        return palette
    if background.ansi is not None or ink.ansi is not None:
        return palette
    return palette.on(background.hex6.lower(), ink.hex6.lower())
