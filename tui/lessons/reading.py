"""A lesson to read instead of to play: plain text or Markdown, with a still picture of the pools for each caption."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from kvsim.machines import plain_words, untimed_in

from ..export.still import host_legend, host_still, in_characters, legend, still
from ..export.still_svg import COLUMNS, svg_of_stills
from ..facts.requests import comes_from_host
from ..look.states import COLOR
from ..look.wording import milliseconds, plural
from ..pool.host_blocks import title_of
from ..pool.paint import ColorBy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.style import Style

    from ..look.states import Symbols
    from ..playback.session import Session
    from .guided import Guided
    from .lesson import Caption

_WIDTH, _HEIGHT = 78, 8


def as_text(guided: Guided, symbols: Symbols) -> str:
    """Return the lesson as plain text, at most 78 characters wide, with pictures made of the glyphs of `symbols`."""
    lesson = guided.lesson
    parts = [lesson.heading, "=" * len(lesson.heading), "", lesson.summary, ""]
    # Without colours, glyphs mean states or kinds of layers. Owners are shown by names on the units.
    color_by = guided.color_by if guided.color_by is ColorBy.LAYERS else ColorBy.STATE
    for number, caption in enumerate(guided.captions, start=1):
        guided.show(caption.frame)
        title = f"{number}. {caption.title}"
        parts += [title, "-" * len(title), textwrap.fill(caption.text, _WIDTH), ""]
        for name, session in _titled_pools(guided, caption):
            lines = _characters(still(session, symbols, _WIDTH, _HEIGHT, color_by=color_by))
            words = legend(session, symbols, color_by) + _words_about_digits(session, lines)
            parts += [name, *lines, *textwrap.wrap(words, _WIDTH), ""]
            if session.host is not None:
                lines = _characters(host_still(session, symbols, _WIDTH, 1))
                parts += [title_of(session), *lines]
                parts += [in_characters(host_legend(session, hued=False), symbols), ""]
        for name, drawn in guided.drawing(caption, _WIDTH, symbols):
            parts += [name, *("".join(segment.text for segment in line).rstrip() for line in drawn), ""]
    return "\n".join([*parts, textwrap.fill(_machine(guided), _WIDTH), ""])


def _characters(lines: list[list[tuple[str, Style]]]) -> list[str]:
    return ["".join(character for character, _ in line).rstrip() for line in lines]


def _words_about_digits(session: Session, lines: list[str]) -> str:
    """Explain the digits in a picture, the number of written eighths of a unit; "" if it has none."""
    drawn = "".join(re.sub(r"^ *\d* ", "", line) for line in lines)  # without the numbers of the rows
    # A picture with a space shows names of requests, which may have digits, too.
    if session.replay.unit_tokens == 1 or " " in drawn or not any(map(str.isdigit, drawn)):
        return ""
    return f"   1-7 eighths of a {session.unit_name} written"


def as_markdown(guided: Guided) -> tuple[str, Mapping[str, str]]:
    """Return the lesson as Markdown, and its pictures: SVG documents by file name."""
    lesson, figures = guided.lesson, {}
    parts = [f"# {lesson.heading}", "", lesson.summary, ""]
    for number, caption in enumerate(guided.captions, start=1):
        guided.show(caption.frame)
        name = f"{lesson.file.stem}-{number}.svg"
        drawn = guided.drawing(caption, COLUMNS, COLOR)
        figures[name] = svg_of_stills(_titled_pools(guided, caption), guided.color_by, drawn)
        parts += [f"## {caption.title}", "", caption.text, "", f"![{_where(guided, caption)}]({name})", ""]
    return "\n".join([*parts, _machine(guided), ""]), figures


def _machine(guided: Guided) -> str:
    lesson, meta = guided.lesson, guided.sessions[0].recording.meta
    if guided.sessions[0].rows is not None:
        return f"About the figures: {lesson.model.name}."
    label = str(meta.engine.get("step_time", "unknown"))
    missing = f" Not in them: {words}." if (words := untimed_in(label)) else ""
    machine = f"{lesson.model.name} on one {lesson.gpu.name}"
    return f"About the figures: {machine}. Step times: {plain_words(label)}.{missing}"


def _titled_pools(guided: Guided, caption: Caption) -> list[tuple[str, Session]]:
    named: list[tuple[str, Session]] = []
    if caption.draws is not None and caption.draws.stands_alone:
        return named
    for run, session in zip(guided.lesson.runs, guided.sessions, strict=True):
        rows = session.rows
        if rows is not None:
            named.append((f"{run.label}: {rows}", session))
            continue
        running, waiting = session.num_requests("running"), session.num_requests("waiting")
        idle = session.num_complete_rows
        held = f"{running - idle} running, {plural(idle, 'row')} held" if idle else f"{running} running"
        loading = sum(comes_from_host(session, row) for row in session.replay.live_requests().tolist())
        why = f" ({loading} for blocks from the host)" if loading else ""
        done = "done " * session.player.at_end
        name = f"{run.label}, {done}after {milliseconds(session.player.clock_s)}: {held}, {waiting} waiting{why}"
        named.append((name + f", pool of {plural(session.replay.num_units, session.unit_name)}", session))
    return named


def _where(guided: Guided, caption: Caption) -> str:
    if guided.sessions[0].rows is not None:
        return f"The rows: {caption.title}"
    if caption.draws is not None and caption.draws.stands_alone:
        return f"{guided.drawing(caption, COLUMNS, COLOR)[0][0]}: {caption.title}"
    return f"The pool after {milliseconds(guided.player.clock_s)}: {caption.title}"
