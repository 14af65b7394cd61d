"""Batches in a recording of `generate()`, and the memory that they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.hf_memory.generate import WORKSPACE_BYTES, GenerateMemory, generate_memory, weights_bytes
from kvsim.memory.caching import MIB
from kvsim.models import Model
from kvsim.recording import Recording
from kvsim.steptime.kernels import Batch

_OUTSIDE_BYTES = 552_402_944
"""Bytes of an H200 that CUDA keeps for itself.

An H200 has 150,109,880,320 bytes, of which 149,557,477,376 were free in a new process.
"""
_WARM_UP_TOKENS = 4
"""Number of new tokens in the warm-up that is assumed if a recording does not state one."""
_GRAPH_BYTES = 174 * MIB
"""Bytes of the captured graphs of a static cache, assumed if a recording does not state them.

They are a second cuBLAS workspace of 32 MiB, two pieces of 60 MiB, one of 20 MiB and one of 2 MiB, as in
`hf-h200-granite-350m-heldout-batch32-static`.
"""


def batches_of(recording: Recording) -> list[Batch]:
    """Return the calls of `generate()` in `recording`, in order.

    Raises:
        UsageError: `recording` is not a recording of generate().
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
                preallocated=recording.meta.policy.get("cache") == "static",
            )
        )
    return batches


def earlier_batches(recording: Recording) -> tuple[Batch, ...]:
    """Return the batches that the process had run before the recording began; empty if the engine is not `generate()`.

    If a recording lacks this list, its process is assumed to have warmed up as benchmarks do: with the first batch of
    the recording, for four tokens.
    """
    if recording.meta.policy_name != "static":
        return ()
    stated = recording.meta.extra.get("earlier_batches")
    if stated is None:
        return tuple(
            replace(batch, new_tokens=min(batch.new_tokens, _WARM_UP_TOKENS)) for batch in batches_of(recording)[:1]
        )
    return tuple(
        Batch(
            rows=batch["rows"],
            prompt_width=batch["prompt_width"],
            new_tokens=batch["new_tokens"],
            padded=batch["padded"],
            preallocated=batch["cache"] == "static",
        )
        for batch in stated
    )


def assumptions_of(recording: Recording) -> tuple[str, ...]:
    """Describe what is assumed where a recording of `generate()` states nothing; empty for other engines."""
    meta = recording.meta
    if meta.policy_name != "static":
        return ()
    assumptions = []
    if "earlier_batches" not in meta.extra:
        assumptions.append(
            f"the process warmed up with the first batch for {_WARM_UP_TOKENS} new tokens, and found no kernels on disk"
        )
    if "min_new_tokens" not in meta.engine:
        assumptions.append("no least length of the answers was asked for")
    if "private_segment_bytes" not in meta.extra and _has_graphs(recording):
        assumptions.append(f"captured graphs keep {_GRAPH_BYTES / 1e6:.0f} MB")
    return tuple(assumptions)


def memory_of(recording: Recording, *, private_bytes: int | None = None) -> GenerateMemory:
    """Compute the memory of the batches of `recording` from their shapes and the stated baseline.

    `private_bytes` is the memory that PyTorch had reserved for captured graphs, in memory pools of their own. If it is
    None, the figure in the recording is taken or, if it has none, a typical one.

    Raises:
        UsageError: `recording` is not a recording of generate().
        BudgetError: the GPU of the recording is too small for the computed memory.
    """
    meta = recording.meta
    batches, earlier = batches_of(recording), earlier_batches(recording)
    model = Model.from_shape(meta.model)
    baseline = meta.extra.get("baseline_allocated_bytes")
    # Bytes beside the weights. The workspace is among them if the process had multiplied matrices before.
    other_bytes = max(0, baseline - weights_bytes(model)) if isinstance(baseline, int) else WORKSPACE_BYTES
    has_workspace = other_bytes >= WORKSPACE_BYTES
    simulate = partial(
        generate_memory,
        model,
        has_min_new_tokens=bool(meta.engine.get("min_new_tokens")),
        capacity_bytes=find_gpu(meta.gpu).memory_bytes - _OUTSIDE_BYTES,
        has_workspace=has_workspace,
        other_bytes=other_bytes - WORKSPACE_BYTES * has_workspace,
        private_bytes=_private_bytes(recording) if private_bytes is None else private_bytes,
    )
    if "earlier_batches" in meta.extra and not _kept_memory(recording, simulate, earlier):
        earlier = ()
    return simulate(batches, earlier=earlier, given_back_before=meta.extra.get("given_back_before", ()))


def _kept_memory(recording: Recording, simulate: Callable[..., GenerateMemory], earlier: Sequence[Batch]) -> bool:
    """Tell whether the memory of `earlier` batches was still reserved when the recording began.

    `simulate` returns the memory of given batches after earlier ones. The answer follows from the recorded number of
    reserved bytes. It is False for early recordings, which lack this number: the program that made them returned such
    memory to the driver.
    """
    reserved = recording.meta.extra.get("baseline_reserved_bytes")
    if not earlier or not isinstance(reserved, int):
        return False
    kept, given_back = (simulate((), earlier=batches).baseline_reserved_bytes for batches in (earlier, ()))
    return abs(kept - reserved) < abs(given_back - reserved)


def _has_graphs(recording: Recording) -> bool:
    """Tell whether the process captured graphs, as `generate()` does for the decoding steps of a static cache."""
    return any(batch.preallocated for batch in (*earlier_batches(recording), *batches_of(recording)))


def _private_bytes(recording: Recording) -> int:
    """Return the bytes that PyTorch had reserved for captured graphs when the recording ended; an estimate if the
    recording does not state them. Other tensors cannot use this memory, and it is never freed.
    """
    segments = recording.meta.extra.get("private_segment_bytes")
    if isinstance(segments, list):
        return sum(segments)
    return _GRAPH_BYTES if _has_graphs(recording) else 0
