"""Colours of requests in the interface and in figures.

The hue of a request depends on its row in the recording alone, so that it is the same everywhere. Consecutive hues
differ in lightness, too, and are distinct with any colour blindness.
"""

from __future__ import annotations

from typing import Final

HUES_ON_DARK: Final = (
    "#fecb74", "#856ad6", "#15afbd", "#b0c439", "#febaf7", "#0f88cc", "#26b76e", "#fd93a8",
    "#ccd1fc", "#119390", "#a99f07", "#e194fa", "#a1defc", "#3b9736", "#e56ca0", "#98b5fe",
    "#1bf5d8", "#997d0b", "#b37fea", "#20ccf0", "#b1e972", "#be539a", "#509dfc", "#1bd6a3",
)  # fmt: skip
HUES_ON_LIGHT: Final = (
    "#976b03", "#49268e", "#016770", "#8c9d0d", "#a64ba0", "#02476e", "#036d3d", "#e06280",
    "#6565cf", "#004d4c", "#635d0c", "#b96fd1", "#077fa8", "#065205", "#9a265f", "#678bf3",
    "#098777", "#504105", "#703ba1", "#14a3c0", "#568502", "#750459", "#0859ac", "#18ab82",
)  # fmt: skip
NUM_HUES: Final = len(HUES_ON_DARK)


def mixed(front: str, back: str, back_share: float) -> str:
    """Mix the colour `front` with a share of the colour `back`, 0 to 1."""
    channels = zip(channels_of(front), channels_of(back), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * back_share):02x}" for a, b in channels)


def channels_of(color: str) -> tuple[int, int, int]:
    """Return red, green and blue of `#rrggbb`, 0 to 255."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue
