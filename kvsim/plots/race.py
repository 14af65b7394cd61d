"""Animated SVG that shows the progress of several runs of the same requests side by side."""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.files.atomic import whole_file
from kvsim.memory.waste import SlotState
from kvsim.plots.colors import THEMES
from kvsim.plots.ladder_gains import KEY, is_ladder
from kvsim.plots.words import distinct_names, source_line

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_LIGHT, _DARK = THEMES["light"], THEMES["dark"]
_PAINTS = {
    "ground": ("#ffffff", _DARK.ground),
    "ink": (_LIGHT.ink, _DARK.ink),
    "muted": (_LIGHT.muted, _DARK.muted),
    "track": ("#e4e8ec", _DARK.grid),
    "token": (_LIGHT.states[SlotState.TOKEN], _DARK.states[SlotState.TOKEN]),
}
"""Colours on a light and on a dark background. The reader's system chooses between them."""
_WIDTH, _ROW, _MARGIN = 860, 46, 16
_LABEL, _RESULT = 210, 200
_TIMES = 2.5
"""Default simulated time that the film covers, as a multiple of the duration of the fastest run."""
_POINTS = 48


def write_race(
    recordings: Sequence[Recording], path: str | os.PathLike[str], *, length_s: float, until_s: float | None = None
) -> Path:
    """Write a looping film of `length_s` seconds with a bar for each run: its share of output tokens emitted so far.

    The film shows the runs until `until_s` of their time; None for 2.5 times the duration of the fastest run, or until
    all have ended if that is earlier.

    Raises:
        UsageError: the file cannot be written.
    """
    with whole_file(path, made_by="animate") as file:
        file.write_text(race(recordings, length_s=length_s, until_s=until_s), encoding="utf-8")
    return Path(path)


def race(recordings: Sequence[Recording], *, length_s: float, until_s: float | None = None) -> str:
    """Return the film of `write_race` as SVG, which is dark where the reader's system is.

    Runs of `kvsim compare --ladder` are put in the order of the ladder.
    """
    runs = list(recordings)
    if is_ladder(runs):
        runs.sort(key=lambda run: int(run.meta.extra[KEY]["rung"]))
        names, changes = ([str(run.meta.extra[KEY][field]) for run in runs] for field in ("name", "change"))
    else:
        names, changes = list(distinct_names(runs)), [""] * len(runs)
    end_s = until_s or min(_TIMES * min(run.duration_s for run in runs), max(run.duration_s for run in runs))
    times_s = np.linspace(0, end_s, _POINTS)
    room = _WIDTH - 2 * _MARGIN - _LABEL - _RESULT
    source = textwrap.wrap(source_line(runs), 120, break_on_hyphens=False)
    width = _WIDTH - 2 * _MARGIN
    height = 64 + len(runs) * _ROW + 18 * len(source) + 12
    served = f"The same {len(runs[0].requests):,} requests, {len(runs)} ways to serve"
    title = f"{served}: the first {end_s:,.0f} s, played in {length_s:g} s"
    parts = [
        _text(_MARGIN, 24, title, bold=True),
        _bar(_MARGIN, 38, width, 3, "track"),
        _bar(_MARGIN, 38, width, 3, "ink", _animate("width", np.linspace(0, width, 2), length_s)),
    ]
    for row, (run, name, change) in enumerate(zip(runs, names, changes, strict=True)):
        y, share = 64 + row * _ROW, answered(run, times_s)
        parts += [
            _text(_MARGIN, y + 17, name, bold=True),
            _bar(_MARGIN + _LABEL, y, room, 26, "track"),
            _bar(_MARGIN + _LABEL, y, share[-1] * room, 26, "token", _animate("width", share * room, length_s)),
            _text(_MARGIN + _LABEL + room + 10, y + 17, _result(run)),
            *([_text(_MARGIN + _LABEL, y + 38, change, paint="muted", size=11)] if change else []),
        ]
    below = 64 + len(runs) * _ROW + 12
    parts += [_text(_MARGIN, below + 18 * row, line, paint="muted", size=11) for row, line in enumerate(source)]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="system-ui, DejaVu Sans, sans-serif">\n'
        f'{_dark_style()}\n<rect width="100%" height="100%" rx="8" {_filled("ground")}/>\n{body}\n</svg>\n'
    )


def answered(run: Recording, times_s: FloatArray) -> FloatArray:
    """Return the share of the output tokens emitted by each of `times_s`, evenly spaced from first to last."""
    requests = run.requests
    done = ~np.isnan(requests.finished_s) & ~np.isnan(requests.first_token_s)
    begin_s, end_s = requests.first_token_s[done], requests.finished_s[done]
    tokens = requests.output_tokens[done]
    spans_s = np.maximum(end_s - begin_s, 1e-9)
    shares = np.clip((times_s[:, None] - begin_s) / spans_s, 0, 1) @ tokens
    total: FloatArray = shares / max(float(tokens.sum()), 1.0)
    return total


def _result(run: Recording) -> str:
    tokens_s = int(run.requests.output_tokens.sum()) / run.duration_s if run.duration_s else 0.0
    return f"{tokens_s:,.0f} tokens/s, {run.duration_s:,.0f} s"


def _animate(attribute: str, values: Any, length_s: float) -> str:
    """Return an SVG animation of `attribute` through evenly spaced `values`, in the first nine tenths of `length_s`."""
    points = [*(f"{value:.1f}" for value in values), f"{values[-1]:.1f}"]
    times = [f"{0.9 * place / (len(values) - 1):.4f}" for place in range(len(values))] + ["1"]
    return (
        f'<animate attributeName="{attribute}" dur="{length_s:g}s" repeatCount="indefinite" '
        f'values="{";".join(points)}" keyTimes="{";".join(times)}"/>'
    )


def _dark_style() -> str:
    rules = "".join(f".kvsim-{paint}{{fill:{dark}}}" for paint, (_, dark) in _PAINTS.items())
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"


def _filled(paint: str) -> str:
    return f'class="kvsim-{paint}" fill="{_PAINTS[paint][0]}"'


def _bar(x: float, y: float, width: float, height: float, paint: str, inside: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" {_filled(paint)}>{inside}</rect>'


def _text(x: float, y: float, text: str, *, bold: bool = False, paint: str = "ink", size: int = 14) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" {_filled(paint)}{weight}>{escape(text, quote=False)}</text>'
