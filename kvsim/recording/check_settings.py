"""Checks of the settings in a `meta.json` against the engine's decisions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError, shortened
from kvsim.recording.model import Recording
from kvsim.recording.rules import require_of
from kvsim.recording.tables import IntArray


def check_settings(recording: Recording, folder: Path) -> None:
    """Check that units are as large as the policy and the model say, and that no step goes beyond a limit.

    Raises:
        RecordingError: naming the file and what does not agree.
    """
    if not recording.meta.pool.groups:
        _check_unit(recording, folder / "meta.json")
    if recording.meta.policy_name == "static" or recording.meta.begins_in_the_middle:
        return
    steps = recording.steps
    amounts: tuple[tuple[str, tuple[IntArray, ...], str], ...] = (
        ("max_num_seqs", (steps.running,), "running"),
        ("max_running_requests", (steps.running,), "running"),
        (
            "max_num_batched_tokens",
            (steps.prefill_tokens, steps.decode_tokens),
            "prefill_tokens and decode_tokens together",
        ),
    )
    for name, columns, what in amounts:
        for part, settings in (("policy", recording.meta.policy), ("engine", recording.meta.engine)):
            most = settings.get(name)
            if isinstance(most, int):
                rule = f"{what} should not be more than {part}.{name} of meta.json, which is {most}"
                holds = partial(_add_up_to, columns, most)
                require_of(holds, steps, folder / "steps.parquet", rule)


def check_waiting(recording: Recording, file: Path) -> None:
    """Check that no request waits while the batch, the step and the pool have room for any: a limit would be wrong."""
    requests, steps, meta = recording.requests, recording.steps, recording.meta
    settings = {**meta.engine, **meta.policy}
    most_seqs = settings.get("max_num_active_seqs") or settings.get("max_num_seqs")
    most_tokens = settings.get("max_num_batched_tokens")
    elsewhere = recording.copies is not None or meta.exchanges_kv or meta.pool.groups or "rules" in meta.policy
    # A request may wait for a slot of its adapter or room for its images, and drafting may take tokens of a step.
    elsewhere = elsewhere or requests.adapter is not None or recording.has_drafts or recording.images is not None
    # Since vLLM 0.27, a preempted request waits for its steps that are under way; it may also hold prompts back.
    elsewhere = elsewhere or any(
        settings.get(name, 1) > 1 for name in ("pipeline_parallel_size", "prefill_schedule_interval")
    )
    if meta.policy_name != "paged" or elsewhere or meta.pool.num_units is None or not most_seqs or not most_tokens:
        return
    longest = int((requests.prompt_tokens.astype(np.int64) + requests.max_tokens).max(initial=0))
    units = -(-longest // meta.pool.unit_tokens) + 1 + (settings.get("watermark") or 0) * meta.pool.num_units

    def is_kept(rows: slice) -> np.ndarray:
        tokens = steps.prefill_tokens[rows].astype(np.int64) + steps.decode_tokens[rows]
        kept = (steps.preempted[rows] > 0) | (steps.running[rows] >= most_seqs) | (tokens + longest >= most_tokens)
        found: np.ndarray = kept | (steps.waiting[rows] == 0) | (steps.free_units[rows] <= units)
        return found

    rule = "requests wait although the limits of meta.json and the free units leave room for any"
    require_of(is_kept, steps, file, rule)


def _add_up_to(columns: tuple[IntArray, ...], most: int, rows: slice) -> np.ndarray:
    """Tell for which `rows` the columns add up to at most `most`."""
    total = np.zeros(rows.stop - rows.start, np.int64)
    for column in columns:
        total += column[rows]
    return total <= most


def _check_unit(recording: Recording, file: Path) -> None:
    """Check that a unit is a block of the policy, or a slot, and that a token takes as many bytes as in the model."""
    meta, pool = recording.meta, recording.meta.pool
    size = {"paged": "block_size", "radix": "page_size"}.get(meta.policy_name)
    unit_tokens = 1 if size is None else meta.policy.get(size, pool.unit_tokens)
    if unit_tokens not in (None, pool.unit_tokens):
        raise RecordingError(
            f"{file}: pool.unit_tokens should be {unit_tokens}, as units are of policy {meta.policy_name}, not "
            f"{pool.unit_tokens}."
        )
    token_bytes = meta.model.get("kv_bytes_per_token")
    unit_bytes = pool.bytes_per_unit + (pool.windows.bytes_per_unit if pool.windows else 0)
    if token_bytes is not None and (
        not isinstance(token_bytes, int)
        or (token_bytes + meta.model.get("draft_bytes_per_token", 0)) * pool.unit_tokens != unit_bytes
    ):
        raise RecordingError(
            f"{file}: model.kv_bytes_per_token should be what a token takes of pool.bytes_per_unit, which is "
            f"{unit_bytes / pool.unit_tokens:,.15g}, not {shortened(token_bytes)}."
        )
