"""Colours of things other than requests and states: kinds of layers, and what a drawing compares.

None of these colours is a hue of a request, so that a colour has one meaning on a screen.
"""

from __future__ import annotations

from typing import Final

KINDS_ON_DARK: Final = ("#e4ebf5", "#18a8cc", "#8f9fc0", "#d9a441", "#a8743a", "#6d8a5a")
KINDS_ON_LIGHT: Final = ("#141a2c", "#0c84cc", "#7c8bab", "#b07d1e", "#7d5420", "#55704a")
"""Colours of the kinds of layers on a light background, as `KINDS_ON_DARK` on a dark one.

In this order: full attention, two kinds with sliding windows, two kinds with recurrent states, other kinds. Drawings in
lessons use the first two for two caches or two routers, and the first for times, speeds and bytes of weights.
"""
