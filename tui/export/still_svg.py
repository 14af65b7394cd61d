"""Stills as SVG: the pools of several runs, by state, owner or layers, and schedules."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.segment import Segment

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES

from ..facts.schedule import Doing, schedule
from ..look.states import COLOR, STACK, VOID_COLOR
from ..look.words import percent, plural
from ..pool.host_map import LEGEND, title_of
from ..pool.layer_kinds import layer_kinds, places_of_units
from ..pool.paint import KIND_TINT, OWNER, REUSABLE, SHARED, TINT, ColorBy, hue_of, paint_colors
from .still import host_still, still
from .svg import CELL, rectangle, shapes_of_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.style import Style

    from ..playback.session import Session

_TITLE_HEIGHT, _LEGEND_HEIGHT, _MARGIN = 26, 24, 12
_LETTER = 7.6
"""Width of a letter of the legend in pixels, rounded up."""
_MOST_NAMED = 10
"""Largest number of requests that the legend names; for more, it shows some colours."""
_BAR = 16
_HOST_LINES = 2
_TEXT_COLOR: Final = "#d7dde5"


def svg_of_stills(
    stills: list[tuple[str, Session]], color_by: ColorBy, width: int = 84, height: int = 10, *, scheduled: bool = False
) -> str:
    """Return the pools of several runs as one SVG, each with title and legend; with `scheduled`, their schedules
    follow.
    """
    pixels, colors = width * CELL[0] + 2 * _MARGIN, paint_colors(COLOR.palette)
    parts: list[str] = []
    top: float = _MARGIN
    for title, session in stills:
        parts.append(_text(_MARGIN, top + 15, title))
        top += _TITLE_HEIGHT
        top = _shapes(parts, still(session, COLOR, width, height, color_by), top)
        top = _legend(parts, _entries(session, color_by), top, pixels)
        if session.host is not None:
            parts.append(_text(_MARGIN, top + 15, title_of(session.host, session.replay.frame)))
            top = _shapes(parts, host_still(session, COLOR, width, _HOST_LINES), top + _TITLE_HEIGHT)
            top = _legend(
                parts, [([colors[paint] for paint in paints], words) for paints, words in LEGEND], top, pixels
            )
    if scheduled:
        end_s = max(session.player.duration_s for _, session in stills)
        for title, session in stills:
            top = _schedule(parts, title.partition(",")[0], session, end_s, top, pixels)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {pixels} {top}" width="{pixels}" height="{top}">\n'
        "<style>.m text{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:16px}.b{font-weight:bold}"
        "rect{shape-rendering:crispEdges}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{VOID_COLOR}"/>\n<g class="m">\n{body}\n</g>\n</svg>\n'
    )


def _shapes(parts: list[str], picture: list[list[tuple[str, Style]]], top: float) -> float:
    """Write the lines of a picture; return their lower edge."""
    lines = [[Segment(*cell) for cell in line] for line in picture]
    parts.append(f'<g transform="translate({_MARGIN} {top})">{shapes_of_lines(lines, VOID_COLOR)}</g>')
    return top + len(lines) * CELL[1] + 8


def _entries(session: Session, color_by: ColorBy) -> list[tuple[list[str], str]]:
    """Return colours and words of the legend. Shares are of the rows of a training batch, or else of the pool."""
    colors = list(paint_colors(COLOR.palette))
    whole = session.capacity if session.rows is None else session.rows.num_rows * session.rows.row_tokens
    slots = session.breakdown
    if color_by is ColorBy.STATE:
        return _state_entries(session, STACK, whole, colors)
    if color_by is ColorBy.LAYERS:
        return _layer_entries(session, whole)
    live = [row for row in session.replay.live_requests().tolist() if session.recording.requests.prompt_tokens[row]]
    if len(live) <= _MOST_NAMED:
        entries = [([colors[OWNER + hue_of(row)]], session.request_name(row)) for row in live]
    else:
        entries = [([colors[OWNER + hue_of(row)] for row in live[:4]], f"{len(live)} requests")]
    if slots[SlotState.RESERVED]:
        entries.append(([colors[TINT], colors[TINT + 1]], STATE_NAMES[SlotState.RESERVED]))
    if (session.replay.refs > 1).any():
        entries.append(([colors[SHARED]], "shared"))
    states = [SlotState.PADDING, SlotState.INTERNAL, SlotState.EXPIRED, SlotState.CACHED, SlotState.FREE]
    if session.rows is not None:
        states.remove(SlotState.FREE)
    colors[SlotState.CACHED] = colors[REUSABLE]
    return entries + _state_entries(session, states, whole, colors)


def _layer_entries(session: Session, whole: int) -> list[tuple[list[str], str]]:
    """Return the legend by kind of layers, and the states of the other slots."""
    colors, slots, replay = paint_colors(COLOR.palette), session.breakdown, session.replay
    entries = []
    places = places_of_units(replay, np.flatnonzero(replay.refs > 0))
    kinds = layer_kinds(replay)
    for kind in kinds:
        held = int((places == kind.place).sum())
        entries.append(([colors[kind.paint]], f"{kind.words}: {plural(held, session.unit_name)}"))
    if slots[SlotState.RESERVED]:
        entries.append(([colors[KIND_TINT + kind.place] for kind in kinds], STATE_NAMES[SlotState.RESERVED]))
    states = (SlotState.INTERNAL, SlotState.EXPIRED, SlotState.CACHED, SlotState.FREE)
    return entries + _state_entries(session, states, whole, colors)


def _state_entries(
    session: Session, states: Iterable[SlotState], whole: int, colors: Sequence[str]
) -> list[tuple[list[str], str]]:
    """Return the colour of each of `states` that has slots, and its name with its share of `whole` slots."""
    slots = session.breakdown
    return [
        ([colors[state]], f"{STATE_NAMES[state]} {percent(int(slots[state]), whole)}")
        for state in states
        if slots[state]
    ]


def _legend(parts: list[str], entries: list[tuple[list[str], str]], top: float, pixels: float) -> float:
    """Write the legend; return its lower edge."""
    x = float(_MARGIN)
    for colors, words in entries:
        wide = len(colors) * 16 + 8 + len(words) * _LETTER + 18
        if x + wide > pixels and x > _MARGIN:
            x, top = float(_MARGIN), top + _LEGEND_HEIGHT
        for number, color in enumerate(colors):
            parts.append(rectangle(x + number * 16, top, 14, 14, color))
        parts.append(_text(x + len(colors) * 16 + 4, top + 12, words))
        x += wide
    return top + _LEGEND_HEIGHT + _MARGIN


def _schedule(parts: list[str], title: str, session: Session, end_s: float, top: float, pixels: float) -> float:
    """Write the schedule of a run as bars over time; return its lower edge."""
    colors = paint_colors(COLOR.palette)
    parts.append(_text(_MARGIN, top + 15, f"{title}: who is served when"))
    top += _TITLE_HEIGHT
    width = int(pixels - 2 * _MARGIN - 30)
    for request, line in enumerate(schedule(session, width, end_s).tolist()):
        parts.append(_text(_MARGIN, top + 12, session.request_name(request)))
        paints = {Doing.WAITING: SlotState.FREE, Doing.IDLE: SlotState.PADDING, Doing.RUNNING: OWNER + hue_of(request)}
        begin = _MARGIN + 30
        for doing, run in groupby(line):
            length = len(list(run))
            if doing != Doing.NOTHING:
                y, height = (top + 7, 2) if doing == Doing.WAITING else (top + 2, 12)
                parts.append(rectangle(begin, y, length, height, colors[paints[doing]]))
            begin += length
        top += _BAR
    clock = _MARGIN + 30 + min(session.player.clock_s / end_s, 1.0) * (width - 1)
    count = len(session.recording.requests)
    parts.append(rectangle(clock, top - count * _BAR, 1, count * _BAR, "#ffffff"))
    return top + _MARGIN


def _text(x: float, y: float, text: str, color: str = _TEXT_COLOR) -> str:
    # Generic families alone are letters in browsers, and nothing at all in some other viewers.
    style = "font:13px system-ui,'DejaVu Sans',Arial,sans-serif"
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" style="{style}">{escape(text, quote=False)}</text>'
