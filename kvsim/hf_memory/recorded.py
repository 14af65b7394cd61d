"""The batches of a recording of `generate()`, and what they should have taken."""

from __future__ import annotations

import numpy as np

from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.hf_memory.generate import WORKSPACE_BYTES, Batch, GenerateMemory, generate_memory, weights_bytes
from kvsim.models import Model
from kvsim.recording import Recording

_OUTSIDE_BYTES = 552_402_944
"""What CUDA keeps to itself: 150,109,880,320 bytes of an H200, of which 149,557,477,376 were free in a new process."""


def batches_of(recording: Recording) -> list[Batch]:
    """The calls of `generate()` in `recording`, in order.

    Raises:
        UsageError: it is not a recording of generate().
    """
    if recording.meta.policy_name != "static":
        raise UsageError(
            f"{recording.name} is not a recording of generate(); its policy is {recording.meta.policy_name}."
        )
    steps, requests = recording.steps, recording.requests
    begins = np.flatnonzero(steps.prefill_tokens > 0)
    lengths = np.diff(begins, append=len(steps))
    batches, done = [], 0
    for begin, num_steps in zip(begins.tolist(), lengths.tolist(), strict=True):
        rows = int(steps.num_scheduled[begin])
        prompts = requests.prompt_tokens[done : done + rows]
        done += rows
        batches.append(
            Batch(
                rows=rows,
                prompt_width=int(prompts.max()),
                new_tokens=num_steps,
                padded=bool((prompts != prompts.max()).any()),
            )
        )
    return batches


def memory_of(recording: Recording, *, private_bytes: int | None = None) -> GenerateMemory:
    """What the batches of `recording` should have taken, by their shapes and the baseline that it states.

    `private_bytes` is what captured graphs of the same process had reserved; without, what the recording says of it,
    which older ones do not.

    Raises:
        UsageError: it is not a recording of generate().
        BudgetError: its GPU could not have run it.
    """
    model = Model.from_shape(recording.meta.model)
    baseline = recording.meta.extra.get("baseline_allocated_bytes")
    own = weights_bytes(model)
    other = max(0, baseline - own) if isinstance(baseline, int) else WORKSPACE_BYTES
    warm = other >= WORKSPACE_BYTES
    return generate_memory(
        model,
        batches_of(recording),
        preallocated=recording.meta.policy.get("cache") == "static",
        capacity_bytes=find_gpu(recording.meta.gpu).memory_bytes - _OUTSIDE_BYTES,
        warm=warm,
        other_bytes=other - WORKSPACE_BYTES if warm else other,
        private_bytes=_private_bytes(recording) if private_bytes is None else private_bytes,
    )


def _private_bytes(recording: Recording) -> int:
    """What captured graphs had reserved when the recording ended: nobody else gets it, and it is not given back."""
    segments = recording.meta.extra.get("private_segment_bytes")
    return sum(segments) if isinstance(segments, list) else 0
