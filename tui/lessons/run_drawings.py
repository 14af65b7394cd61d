"""Drawings of whole runs: remedies against preemptions, drafts, and who is served when."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from rich.segment import Segment
from rich.style import Style

from kvsim.display.palette import mixed
from kvsim.memory.waste import SlotState

from ..facts.schedule import Doing, schedule
from ..look.stack import columns
from ..look.wording import duration, milliseconds, plural, whole_words
from ..pool.paint import OWNER, hue_of, paint_colors, paint_glyphs
from ..pool.swatches import swatch
from .pen import Lines, Pen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..look.states import Symbols
    from ..playback.session import Session
    from .beside_figures import DraftResult

_NAME_WIDTH: Final = 3
_REMEDY: Final = 26
_DRAFTS: Final = 27
_BAR: Final = "▆"


class RemedyResult(NamedTuple):
    """Results of the lesson's requests on a server with one remedy against preemptions, or with none."""

    name: str
    duration_s: float
    """Seconds until the last answer."""
    recomputed_tokens: int
    """Tokens that were computed again after a preemption."""
    longest_wait_s: float
    """Longest time in seconds from an arrival to the request's first step."""
    memory: float
    """Size of the pool, as a multiple of the lesson's."""
    session: Session


def remedies(tried: Sequence[RemedyResult], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the time until the last answer with each remedy as a bar, with the remedy's cost below.

    If `height` has room, each bar is replaced by a line for each request that shows when it waits and runs.
    """
    num_requests = len(tried[0].session.recording.requests)
    if len(tried) * (num_requests + 2) <= height:
        return _schedules(tried, width, symbols)
    pen, most = Pen(symbols), max(remedy.duration_s for remedy in tried)
    room = max(width - _REMEDY - 10, 8)
    lines: Lines = []
    for remedy in tried:
        if lines and 3 * len(tried) <= height + 1:
            lines.append([])
        bar = pen.bar(remedy.duration_s / most, room, symbols.palette.kinds[0])
        lines.append([pen.text(remedy.name.ljust(_REMEDY)), bar, pen.text(f" {milliseconds(remedy.duration_s):>9}")])
        lines.append([pen.text("  " + f" {symbols.dot} ".join(_costs(remedy, symbols)), weak=True)])
    return lines


def _costs(remedy: RemedyResult, symbols: Symbols) -> tuple[str, ...]:
    return (
        f"{plural(remedy.recomputed_tokens, 'token')} computed twice",
        f"longest wait to start {milliseconds(remedy.longest_wait_s)}",
        f"memory {symbols.times}{remedy.memory:g}",
    )


def _schedules(tried: Sequence[RemedyResult], width: int, symbols: Symbols) -> Lines:
    pen, end_s, room = Pen(symbols), max(remedy.duration_s for remedy in tried), max(width - _NAME_WIDTH, 1)
    lines: Lines = []
    for remedy in tried:
        if lines:
            lines.append([])
        name = f"{remedy.name}: last answer {milliseconds(remedy.duration_s)} {symbols.dot} "
        costs = f" {symbols.dot} ".join(_costs(remedy, symbols))
        lines.append([pen.text(name), pen.text(whole_words(costs, width - len(name), symbols.cut), weak=True)])
        lines += _request_lines(remedy.session, end_s, room, pen)
    return [*lines, _time_axis(end_s, None, room, pen)]


def drafts(tried: Sequence[DraftResult], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the steps before the first preemption, with drafts and without, and the times until the last answer.

    If `height` has room, columns below each bar show the blocks that requests hold, on the same axis of steps.
    """
    pen, room = Pen(symbols), max(width - _DRAFTS, 8)
    most, num_lines = max(result.session.player.last_frame for result in tried), height // len(tried) - 2
    lines: Lines = []
    for result in tried:
        mark = Segment("#" if symbols.ascii else "■", Style(color=symbols.palette.changes[1]))
        words = f"{result.name}: runs out after {result.steps:,} steps "
        lines.append([pen.text(words), mark, pen.text(f", last answer {milliseconds(result.duration_s)}")])
        bar = pen.bar(result.steps / most, room, symbols.palette.kinds[0])
        lines.append([pen.text("  steps until it runs out".ljust(_DRAFTS), weak=True), bar])
        if num_lines > 0:
            lines += _held_over_steps(result, most, room, num_lines, pen)
    if len(lines) < height and num_lines > 0:
        end = f"step {most:,}"
        lines.append([pen.text(" " * _DRAFTS + "0".ljust(max(room - len(end), 1)) + end, weak=True)])
    return lines


def _held_over_steps(result: DraftResult, most: int, room: int, num_lines: int, pen: Pen) -> Lines:
    """Draw the held share of the pool as columns over an axis of `most` steps, with a mark where the pool runs out."""
    session, palette = result.session, pen.symbols.palette
    steps = np.arange(room) * most // room
    held = session.capacity - session.slots[:, [SlotState.FREE, SlotState.CACHED]].sum(axis=1)
    values = np.where(steps <= session.player.last_frame, held[np.minimum(steps, session.player.last_frame)], 0)
    out = round(result.steps / most * room)
    token, alarm = palette.states[SlotState.TOKEN], palette.changes[1]
    lines: Lines = []
    for row, eighths in enumerate(columns(values, session.capacity, num_lines).tolist()):
        text = "".join(pen.symbols.up[each] for each in eighths)
        mark = Segment(pen.symbols.up[-1], Style(color=alarm))
        words = f"  held, of {session.replay.num_units} blocks" if not row else ""
        before, after = (Segment(part, Style(color=token)) for part in (text[:out], text[out + 1 :]))
        lines.append([pen.text(words.ljust(_DRAFTS), weak=True), before, mark, after])
    return lines


def timetable(session: Session, end_s: float, clock_s: float, width: int, symbols: Symbols) -> Lines:
    """Draw a line for each request from 0 to `end_s` seconds: it waits, runs, or is padding.

    A vertical line marks the clock. The last line has the times of the axis.
    """
    pen, room = Pen(symbols), max(width - _NAME_WIDTH, 1)
    lines = _request_lines(session, end_s, room, pen, clock_s)
    return [*lines, _time_axis(end_s, clock_s, room, pen)]


def _time_axis(end_s: float, clock_s: float | None, room: int, pen: Pen) -> list[Segment]:
    """Return the times at both ends of the axis and, unless `clock_s` is None, the clock's, possibly over an end."""
    end = duration(end_s)
    line = "0".ljust(room - len(end)) + end
    if clock_s is None:
        return [pen.text(" " * _NAME_WIDTH + line, weak=True)]
    now = f"now {duration(clock_s)}"
    at = min(max(int(clock_s / end_s * room) - len(now) // 2, 0), room - len(now))
    before = line[:at] if at > 1 else " " * at
    after = line[at + len(now) :] if at + len(now) < room - len(end) else ""
    return [pen.text(" " * _NAME_WIDTH + before, weak=True), pen.text(now), pen.text(after, weak=True)]


def _request_lines(session: Session, end_s: float, room: int, pen: Pen, clock_s: float | None = None) -> Lines:
    """Draw a line for each request: it waits, runs, or is padding. A vertical line marks the clock, if given."""
    symbols = pen.symbols
    colors, glyphs = paint_colors(symbols.palette), paint_glyphs(symbols)
    cursor = Segment("│" if not symbols.ascii else symbols.dot, Style(color=symbols.palette.cursor))

    def under_clock(look: Segment) -> Segment:
        color = look.style.color if look.style and symbols.color and look.text == _BAR else None
        tinted = Style(color=mixed(color.get_truecolor().hex, symbols.palette.cursor, 0.6)) if color else None
        return Segment(_BAR, tinted) if tinted else cursor

    lines: Lines = []
    for request, line in enumerate(schedule(session, room, end_s).tolist()):
        looks = {Doing.NOTHING: pen.text(" "), Doing.WAITING: pen.text(symbols.track, weak=True)}
        if symbols.color:
            looks[Doing.RUNNING] = Segment(_BAR, Style(color=colors[OWNER + hue_of(request)]))
            looks[Doing.IDLE] = Segment(_BAR, Style(color=colors[SlotState.PADDING]))
        else:
            looks[Doing.RUNNING] = pen.text(glyphs[OWNER + hue_of(request)])
            looks[Doing.IDLE] = swatch(SlotState.PADDING, symbols)
        parts = [pen.text(session.request_name(request)[:_NAME_WIDTH].ljust(_NAME_WIDTH))]
        marked = [looks[Doing(doing)] for doing in line]
        if clock_s is not None:
            clock = min(int(clock_s / end_s * room), room - 1)
            marked[clock] = under_clock(marked[clock])
        for (text, style), run in groupby(marked, key=lambda segment: segment[:2]):
            parts.append(Segment(text * len(list(run)), style))
        lines.append(parts)
    return lines
