"""What the compiled engine keeps, as records of numbers in arrays: one declaration gives the layout and the types.

A record is declared as a class of annotated fields, from which `dtype_of` makes the layout. Nobody ever makes an
instance: an element of such an array *is* one, and `Records` says so to whoever checks types.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol, TypeVar, cast, get_type_hints

import numpy as np
import numpy.typing as npt

Small = Annotated[int, np.int32]
"""A number of tokens, blocks or rows: the records of a million requests must stay small."""

Record = TypeVar("Record")
Record_co = TypeVar("Record_co", covariant=True)


class Records(Protocol[Record_co]):
    """An array of records, each of which may be written through."""

    def __getitem__(self, index: int) -> Record_co: ...
    def __len__(self) -> int: ...


def dtype_of(record: type) -> np.dtype[np.void]:
    """The layout of a record."""
    plain = {int: np.int64, float: np.float64, bool: np.bool_}
    hints = get_type_hints(record, include_extras=True)
    fields: list[Any] = [
        (name, kind.__metadata__[0] if hasattr(kind, "__metadata__") else plain[kind]) for name, kind in hints.items()
    ]
    return np.dtype((np.record, np.dtype(fields, align=True)))


def make(record: type[Record], size: int) -> Records[Record]:
    """`size` records of zeros."""
    records: Any = np.zeros(size, dtype_of(record))
    return cast("Records[Record]", records)


def array_of(records: Records[Any], end: int | None = None) -> npt.NDArray[np.void]:
    """The array that the first `end` of `records`, or all, are: `array["field"]` is a column of it."""
    array: npt.NDArray[np.void] = np.asarray(records)
    return array[:end]


class Node:
    """What a record needs to stand in a `ring`."""

    next: Small
    previous: Small


class Settings:
    """How to schedule, and over which memory."""

    num_requests: int
    limit: int
    """Requests at a time, those refused included."""
    stamp_at_entry: bool
    closed_loop: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int
    ahead: bool
    by_priority: bool
    chunked_prefill: bool
    reserve_full_prompt: bool
    contiguous: bool
    fit: int
    unit_tokens: int
    num_units: int
    prefix_caching: bool
    watermark_blocks: int
    recording: bool
    """Whether changes of ownership and the schedule are written down."""


class State:
    """Every number that changes from step to step."""

    host_s: float
    gpu_free_s: float
    strain: float
    """How far the GPU's clock had given way to sustained arithmetic."""
    strained_at_s: float
    """When."""
    seq: int
    """Of the last change of the engine's state."""
    num_steps: int
    """Steps recorded so far: those that computed something, or preempted somebody."""
    num_outputs: int
    """Of them, those whose output was processed."""
    first_step: int
    """The first step of this slice of the run."""
    first_output: int
    num_arrived: int
    num_ended: int
    num_waiting: int
    num_running: int
    num_in_flight: int
    next_launched: int
    """Where the next step that is launched stands among those under way."""
    unflushed: bool
    """Whether a sequence has left since the last step was scheduled: the engine schedules once more to hear of it."""
    num_in_batch: int
    """Sequences in the step being scheduled."""
    num_tokens_in_batch: int
    num_preempted: int
    num_new_seqs: int
    """Of those in the step, the ones that were waiting."""
    num_admitted: int
    """Sequences that have been admitted at all."""
    num_free_tables: int
    num_free: int
    """Free units of the pool."""
    num_cached: int
    """Of them, those that hold a prefix."""
    num_holes: int
    rover: int
    """End of the last extent that was taken."""
    written: int
    """Tokens computed and not lost, over all tables."""
    requested: int
    """Slots asked for, over all tables."""
    useful: int
    """Of them, those that will be written before their sequence ends."""
    num_leaving: int
    """Surprises that were given up since the last step."""
    num_memory_rows: int
    num_schedule_rows: int
    stalled_head: int
    """Who can never be scheduled."""


class Sequence(Node):
    """One request while it is being served."""

    prompt_tokens: Small
    end_tokens: Small
    """All tokens that it will have, the last output included."""
    limit_tokens: Small
    """The prompt and as many outputs as are allowed: what the scheduler knows beforehand."""
    full_tokens: Small
    """Tokens that are computed for it in the end."""
    is_surprising: bool
    """Whether its stop is noticed one token late."""
    is_refused: bool
    priority: Small
    reservation: Small
    """Slots of its extent."""
    status: Small
    num_tokens: Small
    """Tokens whose values are known."""
    computed: Small
    """Tokens scheduled so far."""
    placeholders: Small
    """Outputs scheduled and not known yet."""
    num_units: Small
    """Blocks, or slots, that it holds."""
    num_registered: Small
    """Leading blocks whose keys are in the prefix cache."""
    place: Small
    """Which of the tables is its own, or where its extent begins."""
    preemptions: Small
    cached_tokens: Small
    open_row: Small
    """The row of the schedule that its next tokens may extend, or -1."""


class Times:
    """When things happened to a request, seconds; NaN where they did not."""

    arrival_s: float
    arrival_seq: int
    first_scheduled_s: float
    first_token_s: float
    finished_s: float
    last_slot_since_s: float
    """Since when it has held the slot of a token that its stop may leave uncomputed; NaN while it does not."""
    last_slot_s: float
    """For how long it held that slot in vain: minus infinity once the token was computed."""


class Launched:
    """A step under way."""

    is_recorded: bool
    done_s: float
    turnaround_s: float
    num_emitting: int


class Block(Node):
    """One block. Free ones stand in a ring in the order in which they will be taken."""

    refs: Small
    """Tables that hold it."""
    key: int
    """The prefix that it holds, or `NO_KEY`."""
    next_alike: Small
    """The next block in its bucket of the prefix cache."""
    previous_alike: Small


class Bucket:
    """Blocks with equal hashes of their keys, first registered first; 0 for none."""

    first: Small
    last: Small


class Hole:
    """Free slots next to each other."""

    address: int
    length: int


class Step:
    """A step as it was scheduled; totals in slots where not said otherwise, as in `Frame`."""

    seq: int
    start_s: float
    prefill_tokens: Small
    num_tokens: Small
    num_scheduled: Small
    running: Small
    waiting: Small
    preempted: Small
    context_tokens: int
    """Slots that the step reads; see `StepShape`, as for the next two."""
    attention_pairs: int
    shared_tokens: int
    num_new_seqs: Small
    free_units: int
    cached_units: int
    unusable_units: int
    num_admitted: int
    """Sequences that have been admitted at all."""
    written: int
    requested: int
    useful: int


class Output:
    """When the output of a step was processed."""

    seq: int
    time_s: float


class MemoryRow:
    """One change of ownership, as in a recording."""

    seq: int
    step: int
    kind: int
    request: int
    position: int
    address: int
    length: int
    cached: int


class ScheduleRow:
    """Steps in a row in each of which a request computes as many tokens, as in a recording."""

    step: Small
    request: Small
    computed_before: Small
    tokens: Small
    repeat: Small
