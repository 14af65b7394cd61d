"""Colours of things other than requests and states: kinds of layers, and what a drawing compares.

None of these colours is a hue of a request, so that a colour has one meaning on a screen.
"""

from __future__ import annotations

from typing import Final

KINDS_ON_DARK: Final = ("#e4ebf5", "#18a8cc", "#8f9fc0", "#d9a441", "#a8743a", "#6d8a5a")
KINDS_ON_LIGHT: Final = ("#141a2c", "#0c84cc", "#7c8bab", "#b07d1e", "#7d5420", "#55704a")
"""Colours, on a light background, of full attention, two kinds of windows, two kinds of states, and other kinds of
layers. Lessons' drawings use the first two for two caches or two routers, and the first for times, speeds and bytes of
weights.
"""
