"""Tables of the turns of sessions: prefix hits in the history, and tokens that were computed again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cli.show import print_table, seconds
from kvsim.metrics.session_turns import by_turn, session_turns

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import Measured

_MOST_LOSSES = 8
"""Maximum number of printed turns whose history was evicted."""


def turn_documents(run: Recording | Measured) -> dict[str, Any]:
    """Return the figures of each turn for JSON; empty if the run has no sessions."""
    found = by_turn(run.requests, run.meta.pool.unit_tokens)
    return {"turns": [figures._asdict() for figures in found]} if found else {}


def print_turns(run: Recording | Measured) -> None:
    """Print a row for all first turns, a row for all second turns, and so on. A run without sessions prints nothing."""
    heads = ["turn", "requests", "history, tokens", "hits, tokens", "computed again", "TTFT, mean"]
    rows = [
        (
            figures.turn,
            f"{figures.num_requests:,}",
            f"{figures.history_tokens:,}",
            f"{figures.hit_tokens:,}",
            f"{figures.lost_tokens:,}",
            seconds(figures.ttft_s),
        )
        for figures in by_turn(run.requests, run.meta.pool.unit_tokens)
    ]
    if rows:
        print_table("turns of sessions", heads, rows, figures=range(len(heads)))


def print_losses(recording: Recording) -> None:
    """Print the turns that lost the most tokens of their history from the cache, and the evictions that caused this.

    For a run without sessions, print nothing.
    """
    if recording.requests.turns is None:
        return
    turns = session_turns(recording)
    worst = np.argsort(-turns.lost_tokens, kind="stable")[:_MOST_LOSSES]
    worst = worst[turns.lost_tokens[worst] > 0]
    names = recording.requests.id
    heads = ["request", "session", "turn", "history lost", "evicted at", "evicted for"]
    rows = [
        (
            str(names[row]),
            f"{turns.session[row]}",
            f"{turns.turn[row]}",
            f"{turns.lost_tokens[row]:,} of {turns.history_tokens[row]:,}",
            "–" if math.isnan(turns.evicted_s[row]) else seconds(turns.evicted_s[row]),
            str(names[turns.evicted_for[row]]) if turns.evicted_for[row] >= 0 else "–",
        )
        for row in worst.tolist()
    ]
    if rows:
        print_table("the turns that evictions hurt most", heads, rows, figures=range(1, 5))
