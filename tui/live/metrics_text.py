"""Lines of text and bars for the panels of the metrics screen. `plain` lines have ASCII characters only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.text import Text

from kvsim.live.cache_words import cache_facts, cache_limits

from ..look.stack import bar_text, columns
from ..look.states import ASCII, COLOR
from ..look.wording import milliseconds, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.live.kv_event_feed import CacheState
    from kvsim.live.metrics import Histogram, ServerMetrics
    from kvsim.live.server_load import ServerLoad

_LABEL_WIDTH: Final = 13
_LEAST_HEIGHT_FOR_GAPS: Final = 5
_PLAIN_EIGHTHS: Final = " .:-=+*#@"
_TIMES: Final = {"ttft": "first token", "inter_token": "between two", "queue": "in the queue", "e2e": "end to end"}
"""Name of each distribution of times in the table. "between two" means between two output tokens."""
_QUANTILES: Final = (0.5, 0.9, 0.99)


def cache_lines(load: ServerLoad, width: int, *, plain: bool) -> list[Text]:
    """Return two lines about the usage of the KV cache: a text and a bar, in ASCII if `plain`."""
    now = load.now
    parts = [f"{100 * now.usage:.1f}% in use"]
    if now.num_blocks is not None:
        of = f" of {now.block_size} tokens" if now.block_size else ""
        parts.append(f"about {round(now.usage * now.num_blocks):,} of {plural(now.num_blocks, 'block')}{of}")
    else:
        parts.append("the metrics do not say how many blocks there are")
    if now.num_engines > 1:
        parts.append(f"{now.num_engines} engines, the fullest {100 * now.fullest_usage:.1f}%")
    filled = bar_text(now.usage, width, ASCII if plain else COLOR)
    return [
        Text(_joined_parts(parts, width, plain=plain), "strong"),
        Text(filled.ljust(width, "." if plain else "░"), "bar"),
    ]


def event_lines(state: CacheState, width: int, height: int, *, ended: str | None, num_blocks: int | None) -> list[Text]:
    """Return at most `height` lines about the prefix cache: facts, then what KV events do not say.

    `ended` is the reason why the events ended; it comes first, unless it is None. `num_blocks` is None if unknown. The
    last facts are left out if there is no room.
    """
    facts = [Text(f"{fact[:1].upper()}{fact[1:]}"[:width], "text") for fact in cache_facts(state, num_blocks)]
    limits = [Text(f"Not known: {limit}"[:width], "weak") for limit in cache_limits(state)]
    ends = [] if ended is None else [Text(ended[:width], "strong")]
    return [*ends, *facts[: max(height - len(limits) - len(ends), 1)], *limits][:height]


def forecast(load: ServerLoad) -> str:
    """Predict when the KV cache will be full: `full in about 5 min`. Empty if unknown."""
    if load.is_full:
        return "full"
    if load.full_in_s is None:
        return ""
    return f"full in about {_rounded_time(load.full_in_s)}"


def request_lines(load: ServerLoad, width: int) -> list[Text]:
    """Return lines about requests, preemptions and tokens."""
    now = load.now
    held = f", {now.deferred:,} held back, but not by a want of room" if now.deferred else ""
    hits = "" if load.hit_share is None else f", {100 * load.hit_share:.0f}% of prompt tokens found in the prefix cache"
    prompts, answers = (_per(rate, "a second") for rate in (load.prompt_tokens_per_s, load.output_tokens_per_s))
    lines = [
        ("running", f"{now.running:,}"),
        ("waiting", f"{now.waiting:,}{held}"),
        ("preempted", f"{_per(load.preemptions_per_min, 'a minute')}, {now.preemptions:,} since the server started"),
        ("finished", _per(load.finished_per_min, "a minute")),
        ("tokens", f"{prompts} of prompts, {answers} of answers{hits}"),
    ]
    return [_labelled(label, value, width) for label, value in lines]


def time_lines(load: ServerLoad, width: int, *, plain: bool) -> list[Text]:
    """Return a table of the times that `load` has counted: means and quantiles, in ASCII if `plain`.

    A quantile is a range, because the server counts times in buckets.
    """
    head = _LABEL_WIDTH * " " + "".join(
        title.rjust(column)
        for title, column in zip(("requests", "mean", "p50", "p90", "p99"), _columns(width), strict=True)
    )
    lines = [Text(head[:width], "weak")]
    for key, name in _TIMES.items():
        histogram = load.histograms[key]
        cells = [f"{histogram.count:,.0f}", *_time_cells(histogram, plain=plain)]
        text = "".join(cell.rjust(column) for cell, column in zip(cells, _columns(width), strict=True))
        lines.append(Text.assemble((name.ljust(_LABEL_WIDTH), "label"), (text, "text"))[:width])
    return lines


def chart_lines(polls: Sequence[ServerMetrics], width: int, height: int, *, plain: bool) -> list[Text]:
    """Return charts of usage, running and waiting requests over successive `polls`, in ASCII if `plain`.

    They have `height` lines altogether, with blank lines between charts if there is room; none if it is below 3.
    """
    if height < 3:
        return []
    series = (
        ("in use", [100 * poll.usage for poll in polls], 100.0, "%", "bar"),
        ("running", [float(poll.running) for poll in polls], None, "", "label"),
        ("waiting", [float(poll.waiting) for poll in polls], None, "", "label"),
    )
    has_gaps = height >= _LEAST_HEIGHT_FOR_GAPS
    room = height - 2 * has_gaps
    heights = [room // 3 + (number < room % 3) for number in range(3)]
    marks = _PLAIN_EIGHTHS if plain else COLOR.up
    lines: list[Text] = []
    for (name, values, top, unit, style), rows in zip(series, heights, strict=True):
        if lines and has_gaps:
            lines.append(Text())
        highest = top or max(*values, 1.0)
        label = f"{name} 0-{highest:,.0f}{unit}"
        label = label if len(label) <= _LABEL_WIDTH else f"{name} {highest:,.0f}"
        bars = columns(np.array(_maxima_per_column(values, width - _LABEL_WIDTH - 1)), highest, rows).tolist()
        for row, eighths in enumerate(bars):
            bar = "".join(marks[eighth] for eighth in eighths)
            lines.append(Text.assemble(((label if row == 0 else "").ljust(_LABEL_WIDTH + 1), "label"), (bar, style)))
    return lines


def _maxima_per_column(values: list[float], width: int) -> list[float]:
    """Return `values`, or the maximum of every n consecutive values if there are more than `width`.

    n is `len(values) / width`, rounded up. If `len(values)` is not a multiple of n, the first values are left out.
    """
    width = max(width, 1)
    if len(values) <= width:
        return values
    per_column = math.ceil(len(values) / width)
    return [max(values[at : at + per_column]) for at in range(len(values) % per_column, len(values), per_column)]


def _columns(width: int) -> tuple[int, ...]:
    room = max((width - _LABEL_WIDTH - 10) // 4, 10)
    return (10, *([min(room, 20)] * 4))


def _time_cells(histogram: Histogram, *, plain: bool) -> list[str]:
    if histogram.count <= 0:
        return ["-"] * (1 + len(_QUANTILES))
    dash = "-" if plain else "–"
    cells = [milliseconds(histogram.sum_s / histogram.count)]
    for share in _QUANTILES:
        bounds = histogram.quantile_s(share)
        low_s, high_s = bounds if bounds is not None else (0.0, math.inf)
        cells.append(f">{milliseconds(low_s)}" if math.isinf(high_s) else _span(low_s, high_s, dash))
    return cells


def _span(low_s: float, high_s: float, dash: str) -> str:
    if high_s >= 1:
        return f"{low_s:,.3g}{dash}{high_s:,.3g} s"
    return f"{1e3 * low_s:,.3g}{dash}{1e3 * high_s:,.3g} ms"


def _rounded_time(seconds: float) -> str:
    """Format a predicted time: in steps of 5 s below 90 s, otherwise in minutes. Predictions are no more precise."""
    for unit, length_s, step in (("s", 1, 5), ("min", 60, 1)):
        if seconds < 90 * length_s:
            return f"{max(step * round(seconds / length_s / step), step):,} {unit}"
    return f"{round(seconds / 60):,} min"


def _per(rate: float | None, unit: str) -> str:
    return "-" if rate is None else f"{rate:,.0f} {unit}" if rate >= 10 or rate == 0 else f"{rate:.1f} {unit}"


def _labelled(label: str, value: str, width: int) -> Text:
    return Text.assemble((label.ljust(_LABEL_WIDTH), "label"), (value, "text"))[:width]


def _joined_parts(parts: list[str], width: int, *, plain: bool) -> str:
    separator = " - " if plain else " · "
    while len(parts) > 1 and len(separator.join(parts)) > width:
        parts = parts[:-1]
    return separator.join(parts)
