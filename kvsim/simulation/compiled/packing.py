"""A workload, a policy and a machine as the arrays that the compiled engine works on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.policies import Contiguous, Paged
from kvsim.recording import Pool
from kvsim.scheduling.settings import Order, Reserve
from kvsim.simulation.compiled import records
from kvsim.simulation.compiled.engine import BEST_FIT, FIRST_FIT, NEXT_FIT, NO_KEY, Engine
from kvsim.simulation.compiled.records import Block, Records, Sequence, Times, array_of, make
from kvsim.steptime import Roofline
from kvsim.workload import Ragged, Workload

STEPS_PER_SLICE = 1 << 14
FITS = {"first": FIRST_FIT, "best": BEST_FIT, "next": NEXT_FIT}
FIRST_ROWS = 1 << 16
"""Rows of a recording that there is room for at first."""

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """What is known of every request before the run; in tokens, int64[n]."""

    prompt: Column
    output: Column
    """Cut where the longest sequence ends, as is the limit."""
    limit: Column
    surprise: Column
    """1 where only the output reveals the stop, which is noticed one step late where steps are scheduled ahead."""

    @classmethod
    def of(cls, workload: Workload, max_model_len: int) -> Lengths:
        """The lengths of `workload` where no sequence is longer than `max_model_len`."""
        prompt = workload.prompt_tokens.astype(np.int64)
        longest = np.maximum(max_model_len - prompt, 1)
        output, limit = np.minimum(workload.output_tokens, longest), np.minimum(workload.max_tokens, longest)
        return cls(prompt=prompt, output=output, limit=limit, surprise=(output < limit).astype(np.int64))

    def reservations(self, policy: Contiguous) -> Column:
        """Slots that each request asks for, as in `ContiguousManager`."""
        reserve, longest = policy.cache.reserve, policy.max_model_len
        wanted = {
            Reserve.MAX: np.full_like(self.prompt, longest),
            Reserve.LIMIT: self.prompt + self.limit,
            # frexp tells how many bits a number has
            Reserve.POW2: self.prompt + (1 << np.frexp(self.output - 1)[1].astype(np.int64)),
            Reserve.ORACLE: self.prompt + self.output - 1 + self.surprise,
        }
        reservations: Column = np.minimum(wanted[reserve], longest)
        return reservations

    def misfits(self, policy: Paged | Contiguous, pool: Pool) -> npt.NDArray[np.bool_]:
        """The requests that could never be served; see `Arrivals.check`."""
        assert pool.num_units is not None
        if isinstance(policy, Contiguous):
            fits = self.reservations(policy) <= pool.num_units
        else:
            last = np.minimum(self.prompt + self.output - 1 + self.surprise, policy.max_model_len)
            fits = -(-last // policy.unit_tokens) <= pool.num_units
        return ~fits | (self.prompt >= policy.max_model_len)


def table_width(lengths: Lengths, policy: Paged | Contiguous, pool: Pool) -> int:
    """Blocks that the longest request may hold."""
    assert pool.num_units is not None
    if isinstance(policy, Contiguous):
        return 1
    longest = min(int((lengths.prompt + lengths.output).max()), policy.max_model_len)
    return min(-(-longest // policy.unit_tokens), pool.num_units)


def num_running(workload: Workload, policy: Paged | Contiguous) -> int:
    """The most sequences that can run at once."""
    return min(policy.scheduler.max_num_seqs, len(workload))


def pack(
    workload: Workload,
    lengths: Lengths,
    policy: Paged | Contiguous,
    pool: Pool,
    times: Roofline,
    *,
    keys: Ragged[np.int64],
    concurrency: int | None,
    stamp_at_entry: bool,
    recording: bool,
) -> Engine:
    """An engine that has not begun; `keys` are those of the prompts' full blocks."""
    assert pool.num_units is not None
    size, batch, width = len(workload), num_running(workload, policy), table_width(lengths, policy, pool)
    settings, state, holes = make(records.Settings, 1), make(records.State, 1), make(records.Hole, batch + 2)
    for name, value in _settings(policy, pool, size, batch).items():
        setattr(settings[0], name, value)
    settings[0].limit = size if concurrency is None else concurrency
    settings[0].stamp_at_entry, settings[0].closed_loop = stamp_at_entry, concurrency is not None
    settings[0].recording = recording
    state[0].seq, state[0].num_free, state[0].num_free_tables = -1, pool.num_units, batch
    paged = isinstance(policy, Paged)
    if not paged:
        state[0].num_holes, holes[0].length = 1, pool.num_units
    caching = isinstance(policy, Paged) and policy.cache.enable_prefix_caching
    return Engine(
        settings=settings,
        coefficients=coefficients(times),
        state=state,
        sequences=_sequences(workload, lengths, policy, pool),
        times=_times(workload, open_loop=concurrency is None),
        running=np.zeros(batch, np.int32),
        heap=np.zeros(size if policy.scheduler.order is Order.PRIORITY else 0, np.int32),
        batch=np.zeros(batch, np.int32),
        batch_tokens=np.zeros(batch, np.int32),
        leaving=np.zeros(2 * batch, np.int32),
        launched=make(records.Launched, 2),
        emitting=np.zeros((2, batch), np.int32),
        tables=np.empty((batch if paged else 1, width), np.int32),
        free_tables=np.arange(batch, dtype=np.int32)[::-1].copy(),
        hits=np.zeros(width, np.int32),
        prompt_keys=keys.values,
        key_offsets=keys.offsets,
        blocks=_blocks(pool.num_units if paged else 0),
        buckets=make(records.Bucket, 1 << pool.num_units.bit_length() if caching else 1),
        holes=holes,
        steps=make(records.Step, STEPS_PER_SLICE),
        outputs=make(records.Output, STEPS_PER_SLICE + 1),
        memory_rows=make(records.MemoryRow, memory_margin(batch, width) + FIRST_ROWS if recording else 0),
        schedule_rows=make(records.ScheduleRow, 2 * batch + FIRST_ROWS if recording else 0),
    )


def memory_margin(batch: int, width: int) -> int:
    """The most changes of ownership in one step: every sequence gets a whole table, block by block, and is released."""
    return batch * (3 * width + 2)


def with_room_for_schedule(engine: Engine) -> Engine:
    """`engine`, with more rows for the schedule where those that may still change have filled half of them."""
    num_rows = engine.state[0].num_schedule_rows
    if 2 * (num_rows + len(engine.running)) <= len(engine.schedule_rows) or not len(engine.schedule_rows):
        return engine
    rows = make(records.ScheduleRow, 2 * len(engine.schedule_rows))
    array_of(rows)[:num_rows] = array_of(engine.schedule_rows, num_rows)
    return engine._replace(schedule_rows=rows)


def _settings(policy: Paged | Contiguous, pool: Pool, size: int, batch: int) -> dict[str, Any]:
    assert pool.num_units is not None
    scheduler = policy.scheduler
    return {
        "num_requests": size,
        "max_num_seqs": batch,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": scheduler.max_model_len,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "ahead": scheduler.async_scheduling,
        "by_priority": scheduler.order is Order.PRIORITY,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "reserve_full_prompt": scheduler.reserve_full_prompt,
        "contiguous": isinstance(policy, Contiguous),
        "fit": 0 if isinstance(policy, Paged) else FITS[policy.cache.fit],
        "unit_tokens": pool.unit_tokens,
        "num_units": pool.num_units,
        "prefix_caching": isinstance(policy, Paged) and policy.cache.enable_prefix_caching,
        "watermark_blocks": int(policy.cache.watermark * (pool.num_units + 1)) if isinstance(policy, Paged) else 0,
    }


def coefficients(times: Roofline) -> Records[Any]:
    """The numbers among the fields of `times`, under their names."""
    values = {
        field.name: getattr(times, field.name) for field in fields(times) if field.name not in ("label", "calibrated")
    }
    kinds: list[Any] = [
        (name, np.int64 if name == "max_captured_tokens" else np.float64, np.shape(value))
        for name, value in values.items()
    ]
    record = np.zeros(1, np.dtype(kinds))
    for name, value in values.items():
        record[name] = value
    return record


def _sequences(workload: Workload, lengths: Lengths, policy: Paged | Contiguous, pool: Pool) -> Records[Sequence]:
    sequences = make(records.Sequence, len(workload) + 1)
    all_but_end = array_of(sequences)[1:]
    surprise = lengths.surprise if policy.scheduler.async_scheduling else np.zeros_like(lengths.surprise)
    columns = {
        "prompt_tokens": lengths.prompt,
        "end_tokens": lengths.prompt + lengths.output,
        "limit_tokens": lengths.prompt + lengths.limit,
        "full_tokens": lengths.prompt + lengths.output - 1 + surprise,
        "is_surprising": surprise > 0,
        "is_refused": lengths.misfits(policy, pool),
        "priority": workload.priority,
        "reservation": lengths.reservations(policy) if isinstance(policy, Contiguous) else 0,
        "num_tokens": lengths.prompt,
        "open_row": -1,
    }
    for name, values in columns.items():
        all_but_end[name] = values
    return sequences


def _times(workload: Workload, *, open_loop: bool) -> Records[Times]:
    times = make(records.Times, len(workload) + 1)
    array_of(times)["arrival_s"][1:] = workload.arrival_s if open_loop else 0.0
    for name in ("first_scheduled_s", "first_token_s", "finished_s", "last_slot_since_s"):
        array_of(times)[name] = np.nan
    return times


def _blocks(num_usable: int) -> Records[Block]:
    """All blocks free, in ascending order behind the null block."""
    blocks = make(records.Block, num_usable + 1)
    numbers = np.arange(num_usable + 1)
    for name, values in (("next", np.roll(numbers, -1)), ("previous", np.roll(numbers, 1)), ("key", NO_KEY)):
        array_of(blocks)[name] = values
    return blocks
