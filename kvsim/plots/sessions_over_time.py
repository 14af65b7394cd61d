"""Figure of multi-turn sessions over time, and of the share of each turn's history that was found in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from kvsim.metrics.session_turns import by_turn, session_turns
from kvsim.plots.colors import Colors, figure_colors
from kvsim.plots.picture import Look, Picture, drawn
from kvsim.plots.words import source_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.metrics.session_turns import SessionTurns, TurnFigures
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray

_MOST_ROWS = 40
"""Maximum number of sessions that are drawn; of more sessions, evenly spaced ones are chosen."""


class _Parts(NamedTuple):
    """Colours of the parts of a prompt, and of its answer."""

    answer: str
    lost: str
    found: str
    new: str


def _part_colors(colors: Colors) -> _Parts:
    return _Parts(*colors.hues[:3], colors.pale)


def sessions(recording: Recording, **look: Unpack[Look]) -> Picture:
    """Draw the turns of each session over time, with evictions of blocks that a later turn needed; below, the mean
    prompt of the first, second, ... turns.
    """
    turns, table = session_turns(recording), by_turn(recording.requests, recording.meta.pool.unit_tokens)
    shown = _shown(turns)
    with drawn(aspect=0.95, **look) as picture:
        above, below = picture.subplots(2, 1, height_ratios=(2, 1))
        _draw_time(above, recording, turns, shown, picture.line_pt)
        _draw_prompts(below, table)
        picture.headline(_title(turns), source_line([recording]))
        picture.add_legend(_handles(picture.colors))
    lost, history = int(turns.lost_tokens.sum(dtype=np.int64)), int(turns.history_tokens.sum(dtype=np.int64))
    figures = (
        f"Turn {row.turn}: {row.num_requests:,} requests, {row.hit_tokens:,} tokens found, {row.lost_tokens:,} "
        "computed again."
        for row in table
    )
    picture.alt_text = (
        f"Turns of {len(shown)} of {int(turns.session.max()) + 1} sessions over time. Of {history:,} tokens of "
        f"histories, {lost:,} were computed again. {' '.join(figures)}"
    )
    return picture


def _shown(turns: SessionTurns) -> IntArray:
    number = int(turns.session.max()) + 1
    return np.unique(np.linspace(0, number - 1, min(number, _MOST_ROWS)).round().astype(np.int64))


def _draw_time(axes: Axes, recording: Recording, turns: SessionTurns, shown: IntArray, line_pt: float) -> None:
    """Draw a row per session: the time to the first token, the answer and the pause of each turn.

    Crosses mark when a block was evicted that the turn needed. `shown` has the numbers of the sessions to draw. `turns`
    has the turns of all sessions.
    """
    requests, colors, parts = recording.requests, figure_colors(axes), _part_colors(figure_colors(axes))
    rows = np.flatnonzero(np.isin(turns.session, shown) & np.isfinite(requests.first_token_s))
    height = np.searchsorted(shown, turns.session[rows]).astype(np.float64)
    end_s = np.where(np.isfinite(requests.finished_s[rows]), requests.finished_s[rows], recording.duration_s)
    first_s, arrival_s = requests.first_token_s[rows], requests.arrival_s[rows]
    later = turns.after[rows] >= 0
    before_s = requests.finished_s[turns.after[rows]]
    hurt = turns.lost_tokens[rows] > 0
    wide = 2.6 * line_pt
    _lines(axes, before_s[later], arrival_s[later], height[later], color=colors.muted, linewidth=0.5 * line_pt)
    _lines(axes, first_s, end_s, height, color=parts.answer, linewidth=wide)
    for chosen, color in ((~hurt & later, parts.found), (~later, parts.new), (hurt, parts.lost)):
        _lines(axes, arrival_s[chosen], first_s[chosen], height[chosen], color=color, linewidth=wide)
    evicted_s = turns.evicted_s[rows]
    known = np.isfinite(evicted_s)
    axes.plot(
        evicted_s[known], height[known], "x", color=parts.lost, markersize=2.5 * line_pt, markeredgewidth=0.6 * line_pt
    )
    every = "" if len(shown) == turns.session.max() + 1 else f", {len(shown)} of {int(turns.session.max()) + 1:,}"
    axes.set_title(f"sessions over time{every}", loc="left")
    axes.set(xlabel="time (s)", ylabel="session", xlim=(0, recording.duration_s), ylim=(len(shown) - 0.3, -0.7))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    # The numbers by which `kvsim info` and the turns of a run call the sessions.
    axes.yaxis.set_major_formatter(lambda row, _: f"{shown[int(row)]:,}" if 0 <= row < len(shown) else "")


def _lines(axes: Axes, begin_s: FloatArray, end_s: FloatArray, height: FloatArray, **look: Any) -> None:
    ends = np.stack((np.stack((begin_s, height), axis=1), np.stack((end_s, height), axis=1)), axis=1)
    axes.add_collection(LineCollection(list(ends), capstyle="butt", **look))


def _draw_prompts(axes: Axes, table: list[TurnFigures]) -> None:
    """Draw the mean prompt of the first, second, ... turns: its prefix-cache hits, its history that was evicted and is
    computed again, and its new tokens.
    """
    place = np.arange(len(table))
    hits = np.array([row.hit_tokens for row in table], float)
    lost = np.array([row.lost_tokens for row in table], float)
    number = np.array([row.num_requests for row in table], float)
    whole = np.array([row.prompt_tokens for row in table], float)
    bottom, parts = np.zeros(len(table)), _part_colors(figure_colors(axes))
    for values, color in ((hits, parts.found), (lost, parts.lost), (whole - hits - lost, parts.new)):
        axes.bar(place, values / number, 0.7, bottom=bottom, color=color, linewidth=0)
        bottom += values / number
    axes.set_title("prompt of a turn", loc="left")
    axes.set(xlabel="turn", ylabel="tokens", xlim=(-0.6, len(table) - 0.4))
    axes.set_xticks(place, [row.turn for row in table])
    axes.grid(visible=False, axis="x")


def _handles(colors: Colors) -> list[Any]:
    parts = _part_colors(colors)
    return [
        Patch(color=parts.found, label="history found"),
        Patch(color=parts.lost, label="history computed again"),
        Patch(color=parts.new, label="new"),
        Patch(color=parts.answer, label="answer"),
        Line2D([], [], color=colors.muted, linewidth=0.8, label="pause"),
        Line2D([], [], color=parts.lost, marker="x", linestyle="", label="block evicted"),
    ]


def _title(turns: SessionTurns) -> str:
    history, lost = turns.history_tokens.sum(dtype=float), turns.lost_tokens.sum(dtype=float)
    if not lost:
        return "Every turn finds its whole history in the prefix cache"
    hurt = int((turns.lost_tokens > 0).sum())
    return f"{100 * lost / history:.0f}% of the histories is computed again, in {hurt:,} turns"
