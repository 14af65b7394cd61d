"""Formats of numbers, times and shortened texts on the screen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.display.text import plural as plural  # noqa: PLC0414  one of these formats

if TYPE_CHECKING:
    from collections.abc import Sequence


def listed(names: Sequence[str], noun: str, between: str = ", ") -> str:
    """Return one or two names as a list, three or more as a number: `first, second` or `3 requests`.

    `between` separates two names. `noun` is the singular of what the number counts, such as `request`.
    """
    return between.join(names) if len(names) <= 2 else plural(len(names), noun)


def bytes_text(num_bytes: int) -> str:
    """Return a number of bytes in KiB, MiB or GiB, with three digits."""
    power, unit = (30, "GiB") if num_bytes >= 2**30 else (20, "MiB") if num_bytes >= 2**20 else (10, "KiB")
    return _three_digits(num_bytes / 2**power, unit)


def percent(part: float, whole: float) -> str:
    """Return a share in percent with one decimal; `0.0%` if `whole` is 0.

    A share above 0 that would be rounded to 0 is `<0.1%`.
    """
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.05:
        return "<0.1%"
    return f"{share:.1f}%"


def seconds(time_s: float, resolution_s: float = 1e-3) -> str:
    """Return a time in seconds, with as many decimals as `resolution_s` has (at most 6); a dash for NaN."""
    if math.isnan(time_s):
        return "-"
    decimals = min(max(0, -math.floor(math.log10(resolution_s))), 6) if resolution_s > 0 else 0
    return f"{time_s:,.{decimals}f} s"


def pace(speed: float) -> str:
    """Return a speed in words: `100 times slower`, `as fast as it ran`.

    `speed` is the number of recorded seconds per wall second.
    """
    if speed == 1:
        return "as fast as it ran"
    return f"{speed:,.4g} times faster" if speed > 1 else f"{1 / speed:,.4g} times slower"


def ending(text: str, width: int, cut: str) -> str:
    """Return the last `width` characters of `text`. If `text` is longer, they begin with `cut`."""
    return text if len(text) <= width else cut + text[len(text) - max(width - len(cut), 0) :]


def shortened(text: str, width: int, cut: str) -> str:
    """Return the first `width` characters of `text`. If `text` is longer, they end with `cut`."""
    return text if len(text) <= width else text[: max(width - len(cut), 0)] + cut


def whole_words(text: str, width: int, cut: str) -> str:
    """Return the leading words of `text` that fit into `width` characters, followed by `cut` if words are left out."""
    return text if len(text) <= width else text[: max(width - len(cut), 0)].rpartition(" ")[0] + f" {cut}"


def duration(time_s: float) -> str:
    """Return a time in milliseconds or seconds: `989 ms`, `1.67 s`, `231 s`."""
    return milliseconds(time_s) if not time_s >= 1 else seconds(time_s, time_s / 100)


def _three_digits(value: float, unit: str) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def milliseconds(time_s: float) -> str:
    """Return a time below one second in whole milliseconds, a longer one in seconds; a dash for NaN."""
    if math.isnan(time_s):
        return "-"
    return f"{time_s:,.2f} s" if time_s >= 1 else f"{time_s * 1e3:,.0f} ms"
