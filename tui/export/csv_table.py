"""Figures of the current frame as CSV, for the user to save."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from kvsim.memory.waste import SlotState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..playback.session import Session


def as_csv(sessions: Iterable[Session]) -> str:
    """Return a table with one row per run, for its current frame.

    The columns of slots by state add up to `capacity_slots`.
    """
    table = io.StringIO(newline="")
    rows = [_row(session) for session in sessions]
    writer = csv.DictWriter(table, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return table.getvalue()


def _row(session: Session) -> dict[str, object]:
    frame, meta = session.player.frame, session.recording.meta
    return {
        "recording": session.recording.name,
        "policy": meta.rules_name,
        "step": session.step_number(frame),
        "time_s": f"{session.player.clock_s:.6f}",
        "running": session.step_column("running")[frame],
        "waiting": session.step_column("waiting")[frame],
        "finished": session.num_finished,
        "refused": session.num_refused,
        "preempted": session.num_preemptions,
        "tokens_served": session.served[frame],
        "capacity_slots": session.capacity,
    } | {f"{state.name.lower()}_slots": session.breakdown[state] for state in SlotState}
