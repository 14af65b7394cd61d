"""A recording as the calibration sees it: what every step held, and when it began and ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.kernels import KernelsSeen
from kvsim.recording import Recording
from kvsim.recording.tables import FloatArray, IntArray
from kvsim.steptime import StepShape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """The steps of one recording, in order."""

    name: str
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
        shape=StepShape(
            num_seqs=per_step(np.ones(len(step))),
            num_tokens=per_step(tokens),
            num_prefill_tokens=per_step(tokens * prefill),
            context_tokens=per_step(before + tokens),
            attention_pairs=per_step(prefill * (tokens * before + tokens * (tokens + 1) / 2)),
            new_shape=_new_shapes(recording, per_step(np.ones(len(step))), per_step(before + tokens)),
        ),
        start_s=steps.start_s,
        end_s=steps.end_s,
        launched_before_output=launched,
        next_step=np.where(direct, following, -1),
        entry_gap_s=np.diff(requests.arrival_s[order])[together],
        entry_prompt_tokens=requests.prompt_tokens[order][together + 1],
    )


def _new_shapes(recording: Recording, num_seqs: FloatArray, context_tokens: FloatArray) -> Any:
    """1 for each step of a static batch whose shape had not come before in the recording, 0 for the others."""
    if recording.meta.policy_name != "static":
        return np.zeros(len(num_seqs))
    prefill = recording.steps.prefill_tokens > 0
    length = context_tokens / np.maximum(num_seqs, 1)
    preallocated = recording.meta.policy.get("cache") == "static"
    if preallocated:  # the whole cache, which is as long as the batch's last step
        batch = np.cumsum(prefill)
        longest = np.zeros(batch.max(initial=0) + 1)
        np.maximum.at(longest, batch, length)
        length = longest[batch]
    kernels = KernelsSeen(preallocated=preallocated)
    steps = zip(num_seqs.tolist(), length.tolist(), prefill.tolist(), strict=True)
    return np.array([float(kernels.is_new(int(rows), int(tokens), prefill=first)) for rows, tokens, first in steps])
