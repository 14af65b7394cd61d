"""Numbers in words: how figures are written on the screen."""

from __future__ import annotations

import math


def plural(number: int, noun: str) -> str:
    """`1 block`, `1,204 blocks`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def gib(num_bytes: int) -> str:
    """A number of bytes in the largest of KiB, MiB and GiB that it fills, with three digits."""
    power, unit = (30, "GiB") if num_bytes >= 2**30 else (20, "MiB") if num_bytes >= 2**20 else (10, "KiB")
    value = num_bytes / 2**power
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def percent(part: float, whole: float) -> str:
    """A share with one decimal, in six characters at most; `<0.1%` for what would round to nothing."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.05:
        return "<0.1%"
    return f"{share:.1f}%"


def seconds(time_s: float, resolution_s: float = 1e-3) -> str:
    """A time with as many decimals as `resolution_s` needs; a dash where it is not known."""
    if math.isnan(time_s):
        return "-"
    decimals = min(max(0, -math.floor(math.log10(resolution_s))), 6) if resolution_s > 0 else 0
    return f"{time_s:,.{decimals}f} s"


def ending(text: str, width: int, cut: str) -> str:
    """`text` in at most `width` characters, beginning with `cut` where some is missing: ids differ in their ends."""
    return text if len(text) <= width else cut + text[len(text) - max(width - len(cut), 0) :]


def shortened(text: str, width: int, cut: str) -> str:
    """`text` in at most `width` characters, ending in `cut` where something is missing."""
    return text if len(text) <= width else text[: max(width - len(cut), 0)] + cut


def gigabytes(num_bytes: float) -> str:
    """A number of bytes in the largest of MB and GB (of a thousand each) that it fills, with three digits."""
    value, unit = (num_bytes / 1e9, "GB") if num_bytes >= 1e9 else (num_bytes / 1e6, "MB")
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"


def milliseconds(time_s: float) -> str:
    """A time in the larger of milliseconds and seconds that it fills; a dash where it is not known."""
    if math.isnan(time_s):
        return "-"
    return f"{time_s:,.2f} s" if time_s >= 1 else f"{time_s * 1e3:,.0f} ms"
