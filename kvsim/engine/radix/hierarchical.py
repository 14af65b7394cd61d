"""The memory of SGLang with HiCache: slots, the radix tree, and copies of its nodes in host memory.

It differs from the radix cache alone in three ways:

- A node that a copy reads or writes is locked, so the scheduler cannot evict it. Its pages still count as cached,
  because no request holds them, and their prefix can be hit.
- A step waits for the pages that it loads, layer by layer.
- The scheduler goes on while copies are in progress, also without requests.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine.clock import next_arrival_s
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix import link_copies, tree_copies
from kvsim.engine.radix.request_rows import RADIX
from kvsim.engine.radix_records import BY_CLOCK
from kvsim.engine.state import Engine

_ENOUGH_IDLE_PASSES = 2
"""Number of consecutive passes of the scheduler without a batch, after which no further pass has an effect until a
request arrives or a copy ends.
"""


@part
def unheld_units(engine: Engine) -> int:
    """Return the number of pages that no request holds: free pages, and pages that only the tree holds."""
    return engine.state.num_free + tree_units(engine)


@part
def tree_units(engine: Engine) -> int:
    """Return the number of pages that only the tree holds. Pages that a copy locks are included."""
    return engine.state.num_cached + engine.radix.state.num_copying


@part
def wait_for_copies(engine: Engine, until_s: float) -> None:
    """Advance the clock to the next arrival or end of a copy, at most to `until_s`. Do nothing if a pass of the
    scheduler may have an effect before, if no copy is in progress, or if the clock does not decide when copies end.
    """
    state, radix = engine.state, engine.radix.state
    is_settled = radix.num_idle_passes >= _ENOUGH_IDLE_PASSES and state.num_in_flight == 0
    if is_settled and tree_copies.has_copies(engine) and engine.radix.settings.copies_end == BY_CLOCK:
        next_s = min(until_s, next_arrival_s(engine), link_copies.next_end_s(engine))
        state.host_s = max(state.host_s, next_s)
        radix.num_idle_passes = 0


@part
def has_room_for_rows(engine: Engine) -> bool:
    """Tell whether the copies that the next pass may find ended can be recorded."""
    return engine.radix.state.num_copy_rows <= engine.radix.settings.most_copy_rows


HIERARCHICAL = replace(
    RADIX,
    name="hierarchical",
    free_units=unheld_units,
    cached_units=tree_units,
    awaits_transfers=tree_copies.has_copies,
    start_transfers=link_copies.start_loads,
    kernels_begin_s=link_copies.kernels_begin_s,
    wait_for_transfers=wait_for_copies,
    has_room_for_rows=has_room_for_rows,
)
"""Memory of SGLang with a host tier. The scheduler calls `tree_copies` to fill and read this tier."""
OF_SGLANG = (RADIX, HIERARCHICAL)
"""Kinds of memory that SGLang has, without and with a host tier."""
