"""Copies in progress of nodes between device and host: when each begins and ends, and which pages it moves.

Copies in one direction cross the link one after the other. Each takes the bytes of its pages divided by the speed of
the link. Copies do not slow down copies in the other direction, nor kernels.

- A copy begins when the copies before it have ended, and all kernels launched before it have run.
- Stores that follow from one output begin together when the output is processed. Stores that follow from a pass (one
  iteration of SGLang's scheduler) begin together with the next pass.
- The loads of a step begin together when the step is scheduled. Each layer of the step waits for its own pages.
- The host waits for the stores of leaves that are evicted (`write_back`) before it launches the step.
- The scheduler finds the end of a copy at the beginning of its next pass. Copies that begin together end together.

SGLang's own copies were never measured: this is a model of the link alone, without host time.
"""

from __future__ import annotations

import math

from kvsim.engine.arrays import Records
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.radix import tree_nodes
from kvsim.engine.radix_records import BY_CLOCK, IN_NEXT_PASS, ROOT, NodeCopy
from kvsim.engine.state import Engine

_STORE, _LOAD = range(2)
"""Kinds of copies in a recording; see `CopyKind`."""


@part
def begin_store(engine: Engine, node: int) -> None:
    """Begin a copy of a node to the host. Its path stays locked until `finish`; `start_stores` sets its times."""
    radix = engine.radix.state
    tree_nodes.lock_for_copy(engine, node)
    _begin(engine, engine.radix.written[radix.num_storing], node, engine.radix.nodes[node].num_pages)
    engine.radix.written[radix.num_storing].request = engine.radix.nodes[node].owner
    radix.num_storing += 1


@part
def start_stores(engine: Engine) -> None:
    """Put all begun copies to the host on the link, as one copy, if the clock decides when copies end."""
    radix, num_pages = engine.radix.state, 0
    first = radix.num_storing
    while first > 0 and engine.radix.written[first - 1].done_s == math.inf:
        first -= 1
        num_pages += engine.radix.written[first].num_pages
    if num_pages == 0 or engine.radix.settings.copies_end != BY_CLOCK:
        return
    radix.store_free_s = _after_kernels_s(engine, radix.store_free_s) + num_pages * engine.radix.settings.store_page_s
    for index in range(first, radix.num_storing):
        engine.radix.written[index].done_s = radix.store_free_s


@part
def store_now(engine: Engine, node: int) -> None:
    """Copy a node that is being evicted to the host, and record the copy. If the clock decides when copies end
    (`BY_CLOCK`), the host launches the next step only after the end of the copy.
    """
    radix, state = engine.radix.state, engine.state
    copy = engine.radix.written[radix.num_storing]
    _begin(engine, copy, node, engine.radix.nodes[node].num_pages)
    copy.request, copy.awaited_step = engine.radix.nodes[node].owner, state.num_steps
    if engine.radix.settings.copies_end == BY_CLOCK:
        radix.store_free_s = _after_kernels_s(engine, radix.store_free_s)
        radix.store_free_s += copy.num_pages * engine.radix.settings.store_page_s
        radix.awaited_s = radix.store_free_s
    _record(engine, copy, _STORE)


@part
def begin_load(engine: Engine, node: int, num_pages: int, request: int) -> None:
    """Begin to load the last `num_pages` pages of the path to a node, for request number `request`. The path stays
    locked until `finish`.

    `start_loads` puts the load on the link, together with all loads of the step that is being scheduled.
    """
    radix = engine.radix.state
    tree_nodes.lock_for_copy(engine, node)
    _begin(engine, engine.radix.loading[radix.num_loading], node, num_pages)
    engine.radix.loading[radix.num_loading].request = request
    engine.state.num_swapped_in += num_pages
    radix.num_step_load_pages += num_pages
    radix.num_loading += 1


@part
def start_loads(engine: Engine) -> None:
    """Put the loads of the step just scheduled on the link, as one copy. If the step waits for stores of evicted
    leaves, first advance the host's clock to their end.
    """
    radix, state = engine.radix.state, engine.state
    _wait_for_stores(engine)
    state.num_swapped_out = state.num_swapped_in = 0
    if radix.num_step_load_pages == 0:
        return
    radix.load_begin_s = _after_kernels_s(engine, radix.load_free_s)
    radix.load_free_s = radix.load_begin_s + radix.num_step_load_pages * engine.radix.settings.load_page_s
    for index in range(radix.num_loading):
        if engine.radix.loading[index].begun_step == state.num_steps - 1:
            engine.radix.loading[index].done_s = radix.load_free_s


@part
def kernels_begin_s(engine: Engine, gpu_s: float) -> float:
    """Return the earliest time, in seconds, at which the kernels of the step just scheduled can begin so that no layer
    waits for its pages; 0 if the step loads nothing. The kernels take `gpu_s` seconds.

    Pages are loaded layer by layer. The first layer needs its part of the load, the last layer all of it.
    """
    radix, num_layers = engine.radix.state, engine.radix.settings.num_layers
    if radix.num_step_load_pages == 0:
        return 0.0
    radix.num_step_load_pages = 0
    first_s = radix.load_begin_s + (radix.load_free_s - radix.load_begin_s) / num_layers
    return max(first_s, radix.load_free_s + gpu_s / num_layers - gpu_s)


@part
def finish_ended(engine: Engine) -> None:
    """End the copies found ended, at the beginning of a pass; none if the caller reports the ends of copies."""
    radix, settings = engine.radix.state, engine.radix.settings
    _wait_for_stores(engine)  # if the pass before has launched no step
    if settings.copies_end == IN_NEXT_PASS:
        finish(engine, radix.num_storing, radix.num_loading)
    elif settings.copies_end == BY_CLOCK:
        start_stores(engine)
        num_written = _num_ended(engine, engine.radix.written, radix.num_storing)
        finish(engine, num_written, _num_ended(engine, engine.radix.loading, radix.num_loading))


@part
def finish(engine: Engine, num_written: int, num_loaded: int) -> None:
    """End the oldest `num_written` stores and the oldest `num_loaded` loads, and unlock their paths."""
    radix = engine.radix.state
    for index in range(num_written):
        _record(engine, engine.radix.written[index], _STORE)
        tree_nodes.unlock_after_copy(engine, engine.radix.written[index].node)
    for index in range(num_loaded):
        _record(engine, engine.radix.loading[index], _LOAD)
        _finish_load(engine, engine.radix.loading[index].node)
    radix.num_storing = _drop_first(engine.radix.written, radix.num_storing, num_written)
    radix.num_loading = _drop_first(engine.radix.loading, radix.num_loading, num_loaded)


@part
def next_end_s(engine: Engine) -> float:
    """Return the time, in seconds, at which the next copy ends. At least one must be in progress."""
    radix = engine.radix.state
    if radix.num_storing == 0:
        return engine.radix.loading[0].done_s
    if radix.num_loading == 0:
        return engine.radix.written[0].done_s
    return min(engine.radix.written[0].done_s, engine.radix.loading[0].done_s)


@part
def _wait_for_stores(engine: Engine) -> None:
    engine.state.host_s = max(engine.state.host_s, engine.radix.state.awaited_s)


@part
def _begin(engine: Engine, copy: NodeCopy, node: int, num_pages: int) -> None:
    copy.number, copy.node, copy.num_pages = engine.radix.state.next_copy, node, num_pages
    copy.begun_step, copy.awaited_step, copy.done_s = engine.state.num_steps, -1, math.inf
    engine.radix.state.next_copy += 1


@part
def _after_kernels_s(engine: Engine, free_s: float) -> float:
    """Return the time, in seconds, at which a copy begins if it is submitted now: when all kernels launched so far have
    run, and the link, which is busy until `free_s`, is free.
    """
    return max(free_s, engine.state.host_s, engine.stages[0].free_s)


@part
def _num_ended(engine: Engine, copies: Records[NodeCopy], size: int) -> int:
    """Return how many of the first `size` copies have ended. They end in the order of `copies`."""
    num_ended = 0
    while num_ended < size and copies[num_ended].done_s <= engine.state.host_s:
        num_ended += 1
    return num_ended


@part
def _finish_load(engine: Engine, last_node: int) -> None:
    """Remove the locks of a load whose pages end with `last_node`. The loaded nodes are now on device and host."""
    tree_nodes.unlock_after_copy(engine, last_node)
    engine.radix.nodes[last_node].host_locks -= 1
    node = last_node
    while node != ROOT:
        record = engine.radix.nodes[node]
        if record.loaded_for == last_node:
            record.loaded_for = ROOT
            tree_nodes.update_double(engine, node)
        node = record.parent


@part
def _drop_first(copies: Records[NodeCopy], size: int, num_dropped: int) -> int:
    for index in range(num_dropped, size):
        old, new = copies[index], copies[index - num_dropped]
        new.number, new.node, new.num_pages, new.request = old.number, old.node, old.num_pages, old.request
        new.begun_step, new.awaited_step, new.done_s = old.begun_step, old.awaited_step, old.done_s
    return size - num_dropped


@part
def _record(engine: Engine, copy: NodeCopy, kind: int) -> None:
    """Record an ended copy in `RadixTables.copy_rows`: a row per page, node by node from its path's end upwards."""
    if not engine.settings.records_memory:
        return
    radix, node, num_left = engine.radix, copy.node, copy.num_pages
    while num_left > 0:
        record = radix.nodes[node]
        slot = record.first_slot
        for index in range(record.num_pages):
            row = radix.copy_rows[radix.state.num_copy_rows]
            radix.state.num_copy_rows += 1
            row.copy, row.kind, row.request = copy.number, kind, copy.request - 1
            row.begun_step, row.awaited_step = copy.begun_step, copy.awaited_step
            row.reported_step = max(copy.begun_step, engine.state.num_steps - 1)
            row.address, row.slot = radix.node_pages[record.first_entry + index], slot - 1
            slot = radix.next_slot[slot]
        num_left -= record.num_pages
        node = record.parent
