"""Check the settings in `meta.json` against the engine's decisions, because new runs may start with these settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import RecordingError, shortened
from kvsim.recording.model import Recording
from kvsim.recording.rules import require_of
from kvsim.recording.tables import IntArray


def check_settings(recording: Recording, folder: Path) -> None:
    """Check that units have the size that policy and model imply, and that no step exceeds a limit of the scheduler.

    The size is not checked with KV-cache groups. Limits are not checked for static batches, or if the recording begins
    in the middle of a run.
    """
    if not recording.meta.pool.groups:
        _check_unit(recording, folder / "meta.json")
    if recording.meta.policy_name == "static" or recording.meta.begins_in_the_middle:
        return
    steps = recording.steps
    limited = {
        "max_num_seqs": ["running"],
        "max_running_requests": ["running"],
        "max_num_batched_tokens": ["prefill_tokens", "decode_tokens"],
    }
    for setting, names in limited.items():
        amount = " and ".join(names) + " together" * (len(names) > 1)
        for part, settings in (("policy", recording.meta.policy), ("engine", recording.meta.engine)):
            most = settings.get(setting)
            if isinstance(most, int):
                rule = f"{amount} should not be more than {part}.{setting} of meta.json, which is {most}"
                holds = partial(_add_up_to, most, [getattr(steps, name) for name in names])
                require_of(holds, steps, folder / "steps.parquet", rule)


def check_waiting(recording: Recording, file: Path) -> None:
    """Check that no request waits while the limits and the free units leave room for the longest request.

    Such a request would mean that the engine has a lower limit than `meta.json` states. Engines in which a request may
    wait for another reason are not checked.
    """
    requests, steps, meta = recording.requests, recording.steps, recording.meta
    settings = {**meta.engine, **meta.policy}
    if meta.policy_name != "paged" or meta.pool.num_units is None or _has_other_reasons(recording, settings):
        return
    most_seqs = settings.get("max_num_active_seqs") or settings.get("max_num_seqs")
    most_tokens = settings.get("max_num_batched_tokens")
    if not most_seqs or not most_tokens:
        return
    longest = int((requests.prompt_tokens.astype(np.int64) + requests.max_tokens).max(initial=0))
    # A step admits the longest request if more units than these are free.
    needed_units = -(-longest // meta.pool.unit_tokens) + 1 + (settings.get("watermark") or 0) * meta.pool.num_units

    def has_reason(rows: slice) -> np.ndarray:
        tokens = steps.prefill_tokens[rows].astype(np.int64) + steps.decode_tokens[rows]
        at_limit = (steps.preempted[rows] > 0) | (steps.running[rows] >= most_seqs) | (tokens + longest >= most_tokens)
        holds: np.ndarray = at_limit | (steps.waiting[rows] == 0) | (steps.free_units[rows] <= needed_units)
        return holds

    rule = "requests wait although the limits of meta.json and the free units leave room for any"
    require_of(has_reason, steps, file, rule)


def _has_other_reasons(recording: Recording, settings: Mapping[str, Any]) -> bool:
    """Tell whether a request may wait for something else than a limit of the scheduler or free units."""
    meta = recording.meta
    if recording.copies is not None or meta.exchanges_kv or meta.pool.groups or "rules" in meta.policy:
        return True
    # A request may wait for a slot of its adapter or room for its images, and drafting may take tokens of a step.
    if recording.has_drafts or recording.images is not None or recording.requests.adapter is not None:
        return True
    # Since vLLM 0.27, a preempted request waits for its steps in flight; the engine may also delay prefills.
    return any(settings.get(name, 1) > 1 for name in ("pipeline_parallel_size", "prefill_schedule_interval"))


def _add_up_to(most: int, columns: Sequence[IntArray], rows: slice) -> np.ndarray:
    """Tell, for each of `rows`, whether the sum of the `columns` is at most `most`."""
    total = np.zeros(rows.stop - rows.start, np.int64)
    for column in columns:
        total += column[rows]
    return total <= most


def _check_unit(recording: Recording, file: Path) -> None:
    """Check the tokens of a unit against the policy, and its bytes against the model's bytes of a token."""
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
            f"{file}: model.kv_bytes_per_token should be pool.bytes_per_unit divided by its tokens, which is "
            f"{unit_bytes / pool.unit_tokens:,.15g}, not {shortened(token_bytes)}."
        )
