"""The interface of a kind of memory: a record of functions that the scheduler, the clock and the totals call.

The record of each kind is at the end of its module, for example `kv_cache` for blocks, `tiered` for blocks with a
second tier on the host, `reservations` for contiguous extents, and `static_batch` for the rectangle of a static batch.
A kind names the functions that it needs; the defaults do nothing.

Functions take the engine first, create no Python objects and raise no exceptions, because they are compiled. Machine
code is made for one kind at a time, so the compiler removes functions that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence

Engine: TypeAlias = Any
"""`state.Engine`. It is `Any` here because `state` imports this module."""

SKIP, STOP = -1, -2
"""Results of `find_prefix` in place of a number: `SKIP` this sequence in this step; `STOP` admitting in it."""


@part
def _none(engine: Engine) -> int:  # noqa: ARG001
    return 0


@part
def _none_of(engine: Engine, sequence_or_tokens: Sequence | int) -> int:  # noqa: ARG001
    return 0


@part
def _free_units(engine: Engine) -> int:
    num_free: int = engine.state.num_free
    return num_free


@part
def _cached_units(engine: Engine) -> int:
    num_cached: int = engine.state.num_cached
    return num_cached


@part
def _at_once(engine: Engine, gpu_s: float) -> float:  # noqa: ARG001
    return 0.0


@part
def _never(engine: Engine) -> bool:  # noqa: ARG001
    return False


@part
def _always(engine: Engine) -> bool:  # noqa: ARG001
    return True


@part
def _is_ready(engine: Engine, sequence: Sequence) -> bool:  # noqa: ARG001
    return True


@part
def _no_room(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:  # noqa: ARG001
    return False


@part
def _no_more(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:  # noqa: ARG001
    return False


@part
def _do_nothing(engine: Engine) -> None:
    pass


@part
def _ignore(engine: Engine, subject: Any) -> None:
    pass


@part
def _keep_nothing(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryManager:
    """Functions of one kind of memory."""

    name: str

    # Called by a scheduler.
    use_load: Callable[[Engine, Sequence], bool] = _is_ready
    """Put any blocks that a waiting sequence has loaded into the prefix cache. Return False while it is loading."""
    find_prefix: Callable[[Engine, Sequence], int] = _none_of
    """Return the number of leading tokens of a waiting sequence that need not be computed, or `SKIP` or `STOP`."""
    admit: Callable[[Engine, Sequence, int, int], bool] = _no_room
    """Allocate memory for `num_tokens` tokens of a waiting sequence, after the `computed` ones that `find_prefix`
    found. Return False, and change nothing, if there is too little memory.
    """
    grow: Callable[[Engine, Sequence, int], bool] = _no_more
    """Allocate memory for `num_tokens` more tokens of a running sequence; return False if there is too little."""
    cache: Callable[[Engine, Sequence, int], None] = _keep_nothing
    """Put the first `num_tokens` tokens of a running sequence, which must be known, into the prefix cache."""
    free: Callable[[Engine, Sequence], None] = _ignore
    """Free all memory of a sequence. If its status is `PREEMPTED`, it will be admitted again."""
    may_preempt: Callable[[Engine, Sequence], bool] = _is_ready
    """Tell whether a running sequence may be preempted. With some connectors, it may not if its blocks would become
    free only after steps in flight.
    """
    expect_return: Callable[[Engine, Sequence], None] = _ignore
    """Prepare for the next admission of a sequence that is being preempted."""

    # Called to fill the row of a step.
    free_units: Callable[[Engine], int] = _free_units
    """Return the number of units that can be allocated. Those that hold a cached prefix are included."""
    cached_units: Callable[[Engine], int] = _cached_units
    """Return the number of free units with a cached prefix."""
    free_windows: Callable[[Engine], int] = _none
    """Return the number of units of SGLang's window pool that are free or only in the tree; 0 for other memory."""
    cached_windows: Callable[[Engine], int] = _none
    """Return the number of units of SGLang's window pool that only the radix tree holds. 0 for other memory."""
    unusable_units: Callable[[Engine, Sequence], int] = _none_of
    """Return the number of free units if the given sequence, the head of the queue, would fit into them, but fits into
    no single free range. Otherwise return 0.
    """
    expired_slots: Callable[[Engine], int] = _none
    """Return the number of slots in tables whose tokens or states no later step will read."""
    shared_tokens: Callable[[Engine, int], int] = _none_of
    """Return by how many tokens the reads of a step exceed the distinct tokens that it reads, because its sequences
    share slots. The second argument is the number of context tokens of the step.
    """

    # Transfers between GPU and host.
    awaits_transfers: Callable[[Engine], bool] = _never
    """Tell whether the engine must go on scheduling because of transfers in progress, although no sequence computes."""
    awaits_others: Callable[[Engine], bool] = _never
    """Tell whether blocks are kept for another server, which reads them at an unknown time."""
    is_asleep: Callable[[Engine], bool] = _never
    """Tell whether the engine does nothing before a known time, unless another server or a client acts earlier."""
    after_schedule: Callable[[Engine], None] = _do_nothing
    """Update the bookkeeping of transfers for the step just scheduled, and decide which of its blocks are stored."""
    before_update: Callable[[Engine, int], None] = _ignore
    """Free the blocks kept for the oldest step in flight. The second argument is its index in `Engine.launched`."""
    after_update: Callable[[Engine], None] = _do_nothing
    """End the transfers that are reported with the output just processed."""
    start_transfers: Callable[[Engine], None] = _do_nothing
    """Put the transfers of the step just scheduled on the link, which sets the times at which they end."""
    kernels_begin_s: Callable[[Engine, float], float] = _at_once
    """Return the earliest time at which the kernels of the step just scheduled can begin, in seconds. The second
    argument is the time that the kernels take, in seconds.
    """
    poll_transfers: Callable[[Engine], None] = _do_nothing
    """Report the transfers that have ended by now. Called when the kernels of the step just scheduled are launched."""
    wait_for_transfers: Callable[[Engine, float], None] = _ignore
    """Advance the clock while only transfers are in progress, at most to the given time in seconds."""
    has_room_for_rows: Callable[[Engine], bool] = _always
    """Tell whether there is room to record the transfers that the next step may report."""
    has_news: Callable[[Engine], bool] = _never
    """Tell whether a step has begun transfers of which other servers must be notified."""

    def __repr__(self) -> str:
        return self.name
