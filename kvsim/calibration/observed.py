"""A recording as the calibration sees it: what every step held, and when it began and ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.hf_memory import batches_of
from kvsim.kernels import BatchRun, KernelsSeen
from kvsim.recording import Recording
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.steptime import StepShape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """The steps of one recording, in order."""

    name: str
    eager: bool
    """Whether the engine captured no graphs."""
    shape: StepShape
    """Arrays, one entry per step."""
    start_s: FloatArray
    """When each step was scheduled."""
    end_s: FloatArray
    """When its output had been processed."""
    launched_before_output: IntArray
    """The last step that was scheduled before each step's output was processed: the host was busy with it until
    then.
    """
    next_step: IntArray
    """The step that was scheduled right after each step's output; -1 where the engine did something else in between."""

    entry_gap_s: FloatArray
    """Time between two requests that the engine took in one after the other without doing anything else."""
    entry_prompt_tokens: IntArray
    """The prompt of the second of each two."""

    def __len__(self) -> int:
        return len(self.start_s)


def observe(recording: Recording) -> Observed:
    """What the steps of `recording` held, from its schedule."""
    schedule, steps = recording.schedule, recording.steps
    repeats = schedule.repeats
    index = np.repeat(np.arange(len(repeats)), repeats)
    nth = np.arange(len(index)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    step = schedule.step[index] + nth
    tokens = schedule.tokens[index].astype(np.float64)
    before = schedule.computed_before[index] + tokens * nth
    prefill = (tokens > 1) | (before < recording.requests.prompt_tokens[schedule.request[index]])

    def per_step(values: FloatArray) -> Any:
        return np.bincount(step, values, len(steps))

    launched = np.searchsorted(steps.schedule_seq, steps.output_seq) - 1
    following = np.minimum(launched + 1, len(steps) - 1)
    direct = (launched + 1 < len(steps)) & (steps.schedule_seq[following] == steps.output_seq + 1)
    requests = recording.requests
    order = np.argsort(requests.arrival_seq)
    together = np.flatnonzero(np.diff(requests.arrival_seq[order]) == 1)
    return Observed(
        name=recording.name,
        eager=bool(recording.meta.engine.get("enforce_eager")),
        shape=StepShape(
            num_seqs=per_step(np.ones(len(step))),
            num_tokens=per_step(tokens),
            num_prefill_tokens=per_step(tokens * prefill),
            context_tokens=per_step(before + tokens),
            attention_pairs=per_step(prefill * (tokens * before + tokens * (tokens + 1) / 2)),
            **_first_uses(recording),
            shared_tokens=_shared_tokens(recording, per_step(before + tokens)),
        ),
        start_s=steps.start_s,
        end_s=steps.end_s,
        launched_before_output=launched,
        next_step=np.where(direct, following, -1),
        entry_gap_s=np.diff(requests.arrival_s[order])[together],
        entry_prompt_tokens=requests.prompt_tokens[order][together + 1],
    )


def _shared_tokens(recording: Recording, context_tokens: FloatArray) -> Any:
    """What each step of a paged cache reads more than once, as far as free memory tells: more than is held."""
    pool = recording.meta.pool
    if pool.num_units is None:
        return np.zeros(len(context_tokens))
    held_slots = (pool.num_units - recording.steps.free_units.astype(np.float64)) * pool.unit_tokens
    return np.maximum(context_tokens - held_slots, 0.0)


def earlier_batches(recording: Recording) -> tuple[BatchRun, ...]:
    """What the process of a recording of `generate()` had run before with the same kind of cache, as far as it says."""
    cache = recording.meta.policy.get("cache")
    return tuple(
        BatchRun(rows=batch["rows"], width=batch["prompt_width"], steps=batch["new_tokens"], padded=batch["padded"])
        for batch in recording.meta.extra.get("earlier_batches", ())
        if batch["cache"] == cache
    )


def _first_uses(recording: Recording) -> dict[str, Any]:
    """The shapes and kernels that each step of `generate()` is the first of its process to need; none elsewhere."""
    if recording.meta.policy_name != "static":
        none = np.zeros(len(recording.steps))
        return {"new_shape": none, "new_kernels": none}
    kernels = KernelsSeen(
        preallocated=recording.meta.policy.get("cache") == "static", earlier=earlier_batches(recording)
    )
    batches = (BatchRun(item.rows, item.prompt_width, item.new_tokens, item.padded) for item in batches_of(recording))
    shapes, new_kernels = np.array([first for batch in batches for first in kernels.run(batch)], np.float64).T
    return {"new_shape": shapes, "new_kernels": new_kernels}
