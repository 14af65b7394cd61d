"""Figures of captions about one request, and about the kinds of layers of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState

from ..facts.group_tables import table_rows
from ..facts.preemption import last_preemption
from ..facts.requests import place_in_row, request_facts
from ..look.wording import bytes_text, milliseconds, percent
from ..pool.layer_kinds import layer_kinds
from ..pool.unit_changes import changes_between

if TYPE_CHECKING:
    from kvsim.recording.tables import IntArray

    from ..playback.session import Session

_MOST_BLOCKS_LISTED = 12


def request_figures(session: Session, name: str) -> dict[str, str]:
    """Return the figures of request `name` at the current frame, by their names in captions; empty if unknown."""
    requests, replay = session.recording.requests, session.replay
    rows = np.flatnonzero(requests.id == name)
    if not len(rows):
        return {}
    row = int(rows[0])
    facts = request_facts(session, row)
    positions, addresses = replay.block_table(row)
    held = sum(facts.slots)
    refs = replay.refs[addresses - replay.first_unit]
    table = ", ".join(f"{position} in {address}" for position, address in zip(positions, addresses, strict=True))
    figures = {
        "blocks": f"{facts.num_units:,}",
        "table": table if len(positions) <= _MOST_BLOCKS_LISTED else f"{len(positions):,} blocks",
        "row": place_in_row(session, row),
        "addresses": ", ".join(str(address) for address in addresses.tolist()),
        "last_address": str(int(addresses[np.argmax(positions)])) if len(positions) else "none",
        "prompt": f"{facts.prompt_tokens:,}",
        "output": f"{facts.generated_tokens:,}",
        "answer": f"{facts.output_tokens:,}",
        "needs": f"{facts.final_slots:,}",
        "fits": f"{session.capacity // facts.final_slots:,}",
        "written": f"{min(facts.computed, facts.final_slots):,}",
        "held": f"{held:,}",
        "held_gib": bytes_text(round(held * session.recording.meta.pool.bytes_per_slot)),
        "unused_percent": percent(held - facts.slots[SlotState.TOKEN], held),
        "shared_blocks": f"{int((refs > 1).sum()):,}",
        "hit_tokens": f"{int(requests.cached_tokens[row]):,}",
        "missed_tokens": f"{facts.prompt_tokens - int(requests.cached_tokens[row]):,}",
        "started": milliseconds(float(requests.first_scheduled_s[row])),
        "waited": milliseconds(float(requests.first_scheduled_s[row] - requests.arrival_s[row])),
        "ttft": milliseconds(float(requests.first_token_s[row] - requests.arrival_s[row])),
        "finished": milliseconds(float(requests.finished_s[row])),
    }
    return (
        figures
        | _unwritten_slots(session, positions, addresses)
        | _lost(session, row)
        | _blocks_by_layers(session, row)
    )


def layer_figures(session: Session) -> dict[str, str]:
    """Return the figures of the kinds of layers, by their names in captions; empty without sliding windows."""
    pool, kinds = session.recording.meta.pool, layer_kinds(session.replay)
    windows = [kind for kind in kinds if kind.group.window is not None]
    if not windows:
        return {}
    window = [number for kind in windows for number in kind.numbers]
    full = [number for kind in kinds if kind.group.window is None for number in kind.numbers]
    num_window, num_full = (sum(pool.groups[number].num_layers for number in numbers) for numbers in (window, full))
    return {
        "all": f"{num_window + num_full}",
        "full": f"{num_full}",
        "window": f"{num_window}",
        "full_tables": f"{len(full)}",
        "window_tables": f"{len(window)}",
        "window_tokens": f"{windows[0].group.window:,}",
    }


def _unwritten_slots(session: Session, positions: IntArray, addresses: IntArray) -> dict[str, str]:
    replay = session.replay
    if replay.unit_tokens == 1 or not len(positions) or len(replay.groups) > 1:
        return {}
    last = int(addresses[np.argmax(positions)])
    written = int(replay.slots()[last - replay.first_unit, SlotState.TOKEN])
    if written == replay.unit_tokens:
        return {}
    return {"unwritten": f"slots {written + 1} to {replay.unit_tokens} of block {last}"}


def _expired_blocks(session: Session, request: int) -> dict[str, str]:
    replay = session.replay
    addresses = np.sort(replay.block_table(request)[1]).astype(np.int64)
    slots = replay.slots(addresses - replay.first_unit)
    expired = slots[:, SlotState.EXPIRED]
    whole = (expired > 0) & (slots[:, SlotState.TOKEN] == 0) & (slots[:, SlotState.RESERVED] == 0)
    frame = replay.frame
    freed = changes_between(replay, max(frame - 1, 0), frame).freed + replay.first_unit
    return {
        "expired_blocks": _block_names(addresses[whole]),
        "expired_part": _block_names(addresses[(expired > 0) & ~whole]),
        "let_go_blocks": _block_names(np.unique(freed)),
    }


def _block_names(addresses: IntArray) -> str:
    if not len(addresses):
        return "no block"
    runs = np.split(addresses, np.flatnonzero(np.diff(addresses) != 1) + 1)
    words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"block{'s' * (len(addresses) > 1)} {' and '.join(words)}"


def _blocks_by_layers(session: Session, request: int) -> dict[str, str]:
    rows = table_rows(session, request, 1)
    windows = [row for row in rows if row.kind.group.window is not None]
    if not windows:
        return {}
    return {
        "full_blocks": f"{sum(row.num_held for row in rows if row not in windows):,}",
        "window_blocks": f"{sum(row.num_held for row in windows):,}",
        "let_go": f"{sum(row.num_missing_before for row in windows):,}",
    } | _expired_blocks(session, request)


def _lost(session: Session, request: int) -> dict[str, str]:
    found = last_preemption(session, request)
    return {} if found is None else {"lost_blocks": f"{found.num_units:,}", "lost_tokens": f"{found.num_tokens:,}"}
