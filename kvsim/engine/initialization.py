"""A workload, a policy and a machine as the records that the engine works on."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.engine import groups, host_initialization, records, reservations, speculation
from kvsim.engine.records import NEVER, Numbers, Records, column, fill, make, make_growing, numbers
from kvsim.engine.state import (
    ALIGNED,
    BEST_FIT,
    BUDDY,
    CHUNKED_LOCAL,
    EVERY_STATE,
    FIRST_FIT,
    FULL,
    LIVE_STATE,
    MAMBA,
    NEXT_FIT,
    NO_KEY,
    OWN,
    PAGED,
    RECTANGULAR,
    RESERVED,
    SLIDING_WINDOW,
    TIERED,
    Engine,
)  # fmt: skip
from kvsim.errors import BudgetError, UnknownNameError, UsageError
from kvsim.kv_groups import CacheKind, KVCacheGroup, KVCacheLayout, MambaMode
from kvsim.policies import Contiguous, Paged, Pipeline, Policy, Static
from kvsim.policies.settings import ContiguousSettings, Growth, Order, PagedSettings, Reserve
from kvsim.steptime import COEFFICIENTS, Roofline, Staged, StepTimeModel
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from kvsim.engine.own import OwnRules

STEPS_PER_SLICE = 1 << 14
"""Steps after which what was recorded is taken away, and progress reported."""
FIRST_ROWS = 1 << 16
"""Rows of a recording that there is room for at first."""
FITS = {"first": FIRST_FIT, "best": BEST_FIT, "next": NEXT_FIT, "buddy": BUDDY}
_KINDS = {
    CacheKind.FULL: FULL,
    CacheKind.MLA: FULL,
    CacheKind.SLIDING_WINDOW: SLIDING_WINDOW,
    CacheKind.CHUNKED_LOCAL: CHUNKED_LOCAL,
    CacheKind.MAMBA: MAMBA,
}
_MODES = {MambaMode.NONE: LIVE_STATE, MambaMode.ALL: EVERY_STATE, MambaMode.ALIGN: ALIGNED}
_MOST_ENTRIES = 1 << 28
_MOST_BLOCKS = 1 << 22
_MOST_LISTED = 1 << 24
"""Length from which numbers stand in an array even where the engine is interpreted: it is slower, and takes less room.
"""
_GIB, _GIGA = 1 << 30, 1e9

_ONE_STAGE = Pipeline()

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is known of every request before the run; in tokens, int64[n]."""

    prompt: Column
    output: Column
    """Outputs after which it stops by itself, or because the longest sequence ends."""
    limit: Column
    """Outputs after which it is stopped: what the scheduler knows beforehand."""
    priority: Column
    arrival_s: npt.NDArray[np.float64]
    keys: Ragged[np.int64]
    """One key per full block of every prompt, equal where the prefixes are; empty where nothing is known."""

    @property
    def stops_late(self) -> npt.NDArray[np.bool_]:
        """Where only the output reveals the stop, which is noticed one step late where steps are scheduled ahead."""
        return np.asarray(self.output < self.limit)

    def reservations(self, policy: Contiguous) -> Column:
        """Slots that each request asks for when it is admitted first."""
        wanted = {
            Reserve.MAX: np.full_like(self.prompt, policy.max_model_len),
            Reserve.LIMIT: self.prompt + self.limit,
            Reserve.POW2: self.prompt + _power_of_two_from(self.output),
            # The last token's KV is never written, unless the stop is noticed one scheduled token late.
            Reserve.ORACLE: self.prompt + self.output - 1 + self.stops_late,
            Reserve.DOUBLING: _power_of_two_from(self.prompt + 1),
        }
        return np.asarray(np.minimum(wanted[policy.cache.reserve], policy.max_model_len))

    def misfits(self, policy: Policy, num_units: int, layout: KVCacheLayout | None = None) -> npt.NDArray[np.bool_]:
        """The requests that could never be served, with `num_units` units all for themselves.

        With several groups, those that could hold more at once: the engine looks at nothing less when it starts.
        """
        if isinstance(policy, Static):
            fits = self.prompt + self.limit - 1 <= num_units
        elif isinstance(policy, Contiguous):
            longest = self.reservations(policy)
            if policy.cache.reserve is Reserve.DOUBLING:
                last = _power_of_two_from(self.prompt + self.output + 1)
                longest = np.minimum(last, policy.max_model_len)
            fits = longest <= (1 << num_units.bit_length() - 1 if policy.cache.fit == "buddy" else num_units)
        else:
            # Its last step may verify as many drafted tokens as it leaves room for after them.
            last = self.prompt + self.output - 1 + self.stops_late + 2 * policy.cache.num_speculative_tokens
            last = np.minimum(last, policy.max_model_len)
            if layout is None or layout.is_uniform:
                fits = -(-last // policy.unit_tokens) <= num_units
            else:
                lengths, row = np.unique(last, return_inverse=True)
                most = policy.scheduler.max_num_batched_tokens
                fits = np.array([layout.blocks_for(int(length), most) <= num_units for length in lengths])[row]
        return np.asarray(~fits)


def _power_of_two_from(values: Column) -> Column:
    """The smallest powers of two that are not below `values`, which are positive."""
    # frexp tells how many bits a number has
    return np.asarray(1 << np.frexp(values - 1)[1].astype(np.int64))


def new_engine(
    demand: Demand,
    policy: Policy,
    num_units: int,
    step_time: StepTimeModel,
    *,
    refused: npt.NDArray[np.bool_],
    unit_bytes: int = 0,
    num_gpus: int = 1,
    num_layers: int = 1,
    initial_free: list[int] | None = None,
    layout: KVCacheLayout | None = None,
    pipeline: Pipeline = _ONE_STAGE,
    retention_tokens: int | None = None,
    answers: bool = False,
    stamp_at_entry: bool = False,
    records_memory: bool = False,
    records_schedule: bool = False,
    copies_are_timed: bool = True,
    checking: bool = False,
    num_moments: int = 1,
    compiled: bool = False,
    rules: tuple[OwnRules, ...] = (),
) -> Engine:
    """An engine that has not begun, and knows `demand` as soon as a request is sent.

    Raises:
        BudgetError: the tables of all sequences that may run at once are too large, or the host memory too small.
        UsageError: two settings, or a setting and the model, do not go together.
    """
    size, paged = len(demand.prompt), isinstance(policy, Paged)
    batch = min(policy.scheduler.batch_size if isinstance(policy, Static) else policy.scheduler.max_num_seqs, size)
    layout = layout or _one_group(policy)
    _check_pipeline(policy, pipeline, rules)
    times = step_times(step_time, compiled=compiled)
    widths, places = [1], batch
    if isinstance(policy, Paged):
        if not layout.is_uniform:
            _check_modelled(policy.cache)
        host_initialization.check_offload(policy, len(layout.groups))
        places = host_initialization.num_places(policy, num_units, size)
        ahead = pipeline.tokens_ahead(async_scheduling=policy.scheduler.async_scheduling)
        widths = _table_widths(demand, policy, layout, num_units, places, ahead)
    width = sum(widths)
    settings, state = make(records.Settings, 1, compiled=compiled), make(records.State, 1, compiled=compiled)
    chosen = _settings(policy, num_units, batch, places, width) | {"checking": checking, "answers": answers}
    chosen["most_unsure"] = max(policy.cache.num_speculative_tokens, 1) if isinstance(policy, Paged) else 1
    chosen |= {"records_memory": records_memory, "records_schedule": records_schedule, "stamp_at_entry": stamp_at_entry}
    num_holes = 2 * _most_holes(policy, batch, num_units)
    rows_of_loads = host_initialization.rows_of_loads(policy, num_units, size, width)
    most_rows = FIRST_ROWS + rows_of_loads - host_initialization.rows_of_table(width)
    margin = _memory_margin(policy, batch, width + len(layout.groups)) + rows_of_loads
    if isinstance(policy, Paged) and policy.cache.swap_gib:
        chosen |= _host_memory(policy.cache, unit_bytes)
    chosen |= _grouping(layout, policy) | _loop(policy, pipeline)
    if retention_tokens is not None:
        chosen["retention_tokens"] = retention_tokens
    if rules and rules[0].allocator is not None:
        chosen["memory"] = OWN
    for name, value in chosen.items():
        setattr(settings[0], name, value)
    settings[0].leaves_alone = not rules and _leaves_alone(settings[0])
    state[0].seq, state[0].num_free, state[0].num_free_places = -1, num_units, places
    state[0].num_free_host_blocks = settings[0].host_blocks

    engine = Engine(
        memory=(0,) * settings[0].memory,
        rules=rules,
        settings=settings,
        step_times=times,
        stages=make(records.Stage, len(times), compiled=compiled),
        state=state,
        sequences=_sequences(demand, policy, refused, compiled=compiled),
        times=_times(demand, compiled=compiled),
        unsure=make(records.Unsure, (size + 1) * settings[0].most_unsure, compiled=compiled),
        lines=make(records.Line, size, compiled=compiled),
        running=_numbers(batch, compiled=compiled),
        quiet_until=_numbers(batch, compiled=compiled),
        batch=_numbers(batch, compiled=compiled),
        batch_tokens=_numbers(batch, compiled=compiled),
        emitting=_numbers(settings[0].most_in_flight * batch, compiled=compiled),
        lists=make(records.Lists, max(2 * batch, places), compiled=compiled),
        launched=make(records.Launched, settings[0].most_in_flight, compiled=compiled),
        groups=_groups(layout, widths, policy, retention_tokens, compiled=compiled),
        tables=make(records.Table, places * len(layout.groups) if paged else 0, compiled=compiled),
        entries=_numbers((places + 1) * width if paged else 0, compiled=compiled),
        prompt_keys=numbers(np.array(demand.keys.values, np.int64), compiled=compiled),
        blocks=_blocks(num_units if paged else 0, initial_free, compiled=compiled),
        readers=make(records.Readers, num_units + 1 if settings[0].has_windows else 0, compiled=compiled),
        buckets=make(records.Bucket, _num_buckets(demand, policy, num_units), compiled=compiled),
        host=host_initialization.host_tier(
            policy,
            num_units,
            size,
            unit_bytes,
            num_gpus,
            most_rows,
            num_layers=num_layers,
            is_timed=copies_are_timed,
            compiled=compiled,
        ),
        holes=make(records.Hole, num_holes, compiled=compiled),
        rectangle=make(records.Rectangle, 1, compiled=compiled),
        first_uses=_first_uses(demand, policy, compiled=compiled),
        right_drafts=_right_drafts(policy, compiled=compiled),
        moments=make(records.Moment, num_moments, compiled=compiled),
        steps=make_growing(records.Step, STEPS_PER_SLICE, compiled=compiled),
        outputs=make_growing(records.Output, STEPS_PER_SLICE + settings[0].most_in_flight, compiled=compiled),
        memory_rows=make_growing(
            records.MemoryRow, margin + FIRST_ROWS + 1 if records_memory else 0, compiled=compiled
        ),
        schedule_rows=make_growing(
            records.ScheduleRow, 2 * batch + FIRST_ROWS if records_schedule else 0, compiled=compiled
        ),
    )
    fill(engine.lists, 0, free_place=places - 1 - np.arange(len(engine.lists)))
    if initial_free is not None:
        state[0].num_free = len(initial_free)
    if isinstance(policy, Contiguous):
        state[0].num_holes = len(_first_holes(engine, policy, num_units))
    return engine


def memory_of(policy: Policy) -> int:
    """Which kind of memory a policy has; see `PAGED` and its neighbours in `state`."""
    if isinstance(policy, Static):
        return RECTANGULAR
    if isinstance(policy, Contiguous):
        return RESERVED
    return TIERED if policy.cache.kv_offloading_size else PAGED


def send_all(engine: Engine) -> None:
    """Send every request: it arrives at the time that the demand says."""
    size = len(engine.lines)
    fill(engine.lines, 0, arrived=np.arange(1, size + 1))
    engine.state[0].num_submitted = size


def send_first(engine: Engine, num_users: int, think_s: float) -> None:
    """Send the first request of each of `num_users`, who think for `think_s` seconds after an answer and ask again.

    The engine does the rest by itself. It must not refuse any request: those are answered before earlier ones.
    """
    send_all(engine)
    settings, state = engine.settings[0], engine.state[0]
    settings.users_ask_again, settings.think_s = True, think_s
    fill(engine.times, 0, arrival_s=0.0)  # of requests that have not been sent yet, it is not known
    state.num_submitted = min(num_users, state.num_submitted)


def moved(source: Engine, target: Engine) -> Engine:
    """`target`, a compiled engine that has not begun, at the point where the interpreted `source` is.

    What was recorded has been taken away, but for the rows of the schedule that may still change.
    """
    num_rows = source.state[0].num_schedule_rows
    target.settings[0].most_schedule_rows = source.settings[0].most_schedule_rows
    target = with_room_for_schedule(target, num_rows)
    for name in Engine._fields:
        old, new = getattr(source, name), getattr(target, name)
        if name in ("memory", "rules", "host", "step_times", "steps", "outputs", "memory_rows"):
            continue
        _copy(old, new, num_rows if name == "schedule_rows" else len(old))
    tiers: Any = zip(source.host, target.host, strict=True)
    for old, new in tiers:
        _copy(old, new, len(old))
    return target


def _copy(old: Any, new: Any, end: int) -> None:
    """Copy the first `end` records, or numbers, of an interpreted engine into a compiled one."""
    if new.dtype.names is None:
        new[:end] = old[:end]
        return
    for field in new.dtype.names:
        new[field][:end] = column(old, field, end)


def with_room_for_schedule(engine: Engine, num_rows: int) -> Engine:
    """`engine`, with more rows for the schedule where the `num_rows` that may still change fill half of them."""
    rows, settings = engine.schedule_rows, engine.settings[0]
    if not settings.records_schedule:
        return engine
    if 2 * num_rows > settings.most_schedule_rows:
        settings.most_schedule_rows *= 2
    margin = len(engine.lists)
    if not isinstance(rows, np.ndarray) or len(rows) >= settings.most_schedule_rows + margin:
        return engine
    longer = np.zeros(settings.most_schedule_rows + margin, rows.dtype)
    longer[:num_rows] = rows[:num_rows]
    made: Any = longer
    return engine._replace(schedule_rows=made)


def coefficients_of(step_time: StepTimeModel) -> tuple[Roofline, ...]:
    """The coefficients that all times of a model follow from, of every stage; empty if they do not."""
    times: Any = getattr(step_time, "times", step_time)  # of a profile, or of one that is watched
    stages = times.stages if isinstance(times, Staged) else (times,)
    return stages if all(type(stage) is Roofline for stage in stages) else ()


def step_times(step_time: StepTimeModel, *, compiled: bool) -> Records[Any]:
    """The model, or the numbers among the fields of its coefficients, under their names; of every stage."""
    stages = coefficients_of(step_time)
    if not compiled:
        interpreted: Any = list(stages or (step_time,))
        return interpreted  # type: ignore[no-any-return]
    assert stages, "the caller refuses models of its own"
    kinds: list[Any] = [
        (name, np.int64 if name == "max_captured_tokens" else np.float64, np.shape(getattr(stages[0], name)))
        for name in COEFFICIENTS
    ]
    made: Any = np.zeros(len(stages), np.dtype(kinds))
    for index, stage in enumerate(stages):
        for name in COEFFICIENTS:
            made[name][index] = getattr(stage, name)
    return made  # type: ignore[no-any-return]


def no_times() -> Roofline:
    """Step times for where only the order of things matters: next to nothing takes any time."""
    zeros: dict[str, Any] = {field.name: 0.0 for field in fields(Roofline) if field.default is MISSING}
    hardly_any = {"weights_s": 1e-9, "active_weights_s": 1e-9, "full_seqs": 1.0}
    return Roofline(**zeros | hardly_any | {"label": "no time", "max_captured_tokens": 0})


def _settings(policy: Policy, num_units: int, batch: int, places: int, width: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "memory": memory_of(policy),
        "max_num_seqs": batch,
        "max_model_len": policy.max_model_len,
        "unit_tokens": policy.unit_tokens,
        "num_units": num_units,
        "entries_per_place": width,
        "first_hit": places * width,
        "most_steps": STEPS_PER_SLICE,
        "most_memory_rows": FIRST_ROWS,
        "most_schedule_rows": FIRST_ROWS,
    }
    if isinstance(policy, Static):
        static = policy.scheduler
        return settings | {
            "batch_size": static.batch_size,
            "preallocated": static.preallocated,
            "timeout_s": static.timeout_s,
            "sort_by_length": static.sort_by_length,
            "memory_guard": static.memory_guard,
        }
    scheduler = policy.scheduler
    settings |= {
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "by_priority": scheduler.order is Order.PRIORITY,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "reserve_full_prompt": scheduler.reserve_full_prompt,
    }
    if isinstance(policy, Paged):
        if policy.cache.num_speculative_tokens and scheduler.async_scheduling:
            raise UsageError(
                "speculative decoding is modelled for synchronous scheduling only: a step scheduled ahead cannot know "
                "how many tokens the one before it accepts; set async_scheduling to False (--no-async-scheduling)."
            )
        return settings | {
            "prefix_caching": policy.cache.enable_prefix_caching,
            "watermark_blocks": int(policy.cache.watermark * (num_units + 1)),
            "lookahead_tokens": policy.cache.num_speculative_tokens,
        }
    cache: ContiguousSettings = policy.cache
    if cache.fit not in FITS:
        raise UnknownNameError("fit", cache.fit, FITS)
    return settings | {
        "fit": FITS[cache.fit],
        "reserve": reservations.DOUBLING if cache.reserve is Reserve.DOUBLING else reservations.GIVEN,
        "moves": cache.growth is Growth.MOVE,
        "compaction": cache.compaction,
        "request_level": cache.request_level,
    }


def _loop(policy: Policy, pipeline: Pipeline) -> dict[str, Any]:
    """How far the engine schedules ahead, and what it notes for that."""
    if isinstance(policy, Static):
        return {"most_in_flight": 1}
    ahead = policy.scheduler.async_scheduling
    return {
        "ahead": ahead,
        "most_in_flight": pipeline.most_in_flight(async_scheduling=ahead),
        "decode_interval": pipeline.decode_interval(async_scheduling=ahead),
        "feedback": pipeline.feedback(async_scheduling=ahead),
        "notes_every_step": memory_of(policy) == TIERED or pipeline.pipeline_parallel_size > 1,
    }


def _check_pipeline(policy: Policy, pipeline: Pipeline, rules: tuple[OwnRules, ...]) -> None:
    """Refuse what is a model of an engine with one stage alone."""
    if pipeline.pipeline_parallel_size == 1 or isinstance(policy, Static):
        return
    cache = policy.cache if isinstance(policy, Paged) else PagedSettings()
    for what, flag, is_asked in (
        ("a policy of your own", "another --policy", bool(rules)),
        ("native offload", "--kv-offloading-size 0", cache.kv_offloading_size > 0),
        ("swapping to host memory", "--swap-gib 0", cache.swap_gib > 0),
        ("speculative decoding", "--speculative-tokens 0", cache.num_speculative_tokens > 0),
    ):
        if is_asked:
            raise UsageError(
                f"{what} is modelled where one stage holds all layers; with pipeline_parallel_size "
                f"{pipeline.pipeline_parallel_size}, take {flag}, or --pipeline-parallel-size 1."
            )


def _check_modelled(cache: PagedSettings) -> None:
    """Refuse what is a model of one group of full attention alone."""
    for name, flag, value in (
        ("swapping to host memory", "--swap-gib", cache.swap_gib),
        ("speculative decoding", "--speculative-tokens", cache.num_speculative_tokens),
    ):
        if value:
            raise UsageError(
                f"{name} is modelled where every layer keeps every token; this model has several KV-cache groups, so "
                f"leave {flag} out."
            )


def _host_memory(cache: PagedSettings, block_bytes: int) -> dict[str, Any]:
    num_blocks = int(cache.swap_gib * _GIB) // block_bytes
    if not num_blocks:
        raise BudgetError(
            f"{cache.swap_gib} GiB of host memory hold no block of {block_bytes} bytes; give swap more, or none."
        )
    return {"host_blocks": num_blocks, "host_block_s": block_bytes / (cache.swap_gb_per_s * _GIGA)}


def _table_widths(
    demand: Demand, policy: Paged, layout: KVCacheLayout, num_units: int, places: int, tokens_ahead: int
) -> list[int]:
    """Entries of the longest table of every group."""
    most_drafts = 2 * policy.cache.num_speculative_tokens
    tokens = int((demand.prompt + demand.output).max(initial=1)) + max(most_drafts, tokens_ahead - 1)
    widths = [-(-min(tokens, policy.max_model_len) // group.block_size) for group in layout.groups]
    if layout.is_uniform:
        widths = [min(widths[0], num_units)]
    if num_units > _MOST_BLOCKS:
        raise BudgetError(
            f"the pool has {num_units:,} blocks of {policy.unit_tokens} tokens, and at most {_MOST_BLOCKS:,} are "
            "simulated; take fewer (--num-blocks, --kv-gib), or a larger --block-size."
        )
    width = sum(widths)
    if width * places > _MOST_ENTRIES:
        raise BudgetError(
            f"{places:,} sequences of up to {tokens:,} tokens in blocks of {policy.unit_tokens} need tables of "
            f"{width * places:,} entries, and at most {_MOST_ENTRIES:,} are simulated; lower --max-num-seqs, or take "
            "a larger --block-size."
        )
    return widths


def _most_holes(policy: Policy, batch: int, num_units: int) -> int:
    """Holes that there can be, and one more while they are changed."""
    if not isinstance(policy, Contiguous):
        return 0
    return (batch + 2) * (2 * num_units.bit_length() if policy.cache.fit == "buddy" else 1) + 1


def _first_holes(engine: Engine, policy: Contiguous, num_units: int) -> list[tuple[int, int]]:
    """The holes of an empty range: one, or the largest powers of two that fill it."""
    pieces, start = [(0, num_units)], 0
    if policy.cache.fit == "buddy":
        pieces = []
        for bit in reversed(range(num_units.bit_length())):
            if num_units >> bit & 1:
                pieces.append((start, 1 << bit))
                start += 1 << bit
    for index, (address, length) in enumerate(pieces):
        engine.holes[index].address, engine.holes[index].length = address, length
    return pieces


def _leaves_alone(settings: records.Settings) -> bool:
    """Whether nothing concerns a sequence that only decodes: drafts, moves, victims out of turn and copies would, and
    in a pipeline it does not decode at every step."""
    concerns = settings.lookahead_tokens or settings.compaction or settings.by_priority or settings.notes_every_step
    return not concerns


def _memory_margin(policy: Policy, batch: int, width: int) -> int:
    """The most changes of ownership in one step."""
    if isinstance(policy, Paged):
        return batch * host_initialization.rows_of_table(width)
    if isinstance(policy, Static):
        return 3 * batch
    # every sequence is released and admitted, each of which may move all others
    return 4 * batch * (batch + 1) if policy.cache.compaction else 4 * batch


def _num_buckets(demand: Demand, policy: Policy, num_units: int) -> int:
    if isinstance(policy, Paged) and policy.cache.enable_prefix_caching:
        return int(1 << num_units.bit_length())
    if isinstance(policy, Static) and policy.scheduler.sort_by_length:
        return int(demand.prompt.max(initial=0)) + 1
    return 1


def _numbers(length: int, *, compiled: bool) -> Numbers:
    return numbers(np.zeros(length, np.int64), compiled=compiled or length > _MOST_LISTED)


def _one_group(policy: Policy) -> KVCacheLayout:
    """Full attention in all layers, as in most models."""
    group = KVCacheGroup(kind=CacheKind.FULL, block_size=policy.unit_tokens, num_layers=1, page_bytes=1)
    return KVCacheLayout(
        groups=(group,),
        bytes_per_block=policy.unit_tokens,
        scheduler_block_size=policy.unit_tokens,
        hash_block_size=policy.unit_tokens,
    )


def _grouping(layout: KVCacheLayout, policy: Policy) -> dict[str, Any]:
    """What the groups have in common."""
    tokens, _ = _slots_of_groups(layout)
    caching = isinstance(policy, Paged) and policy.cache.enable_prefix_caching
    boundaries = [group.block_size for group in layout.groups if group.mamba_mode is MambaMode.ALIGN]
    return {
        "num_groups": len(layout.groups),
        "unit_tokens": layout.scheduler_block_size,
        "unit_slots": layout.unit_slots,
        "token_slots": sum(tokens),
        "has_windows": layout.has_windows,
        "cache_tokens": layout.scheduler_block_size,
        "retention_tokens": NEVER,
        "expires_from": min((group.window or 0 for group in layout.groups if _expires(group)), default=0),
        "boundary_tokens": max(boundaries, default=0) if caching else 0,
        "first_leader": _leaders(layout)[0],
    }


def _expires(group: KVCacheGroup) -> bool:
    """Whether tokens, or states, of a group are held for longer than any step reads them."""
    return group.kind is CacheKind.MAMBA or group.window is not None


def _slots_of_groups(layout: KVCacheLayout) -> tuple[list[int], list[int]]:
    """Slots of one token, and of one state, in every group."""
    return [layout.token_slots(group) for group in layout.groups], [layout.state_slots(each) for each in layout.groups]


def _leaders(layout: KVCacheLayout) -> list[int]:
    """The first group of every kind, in the order in which kinds are looked up: full attention goes first."""
    specs = [group.spec for group in layout.groups]
    leaders = [specs.index(spec) for spec in dict.fromkeys(specs)]
    return sorted(leaders, key=lambda leader: _KINDS[layout.groups[leader].kind] != FULL)


def _groups(
    layout: KVCacheLayout, widths: list[int], policy: Policy, retention_tokens: int | None, *, compiled: bool
) -> Records[records.Group]:
    made = make(records.Group, len(layout.groups), compiled=compiled)
    leaders, specs = _leaders(layout), [group.spec for group in layout.groups]
    tokens, states = _slots_of_groups(layout)
    most = policy.scheduler.max_num_batched_tokens if isinstance(policy, Paged) else 1
    for index, group in enumerate(layout.groups):
        record = made[index]
        record.kind, record.block_size, record.window = _KINDS[group.kind], group.block_size, group.window or 0
        record.mode = _MODES[group.mamba_mode or MambaMode.NONE]
        record.cap_blocks = group.blocks_for(policy.max_model_len, most)
        record.hashes_per_block = max(group.block_size // layout.hash_block_size, 1)
        record.token_slots, record.state_slots = tokens[index], states[index]
        record.num_alike = specs.count(specs[index])
        record.alike_slots = sum(
            tokens[other] + states[other] for other in range(len(specs)) if specs[other] == specs[index]
        )
        record.keeps_some = retention_tokens is not None or layout.keeps_some(group)
        record.first_entry = sum(widths[:index])
        alike = [other for other in range(index + 1, len(specs)) if specs[other] == specs[index]]
        record.next_alike = alike[0] if alike else groups.NO_GROUP
        later = leaders[leaders.index(index) + 1 :] if index in leaders else []
        record.next_leader = later[0] if later else groups.NO_GROUP
    return made


def _first_uses(demand: Demand, policy: Policy, *, compiled: bool) -> Any:
    made: Any = np.zeros(2 * int(demand.output.max(initial=1)) if isinstance(policy, Static) else 0)
    return made if compiled else made.tolist()


def _right_drafts(policy: Policy, *, compiled: bool) -> Numbers:
    drafts = np.zeros(0, np.int64)
    if isinstance(policy, Paged) and policy.cache.num_speculative_tokens:
        drafts = speculation.right_drafts(policy.cache.acceptance_rate, policy.cache.acceptance_seed)
    return numbers(drafts, compiled=compiled)


def _sequences(
    demand: Demand, policy: Policy, refused: npt.NDArray[np.bool_], *, compiled: bool
) -> Records[records.Sequence]:
    sequences = make(records.Sequence, len(demand.prompt) + 1, compiled=compiled)
    ahead = not isinstance(policy, Static) and policy.scheduler.async_scheduling
    drafts = policy.cache.num_speculative_tokens if isinstance(policy, Paged) else 0
    unsure = demand.stops_late.astype(np.int32) if ahead else np.full(len(refused), drafts, np.int32)
    fill(
        sequences,
        1,
        prompt_tokens=demand.prompt,
        end_tokens=demand.prompt + demand.output,
        limit_tokens=demand.prompt + demand.limit,
        full_tokens=demand.prompt + demand.output - 1 + unsure,
        num_unsure=unsure,
        is_refused=refused,
        priority=demand.priority,
        reservation=demand.reservations(policy) if isinstance(policy, Contiguous) else 0,
        num_tokens=demand.prompt,
        cache_at=NEVER,
        num_keys=demand.keys.lengths,
        first_key=demand.keys.offsets[:-1],
        open_row=-1,
    )
    return sequences


def _times(demand: Demand, *, compiled: bool) -> Records[records.Times]:
    times = make(records.Times, len(demand.prompt) + 1, compiled=compiled)
    nothing = dict.fromkeys(("first_scheduled_s", "first_token_s", "finished_s"), np.nan)
    fill(times, 1, arrival_s=demand.arrival_s, **nothing)
    return times


def _blocks(num_usable: int, initial_free: list[int] | None, *, compiled: bool) -> Records[records.Block]:
    """All blocks free, in ascending order behind the null block or in the order given."""
    blocks = make(records.Block, num_usable + 1, compiled=compiled)
    ids = np.arange(num_usable + 1)
    queue = ids if initial_free is None else np.array([0, *initial_free])
    following, preceding = np.zeros_like(ids), np.zeros_like(ids)
    following[queue], preceding[queue] = np.roll(queue, -1), np.roll(queue, 1)
    fill(blocks, 0, next=following, previous=preceding, key=NO_KEY)
    return blocks
