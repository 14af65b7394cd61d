"""Colours of requests in the interface and in figures.

The hue of a request depends only on its row in the recording, so that it is the same everywhere. Consecutive hues
differ in lightness, too, and are distinct with any colour blindness. Hues also differ from the colours of the states
of memory that are drawn beside them (tokens, reserved, never written, padding, expired and cached): the distance in the
colour space OKLab is at least 0.1. No hue is a lighter or darker variant of the green of cached memory, because no
request holds that memory.
"""

from __future__ import annotations

from typing import Final

HUES_ON_DARK: Final = (
    "#ae478f", "#a3be37", "#f3b891", "#8e5c29", "#c84155", "#f9c8f9", "#869310", "#b4a3f5",
    "#e26597", "#6177d1", "#c4906e", "#645f7d", "#5aa3ed", "#b06d74", "#dca218", "#8551b8",
    "#c3e1a0", "#f5a3c4", "#aab996", "#608ca9", "#927e4f", "#556e0a", "#e887de", "#ff827d",
)  # fmt: skip
HUES_ON_LIGHT: Final = (
    "#b06d81", "#891a30", "#8e9a1d", "#7a51b8", "#481e40", "#00aab4", "#81530e", "#9281da",
    "#aa55b4", "#6d257e", "#3b6f91", "#188edc", "#9f4170", "#b88551", "#5d3b32", "#857847",
    "#375fbe", "#5c0a0a", "#6d8fb0", "#a53012", "#7d647d", "#1e2f48", "#a05a4b", "#77405c",
)  # fmt: skip
NUM_HUES: Final = len(HUES_ON_DARK)
DARK_GROUND: Final = "#12151a"
"""Background of dark pictures."""


def mixed(front: str, back: str, back_share: float) -> str:
    """Mix the colour `front` with the share `back_share`, 0 to 1, of the colour `back`."""
    channels = zip(channels_of(front), channels_of(back), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * back_share):02x}" for a, b in channels)


def channels_of(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of `#rrggbb`, 0 to 255."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def luma(color: str) -> float:
    """Return the luma of `color`, 0 to 255 (ITU-R BT.601)."""
    red, green, blue = channels_of(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue
