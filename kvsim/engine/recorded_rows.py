"""Rows that an engine records while it runs: steps, outputs, gaps between steps, changes of memory, the schedule."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.records import Small


@dataclass(slots=True, eq=False, repr=False)
class QueuesAndSlots:
    """Lengths of the queues, and numbers of units and slots (see `totals`), at one moment."""

    running: Small = 0
    waiting: Small = 0
    free_units: int = 0
    cached_units: int = 0
    unusable_units: int = 0
    free_windows: Small = 0
    """Number of units of SGLang's window pool that no request holds, those in the radix tree included."""
    cached_windows: Small = 0
    """Number of units of SGLang's window pool that only the radix tree holds."""
    written: int = 0
    padding: int = 0
    useful: int = 0
    rounding: int = 0
    shared: int = 0
    expired: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Step(QueuesAndSlots):
    """Row of one recorded step: its shape (see `StepShape`), and the queues and slots after scheduling."""

    seq: int = 0
    start_s: float = 0.0
    prefill_tokens: Small = 0
    num_tokens: Small = 0
    num_scheduled: Small = 0
    preempted: Small = 0
    context_tokens: int = 0
    attention_pairs: int = 0
    new_shape: float = 0.0
    new_kernels: float = 0.0
    shared_tokens: int = 0
    num_new_seqs: Small = 0
    swapped_out: Small = 0
    swapped_in: Small = 0
    num_admitted: int = 0
    """Number of requests admitted for the first time since the run began, by this step or before it. Those of a static
    batch are added when it ends.
    """


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """Number of the event in which the output of a step was processed, and its time in seconds."""

    seq: int = 0
    time_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Gap(QueuesAndSlots):
    """Queues and slots from an output to the next step. Recorded only if no recorded step is in flight meanwhile."""

    before: int = 0
    """Number of the step that follows the gap, counted from 0."""
    begin_s: float = 0.0
    """Time at which the output was processed, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class MemoryRow:
    """One change of ownership: a row of the recording's memory table, with the same columns."""

    seq: int = 0
    step: Small = 0
    kind: Small = 0
    group: Small = 0
    request: Small = 0
    position: Small = 0
    address: Small = 0
    length: Small = 0
    requested: Small = 0
    cached: Small = 0
    repeat: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class ScheduleRow:
    """Row of the schedule: `repeat` steps, from number `step` on, each compute `tokens` tokens of `request`."""

    step: Small = 0
    request: Small = 0
    computed_before: Small = 0
    tokens: Small = 0
    repeat: Small = 0
    known: Small = 0
    """Number of the request's tokens when written: its prompt and processed outputs. Recorded only with drafts."""
    outputs: Small = 0
    """Number of tokens that the output of the row's step gave the request; 0 without drafts."""
