"""Large digits, three lines tall, for figures that must be readable from afar."""

from __future__ import annotations

from typing import Final

HEIGHT: Final = 3
_FONT: Final = {
    "0": ("█▀█", "█ █", "▀▀▀"),
    "1": ("▀█ ", " █ ", "▀▀▀"),
    "2": ("▀▀█", "█▀▀", "▀▀▀"),
    "3": ("▀▀█", " ▀█", "▀▀▀"),
    "4": ("█ █", "▀▀█", "  ▀"),
    "5": ("█▀▀", "▀▀█", "▀▀▀"),
    "6": ("█▀▀", "█▀█", "▀▀▀"),
    "7": ("▀▀█", " █ ", " ▀ "),
    "8": ("█▀█", "█▀█", "▀▀▀"),
    "9": ("█▀█", "▀▀█", "▀▀▀"),
    "%": ("▀ █", "▄▀ ", "▀ ▀"),
    " ": ("   ", "   ", "   "),
}


def tall(text: str) -> tuple[str, str, str]:
    """Return `text` as three lines of large characters; `text` may contain digits, spaces and percent signs."""
    first, second, third = (" ".join(_FONT[character][line] for character in text) for line in range(HEIGHT))
    return first, second, third
