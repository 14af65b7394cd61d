"""Check the tables of a recording against each other, so that no result is computed from contradictory data.

Readers call `check` when they open a recording. They call `check_events` before they print or write results from it. A
`RecordingError` names the file and the first row that breaks a rule.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.by_request import first_rows
from kvsim.recording.check_admissions import check_admissions
from kvsim.recording.check_block_tables import check_block_tables
from kvsim.recording.check_group_tables import check_tables_of_groups
from kvsim.recording.check_images import check_images
from kvsim.recording.check_preemptions import check_preemptions
from kvsim.recording.check_queue import ResidencyRows, check_queue
from kvsim.recording.check_replaced_units import check_replaced_units
from kvsim.recording.check_requests import check_requests
from kvsim.recording.check_reservations import check_reservations
from kvsim.recording.check_schedule import check_agreement, check_schedule, check_steps
from kvsim.recording.check_settings import check_settings, check_waiting
from kvsim.recording.check_times import Ends, check_clock
from kvsim.recording.model import Recording
from kvsim.recording.order import SORT_KEY_LIMIT
from kvsim.recording.rules import require, require_inside, require_of, rises, within
from kvsim.recording.tables import Copies, MemoryKind


def check(recording: Recording, folder: Path) -> None:
    """Check that the tables agree with each other and with the pool. `folder` is named in errors.

    Raises:
        RecordingError: a rule is broken; the message names the file and the first row.
    """
    _check_seq(recording, folder)
    check_requests(recording, folder / "requests.parquet")
    check_steps(recording, folder / "steps.parquet")
    check_settings(recording, folder)
    check_schedule(recording, folder / "schedule.parquet")
    _check_memory(recording, folder / "memory.parquet")
    if recording.meta.pool.groups:
        check_tables_of_groups(recording, folder)
    elif len(recording.memory):  # an engine whose cache has no addresses reports none
        check_block_tables(recording, folder)
    elif recording.meta.pool.num_units is None:
        _check_first_rows(recording, folder / "schedule.parquet")
    elif len(recording.schedule):
        raise RecordingError(f"{folder / 'memory.parquet'} is empty, and schedule.parquet computes in a pool.")
    check_window_units(recording, folder)
    _check_initial(recording, folder / "meta.json")
    if recording.images is not None or recording.encoder is not None:
        check_images(recording, folder)
    if recording.copies is not None:
        _check_copies(recording, recording.copies, folder / "copies.parquet")
    check_agreement(recording, Ends.of(recording), folder)


def check_events(recording: Recording, folder: Path) -> None:
    """Check times and their order, and that running and waiting requests, preemptions and prefix hits follow from the
    recorded events.

    `check` must have passed. Only times are checked if the recording begins in the middle of a run.
    """
    check_clock(recording, folder)
    if recording.meta.begins_in_the_middle:
        return
    check_waiting(recording, folder / "steps.parquet")
    residencies = ResidencyRows.of(recording)
    if len(recording.steps):
        ends = Ends.of(recording)
        check_queue(recording, residencies, ends, folder / "steps.parquet")
        check_preemptions(recording, residencies, ends, folder)
    if recording.meta.pool.num_units is not None:
        check_admissions(recording, residencies, folder)
        check_reservations(recording, residencies, folder)


def _check_seq(recording: Recording, folder: Path) -> None:
    for table in recording.tables:
        for name in (name for name, _ in table.columns() if name.endswith("seq")):
            is_below = getattr(table, name) < SORT_KEY_LIMIT
            require(is_below, folder / f"{table.name}.parquet", f"{name} should be below {SORT_KEY_LIMIT:,}")


def _check_memory(recording: Recording, file: Path) -> None:
    """Check the memory table: its references, the order of its events, and the range of its units."""
    memory, pool = recording.memory, recording.meta.pool
    has_request = memory.kind != MemoryKind.EVICT
    known = within(memory.request, len(recording.requests))
    require(~has_request | known, file, "request is not a row of requests.parquet")
    require(rises(memory.seq), file, "seq should not decrease")
    # A release after the last step has the number of steps as its step.
    require(within(memory.step, len(recording.steps) + 1), file, "step is not a row of steps.parquet")
    # Rows of step i have a seq above edge[i]; all but releases, which may come later, have at most edge[i + 1].
    edge = np.concatenate(([-1], recording.steps.schedule_seq, [np.iinfo(np.int64).max]))
    require_of(
        lambda rows: memory.seq[rows] > edge.take(memory.step[rows]),
        memory, file, "seq should come after that of the step before",
    )  # fmt: skip
    placed = memory.kind != MemoryKind.RELEASE
    if len(recording.steps):
        require_of(
            lambda rows: ~placed[rows] | (memory.seq[rows] <= edge[1:].take(memory.step[rows])),
            memory, file, "seq should not come after that of its step",
        )  # fmt: skip
    if not pool.groups:
        require(
            memory.groups == 0, file, "group is for pools with several KV-cache groups, which meta.json should list"
        )
    require(~placed | (memory.length > 0), file, "length should be positive")
    require(~placed | (memory.position >= 0), file, "position should not be negative")
    if memory.cached is not None and not pool.groups:
        in_range = (memory.cached >= 0) & (memory.cached <= memory.length)
        require(placed | in_range, file, "cached should lie between 0 and length")
    if memory.requested is not None:
        in_range = (memory.requested > 0) & (memory.requested <= memory.length)
        require(~placed | in_range, file, "requested should be positive and not more than length")
    if memory.repeat is not None and not pool.groups:
        _check_growth(recording, file)
    if pool.num_units is not None:
        require_inside(memory, pool, placed, file)
    if not pool.groups:
        check_replaced_units(recording, file)


def _check_growth(recording: Recording, file: Path) -> None:
    """Check memory rows that grow over several steps (`repeat` above 1). Only a pool of single slots without shared or
    cached prefixes may have such rows.
    """
    memory, meta, steps = recording.memory, recording.meta, recording.steps
    assert memory.repeat is not None
    require(memory.repeat > 0, file, "repeat should be positive")
    grows = np.flatnonzero(memory.repeat > 1)
    if not len(grows):
        return
    holds = np.ones(len(memory), np.bool_)
    is_shared = ((memory.kind == MemoryKind.SHARE) | (memory.kind == MemoryKind.EVICT)).any()
    alone = meta.policy_name != "paged" and meta.pool.unit_tokens == 1 and not meta.prefix_caching and not is_shared
    holds[grows] = alone & (memory.kind[grows] == MemoryKind.APPEND)
    require(holds, file, "repeat is for rows that append, in a pool of single slots without prefixes")
    holds[grows] = memory.step[grows].astype(np.int64) + memory.repeat[grows] <= len(steps)
    require(holds, file, "repeat runs past the last step")
    holds[grows] = memory.seq[grows] == steps.schedule_seq[memory.step[grows]]
    require(holds, file, "a row that repeats should have the seq at which its step was scheduled")


def _check_first_rows(recording: Recording, file: Path) -> None:
    _, rows = first_rows(recording.schedule)
    begins = recording.schedule.computed_before[rows] == 0
    require(begins, file, "computed_before should be what the request has computed in earlier rows", rows)


def _check_initial(recording: Recording, file: Path) -> None:
    """Check the lists in `meta.json` of units and requests that were present when the recording began."""
    meta, pool = recording.meta, recording.meta.pool
    for name, units in (("initial_free", meta.initial_free), ("initial_cached", meta.initial_cached)):
        if units is None or pool.num_units is None:
            continue
        inside = (units >= pool.first_unit) & (units < pool.first_unit + pool.num_units)
        if not inside.all() or not np.diff(np.sort(units)).all():
            raise RecordingError(f"{file}: {name} should list each unit of the pool at most once.")
    if meta.initial_free is not None and len(meta.initial_free) != pool.num_units and not meta.begins_in_the_middle:
        raise RecordingError(
            f"{file}: initial_free lists {len(meta.initial_free):,} units, and pool.num_units says "
            f"{pool.num_units or 0:,}."
        )
    if meta.initial_cached is not None and not (meta.begins_in_the_middle and meta.prefix_caching):
        raise RecordingError(f"{file}: initial_cached is for recordings of a prefix cache that begin in the middle.")
    computed = meta.initial_computed
    if computed is not None and not (meta.begins_in_the_middle and len(computed) <= len(recording.requests)):
        raise RecordingError(f"{file}: initial_computed is for requests of a recording that begins in the middle.")


def _check_copies(recording: Recording, copies: Copies, file: Path) -> None:
    requests, num_steps = recording.requests, len(recording.steps)
    ordered = within(copies.begun_step, num_steps) & (copies.reported_step < num_steps)
    ordered &= (copies.reported_step < 0) | (copies.reported_step >= copies.begun_step)
    require(ordered, file, "begun_step and reported_step should be rows of steps.parquet in this order")
    require(within(copies.request, len(requests)), file, "request is not a row of requests.parquet")
    require(copies.slot >= 0, file, "slot should not be negative")


def check_window_units(recording: Recording, folder: Path) -> None:
    """Check the numbers of free units in SGLang's second pool, which holds the keys and values of layers with windows.

    With each unit in the first pool, a table allocates one in the second. So the second pool never holds more units
    than the first, and after scheduling it holds at least the units that `memory.parquet` allocates in the step.
    """
    steps, pool, file = recording.steps, recording.meta.pool, folder / "steps.parquet"
    windows, free, cached = pool.windows, steps.free_window_units, steps.cached_window_units
    if windows is None or not len(steps):
        return
    if free is None or cached is None:
        raise RecordingError(
            f"{file}: meta.json has pool.windows, which needs free_window_units and cached_window_units."
        )
    free, num_units = free.astype(np.int64), windows.num_units
    require((free <= num_units) & (free >= 0), file, f"free_window_units should lie between 0 and {num_units}")
    require((cached <= free) & (cached >= 0), file, "cached_window_units should lie between 0 and free_window_units")
    free_after, cached_after = steps.free_window_units_after, steps.cached_window_units_after
    if free_after is not None and cached_after is not None:
        fits = (cached_after <= free_after) & (free_after <= num_units)
        words = f"free_window_units_after should lie between cached_window_units_after and {num_units}"
        require(fits, file, words)
    assert pool.num_units is not None
    held = num_units - free
    require(held <= pool.num_units - steps.free_units, file, "more units of windows are held than units of the others")
    memory, rows = recording.memory, np.flatnonzero(recording.memory.kind == MemoryKind.APPEND)
    rows = rows[memory.step[rows] < len(steps)]
    allocated = np.bincount(memory.step[rows], weights=memory.length[rows], minlength=len(steps)).astype(np.int64)
    require(held >= allocated, file, "fewer units of windows are held than the step has taken")
    unused = np.concatenate(([num_units], free - cached))
    require(
        unused[:-1] - unused[1:] <= allocated, file, "more units of windows are taken than memory.parquet allocates"
    )
