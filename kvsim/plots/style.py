"""Style of all figures: one style sheet in three sizes, and one palette for the eight states of a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import matplotlib as mpl

from kvsim.errors import UnknownNameError
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_MEANINGS, STATE_NAMES
from kvsim.plots.colors import THEMES, Theme

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Purpose: TypeAlias = Literal["paper", "paper-wide", "slide", "web"]
Size: TypeAlias = tuple[float, float]
"""Width and height in inches."""

STATE_HATCHES = {
    SlotState.INTERNAL: "////",
    SlotState.PADDING: "....",
    SlotState.EXPIRED: "\\\\\\\\",
    SlotState.EXTERNAL: "xxxx",
}
"""Hatches of wasted states, which make waste visible without colour."""
_EXPLAINED = (SlotState.RESERVED, SlotState.EXPIRED, SlotState.CACHED, SlotState.EXTERNAL)
STATE_LABELS = {
    state: f"{name}: {STATE_MEANINGS[state]}" if state in _EXPLAINED else name for state, name in STATE_NAMES.items()
}
"""Names of the states, with the meaning of a state if its name alone does not explain it."""

LEGEND_PERCENT = 0.2
"""Percent of the pool below which a state has no legend entry, because its area is too small to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Size of figures, letters and lines in one medium."""

    width_in: float
    stretch: float
    """Factor on a figure's height, compared with a web figure of equal width; above 1 where letters are larger."""
    font_pt: float
    line_pt: float
    dpi: int


MEDIA: dict[str, Medium] = {
    "paper": Medium(width_in=3.3, stretch=1.2, font_pt=7.0, line_pt=0.9, dpi=300),
    "paper-wide": Medium(width_in=6.9, stretch=0.75, font_pt=7.0, line_pt=0.9, dpi=300),
    "slide": Medium(width_in=11.0, stretch=0.85, font_pt=17.0, line_pt=2.2, dpi=150),
    "web": Medium(width_in=7.5, stretch=1.0, font_pt=11.0, line_pt=1.5, dpi=144),
}


def style(purpose: Purpose, theme: Theme = "light") -> AbstractContextManager[None]:
    """Return a context manager that applies the style sheet for `purpose` and `theme`.

    `paper` is one column of two, `paper-wide` both columns.
    """
    if theme not in THEMES:
        raise UnknownNameError("theme of a figure", theme, THEMES)
    colors = THEMES[theme]
    if purpose not in MEDIA:
        raise UnknownNameError("purpose of a figure", purpose, MEDIA)
    medium = MEDIA[purpose]
    font, line = medium.font_pt, medium.line_pt
    sheet: dict[str, Any] = {
        "font.family": "DejaVu Sans",  # part of matplotlib, so that files are equal on all machines
        **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), font),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 0.9 * font),
        "figure.dpi": medium.dpi,
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), colors.ground),
        "savefig.dpi": "figure",
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), colors.ink),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), colors.muted),
        **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6 * line),
        **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 0.35 * font),
        **dict.fromkeys(("grid.linewidth", "patch.linewidth", "hatch.linewidth"), 0.5 * line),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        **dict.fromkeys(("axes.axisbelow", "axes.grid", "path.simplify"), True),
        "grid.color": colors.grid,
        "lines.linewidth": line,
        "lines.markersize": 3 * line,
        "legend.handlelength": 1.6,
        "legend.columnspacing": 1.4,
        "legend.labelspacing": 0.35,
        "pdf.fonttype": 42,
        "svg.hashsalt": "kvsim",
        "text.parse_math": False,  # names from files may contain $
    }
    return mpl.rc_context(sheet)  # type: ignore[arg-type]  # the stubs want every key's literal name
