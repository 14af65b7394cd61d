"""Memory as the scheduler, the clock and the account see it: one record of functions for each kind.

Each kind of memory ends its own module with its record: blocks (`kv_cache`), blocks with a second tier on the host
(`tiered`), contiguous reservations (`reservations`), units of a custom allocator (`custom_memory`) and the rectangle of
a static batch (`static_batch`). A kind names the functions that it needs; the others do nothing.

Functions take the engine first, allocate nothing and raise nothing. Machine code is made for one kind at a time, so a
function that does nothing costs nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence

Engine: TypeAlias = Any
"""`state.Engine`, which holds a `MemoryManager` and so knows this module."""

SKIP, STOP = -1, -2
"""Answers of `find_prefix` instead of a number of tokens: the sequence is passed over and keeps its place; nothing more
is admitted in this step."""


@part
def _nothing_found(engine: Engine, sequence: Sequence) -> int:  # noqa: ARG001
    return 0


@part
def _is_ready(engine: Engine, sequence: Sequence) -> bool:  # noqa: ARG001
    return True


@part
def _no_units(engine: Engine, head: Sequence) -> int:  # noqa: ARG001
    return 0


@part
def _no_slots(engine: Engine) -> int:  # noqa: ARG001
    return 0


@part
def _no_tokens(engine: Engine, context_tokens: int) -> int:  # noqa: ARG001
    return 0


@part
def _keep_nothing(engine: Engine, sequence: Sequence, num_tokens: int) -> None:
    pass


@part
def _ignore(engine: Engine, sequence: Sequence) -> None:
    pass


@part
def _wait_for_no_step(engine: Engine, launched: int) -> None:
    pass


@part
def _free_units(engine: Engine) -> int:
    num_free: int = engine.state.num_free
    return num_free


@part
def _do_nothing(engine: Engine) -> None:
    pass


@part
def _never(engine: Engine) -> bool:  # noqa: ARG001
    return False


@part
def _always(engine: Engine) -> bool:  # noqa: ARG001
    return True


@part
def _no_room(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> bool:  # noqa: ARG001
    return False


@part
def _no_more(engine: Engine, sequence: Sequence, num_tokens: int) -> bool:  # noqa: ARG001
    return False


@part
def _wait_for_nothing(engine: Engine, until_s: float) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryManager:
    """The functions of one kind of memory."""

    name: str
    """The kind, in one word."""

    # What a scheduler asks of it.
    take_over: Callable[[Engine, Sequence], bool] = _is_ready
    """Use what a waiting sequence has loaded; return False while it loads, and is passed over."""
    find_prefix: Callable[[Engine, Sequence], int] = _nothing_found
    """Find the leading tokens of a waiting sequence that need not be computed; return their number, `SKIP` or `STOP`.
    """
    admit: Callable[[Engine, Sequence, int, int], bool] = _no_room
    """Allocate room for `num_tokens` tokens of a waiting sequence behind the `computed` ones that `find_prefix` found.

    Return False, and change nothing, where there is no room.
    """
    grow: Callable[[Engine, Sequence, int], bool] = _no_more
    """Allocate room for `num_tokens` more tokens of a running sequence; return False where there is none."""
    cache: Callable[[Engine, Sequence, int], None] = _keep_nothing
    """Let other sequences hit the first `num_tokens` tokens of a running sequence, whose values are known."""
    free: Callable[[Engine, Sequence], None] = _ignore
    """Free all units of a sequence, whose status tells whether it will resume."""
    frees_at_once: Callable[[Engine, Sequence], bool] = _is_ready
    """Tell whether a running sequence may be preempted: its blocks are free then, or that does not matter."""
    expect_return: Callable[[Engine, Sequence], None] = _ignore
    """Prepare for the resumption of a sequence that is being preempted."""

    # What the account asks of it.
    free_units: Callable[[Engine], int] = _free_units
    """Count the units that no table lists, those with a cached prefix included."""
    free_windows: Callable[[Engine], int] = _no_slots
    """Count the units of SGLang's pool of windows that no request holds, those in its tree included."""
    cached_windows: Callable[[Engine], int] = _no_slots
    """Count the units of that pool that only its tree holds."""
    unusable_units: Callable[[Engine, Sequence], int] = _no_units
    """Count the free units in pieces too small for the head of the queue, though their sum would do."""
    expired_slots: Callable[[Engine], int] = _no_slots
    """Count the slots that are held and hold tokens that no later step reads."""
    shared_tokens: Callable[[Engine, int], int] = _no_tokens
    """Count the tokens, among those that a step reads, that several sequences read in the same place."""

    # Transfers between GPU and host.
    awaits_transfers: Callable[[Engine], bool] = _never
    """Tell whether the engine continues for transfers alone, although no sequence computes."""
    awaits_others: Callable[[Engine], bool] = _never
    """Tell whether other servers will free what is held here, at a time that is not known yet."""
    is_asleep: Callable[[Engine], bool] = _never
    """Tell whether nothing happens before a known time, unless another server or a client acts."""
    after_schedule: Callable[[Engine], None] = _do_nothing
    """Begin the transfers of a step that was scheduled."""
    before_update: Callable[[Engine, int], None] = _wait_for_no_step
    """Free the blocks that waited for a step in flight, which the GPU has completed."""
    after_update: Callable[[Engine], None] = _do_nothing
    """End the transfers that are reported with the output that was processed."""
    start_transfers: Callable[[Engine], None] = _do_nothing
    """Put the transfers of the step that was scheduled on the clock of the link."""
    poll_transfers: Callable[[Engine], None] = _do_nothing
    """Report the transfers that have ended when the kernels of a step are launched."""
    wait_for_transfers: Callable[[Engine, float], None] = _wait_for_nothing
    """Advance the clock, to `until_s` at most, while only transfers are in progress."""
    has_room_for_rows: Callable[[Engine], bool] = _always
    """Tell whether the transfers that the next step reports can be written down."""
    has_news: Callable[[Engine], bool] = _never
    """Tell whether other servers have to hear of transfers that a step has begun."""
    is_crowded: Callable[[Engine], bool] = _never
    """Tell whether more transfers began in a step than can be written down."""

    def __repr__(self) -> str:
        return self.name
