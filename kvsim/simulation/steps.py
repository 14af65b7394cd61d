"""What both engines of continuous batching do with a step that was scheduled."""

from __future__ import annotations

from typing import Any

from kvsim.errors import StalledError
from kvsim.scheduling.contiguous import ContiguousManager
from kvsim.scheduling.continuous import Batch, ContinuousScheduler
from kvsim.scheduling.manager import MemoryManager
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.swap import SwappingManager
from kvsim.simulation.recorder import Recorder
from kvsim.steptime import StepShape, larger


def record_step(
    recorder: Recorder,
    scheduler: ContinuousScheduler,
    batch: Batch,
    time_s: float,
    num_advanced: int = 0,
    context_tokens: int = 0,
) -> tuple[int, StepShape, float]:
    """Write down a scheduled step; return its number, what it holds, and how long it waits for copies to the host.

    Beside `batch`, the step computes one token each for `num_advanced` sequences with so many `context_tokens` in all.
    """
    num_tokens, num_prefill_tokens, attention_pairs = num_advanced, 0, 0
    for sequence, tokens in batch.tokens.items():
        context = sequence.computed
        before = context - tokens
        recorder.scheduled(sequence.row, before, tokens, time_s)
        num_tokens += tokens
        context_tokens += context
        if tokens - sequence.drafts > 1 or before < sequence.prompt_tokens:
            num_prefill_tokens += tokens
            attention_pairs += tokens * before + tokens * (tokens + 1) // 2
    for sequence in batch.preempted:
        recorder.preempted(sequence.row)
    memory, waiting = scheduler.memory, scheduler.waiting
    if isinstance(memory, ContiguousManager):
        context_tokens += 2 * memory.take_copied_slots()  # a copy reads every byte and writes it again
    transfers = memory.take_transfers() if isinstance(memory, SwappingManager) else None
    number = recorder.step(
        start_s=time_s,
        prefill_tokens=num_prefill_tokens,
        decode_tokens=num_tokens - num_prefill_tokens,
        num_scheduled=num_advanced + len(batch),
        running=len(scheduler.running),
        waiting=len(waiting),
        preempted=len(batch.preempted),
        free_units=memory.num_free_units,
        cached_units=memory.num_cached_units if isinstance(memory, PagedManager) else 0,
        unusable_units=memory.unusable_units(waiting.peek() if waiting else None),
        **({} if transfers is None else transfers.columns),
    )
    shared = shared_slots(memory, context_tokens, memory.num_free_units)
    shape = StepShape(
        num_seqs=num_advanced + len(batch),
        num_tokens=num_tokens,
        num_prefill_tokens=num_prefill_tokens,
        context_tokens=context_tokens,
        attention_pairs=attention_pairs,
        shared_tokens=shared,
        num_new_seqs=batch.num_admitted,
    )
    return number, shape, 0.0 if transfers is None else transfers.time_s


def shared_slots(memory: MemoryManager, context_tokens: Any, num_free_units: Any) -> Any:
    """Slots of `context_tokens` that are read more than once, as far as memory tells: more is read than is held.

    Numbers or arrays, one entry per step.
    """
    if not isinstance(memory, PagedManager):
        return 0
    held_slots = memory.capacity_slots - num_free_units * memory.block_size
    return larger(context_tokens - held_slots, 0)


def check_progress(scheduler: ContinuousScheduler, batch: Batch) -> None:
    """Raise where a real engine would wait for ever: nothing runs, and still the head of the queue is not admitted."""
    if batch.tokens or batch.preempted or scheduler.running or not scheduler.waiting:
        return
    head = scheduler.waiting.peek()
    raise stalled(head.row, head.num_tokens)


def stalled(row: int, num_tokens: int) -> StalledError:
    """What to raise when the request in `row`, at the head of the queue, waits for ever."""
    return StalledError(
        f"the request in row {row} with {num_tokens} tokens can never be scheduled although nothing else runs; enable "
        "chunked prefill, or raise max_num_batched_tokens or the memory."
    )
