"""Build an engine from a workload, a policy and a machine.

`EnginePlan` holds all inputs. Its `build` allocates the records of the engine and fills them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.engine import combinations, recorded_rows, records, scheduler
from kvsim.engine.arrays import Numbers, Records, fill, make, make_growing, make_lazily, make_one, numbers
from kvsim.engine.coefficients import step_times
from kvsim.engine.connector import connected, connector_initialization, disaggregated
from kvsim.engine.custom import custom_memory
from kvsim.engine.encoder_records import encoder_cache
from kvsim.engine.engine_settings import Settings
from kvsim.engine.external_records import external_kv
from kvsim.engine.host import host_initialization, tiered
from kvsim.engine.known_requests import Demand
from kvsim.engine.memory import MemoryManager
from kvsim.engine.paged import kv_cache
from kvsim.engine.paged.group_initialization import (
    check_groups,
    frees_after_flight,
    marks_tails,
    one_group,
    records_of_groups,
    settings_of_groups,
)
from kvsim.engine.policy_settings import (
    may_skip_decodes,
    settings_of_connector,
    settings_of_drafts,
    settings_of_images,
    settings_of_loop,
    settings_of_policy,
    settings_of_swap,
)
from kvsim.engine.radix import hierarchical, radix_initialization, request_rows, sglang_scheduler
from kvsim.engine.records import NEVER
from kvsim.engine.reserved import reservations, static_batch
from kvsim.engine.room import Room
from kvsim.engine.state import NO_KEY, Engine
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies import Contiguous, Paged, Pipeline, Policy, Radix, Static
from kvsim.policies.connectors import Connector
from kvsim.policies.drafts import Drafts
from kvsim.policies.encoding import Encoding
from kvsim.policies.releases import rules_of
from kvsim.steptime import StepTimeModel

if TYPE_CHECKING:
    from kvsim.engine.custom.custom_rules import CustomRules
    from kvsim.engine.custom.optimal_eviction import OptimalEviction

STEPS_PER_SLICE = 1 << 14
"""Number of steps after which the caller reads the recorded rows and reports progress."""
FIRST_ROWS = 1 << 16
"""Most rows in a table of recorded rows with which a step may begin; for the schedule, doubled when needed."""
_MOST_LISTED = 1 << 24
"""Longest list of integers of an interpreted engine. Longer ones are NumPy arrays, which are slower, but smaller."""
_ONE_STAGE = Pipeline()


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """All inputs from which an engine is built."""

    demand: Demand
    policy: Policy
    num_units: int
    step_time: StepTimeModel
    _: KW_ONLY
    refused: npt.NDArray[np.bool_]
    """True for each request that is refused when it arrives: bool[num_requests]."""
    unit_bytes: int = 0
    """Bytes of one unit on each GPU."""
    num_gpus: int = 1
    num_layers: int = 1
    """Number of layers of the model. Only the time of copies to host memory depends on it."""
    initial_free: list[int] | None = None
    """The initial free queue: block ids in order of allocation; None for all blocks in ascending order."""
    layout: KVCacheLayout | None = None
    """The KV-cache groups of the model; None for full attention in all layers."""
    pipeline: Pipeline = _ONE_STAGE
    retention_tokens: int | None = None
    """Number of tokens from one boundary to the next, at which blocks of windows and recurrent states stay in the
    prefix cache; 0 if they stay only at the ends of prompts and at junctions (`Sequence.junction`); None if they stay
    at every multiple of `Settings.cache_tokens`.
    """
    answers: bool = False
    """True if `Driver.advance` returns whenever a request has ended, so that its client can act on the answer."""
    lockstep: bool = False
    """True if `Driver.advance` returns after every step, because steps of data-parallel ranks wait for each other."""
    stamp_at_entry: bool = False
    """True if the recorded arrival is the time when the engine queued the request. False: when the client sent it."""
    records_memory: bool = False
    records_schedule: bool = False
    copies_are_timed: bool = True
    """True if the engine's clock decides when a copy between GPU and host ends; False if the caller reports it."""
    checking: bool = False
    """True if `Driver.advance` returns after every step, so that the caller can check the bookkeeping."""
    reports: bool = False
    """True to record events of SGLang's cache (`RadixTables.events`): evictions, duplicates and retractions."""
    window_tokens: int = 0
    """Number of tokens in the attention window, if SGLang has a separate pool for windows; 0 if not."""
    num_window_units: int = 0
    num_moments: int = 1
    """Largest number of events that one call of `Driver.play` takes."""
    drafts: Drafts | None = None
    """Effects of speculative decoding on vLLM's scheduler and cache; None if nothing is drafted."""
    encoding: Encoding | None = None
    """Images of the prompts, and limits of their encoder; None without images."""
    connector: Connector | None = None
    """Settings and requests of a KV connector, which gets KV from a store or another server; None if there is none."""
    rules: CustomRules | None = None
    """Decisions of a custom policy in Python; None for a built-in policy."""
    eviction: OptimalEviction | None = None
    """Eviction rule in place of vLLM's; None for vLLM's. Ignored with `rules`, which include one."""

    @property
    def most_unsure(self) -> int:
        """Largest number of last tokens of a sequence that may or may not be computed before it ends; see `totals`."""
        ahead = isinstance(self.policy, Paged) and self.policy.scheduler.async_scheduling
        return 1 if self.drafts is None else (1 + ahead) * (1 + self.drafts.num_tokens) - 1

    def build(self, *, compiled: bool = False) -> Engine:
        """Build an engine in its initial state; with `compiled`, for machine code.

        Raises:
            BudgetError: the tables of all sequences that may run at once are too large, or the host memory too small.
            UsageError: two settings, or a setting and the model, cannot be combined.
        """
        groups = self.layout or one_group(self.policy)
        self._check(groups)
        room = Room.of(
            self.demand, self.policy, self.num_units, groups, tokens_ahead=self._tokens_ahead,
            most_in_flight=settings_of_loop(self.policy, self.pipeline)["most_in_flight"],
            has_connector=self.connector is not None,
        )  # fmt: skip
        engine = self._empty_engine(groups, room, compiled=compiled)
        engine.state.seq, engine.state.num_free = -1, self.num_units
        engine.state.num_free_places = room.num_places
        engine.state.num_free_host_blocks = engine.settings.host_blocks
        fill(engine.lists, 0, free_place=room.num_places - 1 - np.arange(len(engine.lists)))
        if self.initial_free is not None:
            engine.state.num_free = len(self.initial_free)
        if isinstance(self.policy, Contiguous):
            engine.state.num_holes = _write_free_ranges(engine, self.policy, self.num_units)
        return engine

    def _check(self, layout: KVCacheLayout) -> None:
        policy, is_custom = self.policy, self.rules is not None
        combinations.check_pipeline(policy, self.pipeline, self.drafts, is_custom=is_custom)
        combinations.check_drafts(policy, self.drafts, is_custom=is_custom)
        if not isinstance(policy, Paged):
            return
        release, num_groups = policy.scheduler.vllm, len(layout.groups)
        check_groups(layout, release, caches_prefixes=policy.cache.enable_prefix_caching)
        if not layout.is_uniform:
            combinations.check_several_groups(policy.cache)
        host_initialization.check_offload(policy, num_groups, int(self.demand.prompt.min(initial=2)))
        if self.drafts is not None and policy.cache.enable_prefix_caching:
            self.drafts.check_groups(layout)
        if self.encoding is not None:
            self.encoding.check(release)
        if self.connector is not None:
            self.connector.check(release, num_groups)
            if self.connector.consumes:
                combinations.check_loads(policy, self.pipeline)

    @property
    def _tokens_ahead(self) -> int:
        """Most tokens after its last one for which a sequence may have slots, due to drafts or an end noticed late."""
        if not isinstance(self.policy, Paged):
            return 0
        ahead = self.pipeline.tokens_ahead(async_scheduling=self.policy.scheduler.async_scheduling)
        return ahead + (2 * (1 + self.drafts.lookahead_tokens + self.drafts.num_tokens) if self.drafts else 0)

    def _empty_engine(self, layout: KVCacheLayout, room: Room, *, compiled: bool) -> Engine:
        size, batch, policy, demand = len(self.demand.prompt), room.most_running, self.policy, self.demand
        settings = self._settings(layout, room, compiled=compiled)
        is_custom = self.rules is not None and self.rules.own_units is not None
        times = step_times(self.step_time, compiled=compiled)
        most_drafts = self.most_unsure if self.drafts else 0
        zeros = partial(_zeros, compiled=compiled)
        num_blocks = self.num_units if room.num_places else 0
        num_used = (demand.prompt + demand.output).sum() // max(policy.unit_tokens, 1)
        records_of, lazy_records_of = partial(make, compiled=compiled), partial(make_lazily, compiled=compiled)
        return Engine(
            memory=custom_memory.CUSTOM if is_custom else memory_of(policy, self.connector),
            scheduler=sglang_scheduler.SGLANG if isinstance(policy, Radix) else scheduler.SCHEDULER,
            rules=self.rules or _built_in_rules(self.eviction),
            settings=settings,
            step_time_models=times,
            stages=records_of(records.Stage, len(times)),
            state=make_one(records.State, compiled=compiled),
            sequences=_sequences(demand, policy, self.refused, most_drafts, compiled=compiled),
            times=_times(demand, compiled=compiled),
            unsure=records_of(records.Unsure, (size + 1) * settings.most_unsure),
            lines=records_of(records.Line, size),
            **self._lists_of_steps(settings, batch, compiled=compiled),
            skipped=zeros(2 * size if settings.offloads or settings.counts_flight or settings.max_adapters else 0),
            adapter_passes=zeros(int(np.max(demand.adapter, initial=0)) + 1 if settings.max_adapters else 0),
            drafts_by_batch=numbers(
                np.array(self.drafts.numbers_by_batch(batch) if self.drafts else [], np.int64), compiled=compiled
            ),
            given_drafts=_request_drafts(self.drafts, size, compiled=compiled),
            draft_counts=_numbers_of_drafts(self.drafts, compiled=compiled),
            lists=records_of(records.Lists, max(2 * batch, room.num_places)),
            groups=records_of_groups(
                layout, room.widths, policy, self.retention_tokens, self.pipeline, self.drafts, compiled=compiled
            ),
            tables=_tables(room, compiled=compiled),
            entries=zeros((room.num_places + 1) * room.width),
            prompt_keys=numbers(np.array(demand.keys.values, np.int64), compiled=compiled),
            blocks=_blocks(num_blocks, self.initial_free, int(num_used), compiled=compiled),
            expiry_counts=lazy_records_of(records.ExpiryCount, self.num_units + 1 if settings.has_windows else 0),
            buckets=lazy_records_of(records.Bucket, room.num_buckets),
            **self._optional_parts(settings, room, compiled=compiled),
            holes=records_of(records.Hole, room.num_holes),
            rectangle=make_one(records.Rectangle, compiled=compiled),
            first_uses=_first_uses(demand, policy, compiled=compiled),
            moments=records_of(records.Moment, self.num_moments),
            **self._rows(settings, room, compiled=compiled),
        )

    def _lists_of_steps(self, settings: Settings, batch: int, *, compiled: bool) -> dict[str, Any]:
        """Return fields of `Engine` by name: empty lists for the running sequences, and for the sequences of each step
        in flight. `batch` is the largest number of sequences.
        """
        zeros, in_flight = partial(_zeros, compiled=compiled), settings.most_in_flight * batch
        counted = in_flight if settings.counts_flight else 0
        return {
            "running": zeros(batch),
            "quiet_until": zeros(batch),
            "batch": zeros(batch),
            "batch_tokens": zeros(batch),
            "launched": make(records.Launched, settings.most_in_flight, compiled=compiled),
            "emitting": zeros(in_flight),
            "emitting_drafts": zeros(in_flight if self.drafts else 0),
            "computing": zeros(counted),
            "computing_tokens": zeros(counted),
        }

    def _rows(self, settings: Settings, room: Room, *, compiled: bool) -> dict[str, Any]:
        rows_of = partial(make_growing, compiled=compiled)
        return {
            "steps": rows_of(recorded_rows.Step, STEPS_PER_SLICE),
            "outputs": rows_of(recorded_rows.Output, STEPS_PER_SLICE + settings.most_in_flight),
            "gaps": rows_of(recorded_rows.Gap, STEPS_PER_SLICE + settings.most_in_flight),
            "memory_rows": rows_of(recorded_rows.MemoryRow, _num_memory_rows(room) if self.records_memory else 0),
            "schedule_rows": rows_of(
                recorded_rows.ScheduleRow, 2 * room.most_running + FIRST_ROWS if self.records_schedule else 0
            ),
        }

    def _settings(self, layout: KVCacheLayout, room: Room, *, compiled: bool) -> Settings:
        policy = self.policy
        chosen = settings_of_policy(policy, self.num_units) | settings_of_loop(policy, self.pipeline)
        chosen |= settings_of_groups(layout, policy) | {
            "most_steps": STEPS_PER_SLICE,
            "most_memory_rows": FIRST_ROWS,
            "most_schedule_rows": FIRST_ROWS,
            "max_num_seqs": room.most_running,
            "first_hit": room.num_places * room.width,
            "checking": self.checking,
            "answers": self.answers,
            "lockstep": self.lockstep,
            "records_memory": self.records_memory,
            "records_schedule": self.records_schedule,
            "stamp_at_entry": self.stamp_at_entry,
            "most_unsure": self.most_unsure,
            "most_rows_before_load": FIRST_ROWS + room.rows_of_loads - host_initialization.rows_of_table(room.width),
        }
        if isinstance(policy, Paged):
            chosen |= self._features_of(policy, layout, chosen["most_in_flight"])
        settings = make_one(Settings, compiled=compiled)
        for name, value in chosen.items():
            setattr(settings, name, value)
        settings.windows_wait = isinstance(policy, Paged) and frees_after_flight(layout, policy)
        settings.answers_awaited = settings.num_drafts > 0 or self.connector is not None
        settings.counts_flight = (
            settings.answers_awaited
            or settings.encoder_tokens > 0
            or (settings.windows_wait and settings.most_in_flight > 1)
            or (settings.late_outputs_block and settings.most_in_flight > 2)
        )
        settings.may_skip_decodes = not self.rules and may_skip_decodes(settings)
        return settings

    def _features_of(self, policy: Paged, layout: KVCacheLayout, most_in_flight: int) -> dict[str, Any]:
        """Return the settings of the features that only vLLM's paged memory has, as far as the run uses them."""
        chosen: dict[str, Any] = {}
        if policy.cache.swap_gib:
            chosen |= settings_of_swap(policy.cache, self.unit_bytes)
        if rules_of(policy.scheduler.vllm).retains_windows:
            chosen["retention_tokens"] = NEVER if self.retention_tokens is None else self.retention_tokens
        if self.drafts is not None:
            chosen |= settings_of_drafts(self.drafts, policy) | {"marks_tails": marks_tails(layout, policy)}
        if self.encoding is not None:
            chosen |= settings_of_images(self.encoding, policy)
        if self.connector is not None:
            chosen |= settings_of_connector(self.connector, policy, most_in_flight)
        return chosen

    def _optional_parts(self, settings: Settings, room: Room, *, compiled: bool) -> dict[str, Any]:
        policy, num_units = self.policy, self.num_units
        sizes = (num_units, len(self.demand.prompt), self.unit_bytes)
        has_external = self.connector is not None or host_initialization.has_offload(policy)
        return {
            "external": external_kv(len(self.demand.prompt), compiled=compiled) if has_external else (),
            "host": host_initialization.host_tier(
                policy, *sizes, self.num_gpus, num_layers=self.num_layers, is_timed=self.copies_are_timed,
                compiled=compiled,
            ),
            "connector": connector_initialization.connector_tables(self.connector, policy, *sizes, compiled=compiled),
            "radix": radix_initialization.radix_tables(
                policy, self.demand, num_units, settings.most_in_flight, _num_memory_rows(room),
                windows=(self.num_window_units, self.window_tokens), page_bytes=self.unit_bytes,
                num_layers=self.num_layers, copies_are_timed=self.copies_are_timed, reports=self.reports,
                compiled=compiled,
            ) if isinstance(policy, Radix) else (),
            "encoder": encoder_cache(
                self.encoding, room.most_running, FIRST_ROWS, records=self.records_memory, compiled=compiled
            ),
        }  # fmt: skip


def _num_memory_rows(room: Room) -> int:
    """Return the capacity of the memory table: `FIRST_ROWS` rows, and those that one more step may write."""
    return FIRST_ROWS + 1 + room.rows_of_step


def _built_in_rules(eviction: OptimalEviction | None) -> scheduler.BuiltInRules:
    """Return vLLM's rules. `eviction`, if given, replaces the eviction rule."""
    if eviction is None:
        return scheduler.VLLM
    return replace(
        scheduler.VLLM,
        name="vllm with optimal eviction",
        choose_evicted=eviction.choose_evicted,
        note_cached=eviction.note_cached,
        note_hit=eviction.note_hit,
        note_freed=eviction.note_freed,
    )


def memory_of(policy: Policy, connector: Connector | None = None) -> MemoryManager:
    """Return the kind of memory of a policy, with or without a KV connector."""
    if isinstance(policy, Radix):
        return hierarchical.HIERARCHICAL if policy.cache.enable_hierarchical_cache else request_rows.RADIX
    if isinstance(policy, Static):
        return static_batch.RECTANGLE
    if isinstance(policy, Contiguous):
        return reservations.CONTIGUOUS
    if connector is not None:
        return disaggregated.DISAGGREGATED if connector.link else connected.CONNECTED
    return tiered.TIERED if policy.cache.kv_offloading_size else kv_cache.PAGED


def _request_drafts(drafts: Drafts | None, size: int, *, compiled: bool) -> Records[records.RequestDrafts]:
    located = make(records.RequestDrafts, size + 1 if drafts else 0, compiled=compiled)
    if drafts is not None:
        accepted, proposed = drafts.accepted, drafts.proposed
        fill(
            located, 1, first_accepted=accepted.first, accepted_length=accepted.lengths,
            first_proposed=proposed.first + len(accepted.values), proposed_length=proposed.lengths,
        )  # fmt: skip
    return located


def _numbers_of_drafts(drafts: Drafts | None, *, compiled: bool) -> Numbers:
    parts = [np.zeros(0, np.int64)] if drafts is None else [drafts.accepted.values, drafts.proposed.values]
    return numbers(np.concatenate(parts), compiled=compiled)


def _write_free_ranges(engine: Engine, policy: Contiguous, num_units: int) -> int:
    """Write the free ranges of an empty contiguous memory to `Engine.holes`; return their number.

    There is one range. With the buddy allocator, there is one for each power of two of which `num_units` is the sum,
    the largest first.
    """
    pieces, start = [(0, num_units)], 0
    if policy.cache.fit == "buddy":
        pieces = []
        for bit in reversed(range(num_units.bit_length())):
            if num_units >> bit & 1:
                pieces.append((start, 1 << bit))
                start += 1 << bit
    for index, (address, length) in enumerate(pieces):
        engine.holes[index].address, engine.holes[index].length = address, length
    return len(pieces)


def _zeros(length: int, *, compiled: bool) -> Numbers:
    return numbers(np.zeros(length, np.int64), compiled=compiled or length > _MOST_LISTED)


def _tables(room: Room, *, compiled: bool) -> Records[records.Table]:
    tables = make(records.Table, room.num_places * len(room.widths), compiled=compiled)
    fill(tables, 0, begin=np.cumsum([0, *room.widths * room.num_places])[:-1])
    return tables


def _first_uses(demand: Demand, policy: Policy, *, compiled: bool) -> Any:
    made: Any = np.zeros(2 * int(demand.output.max(initial=1)) if isinstance(policy, Static) else 0)
    return made if compiled else made.tolist()


def _sequences(
    demand: Demand, policy: Policy, refused: npt.NDArray[np.bool_], most_drafts: int, *, compiled: bool
) -> Records[records.Sequence]:
    sequences = make(records.Sequence, len(demand.prompt) + 1, compiled=compiled)
    if isinstance(policy, Radix):
        ahead = not policy.scheduler.disable_overlap_schedule
    else:
        ahead = not isinstance(policy, Static) and policy.scheduler.async_scheduling
    unsure = demand.stops_late.astype(np.int32) if ahead else np.zeros(len(refused), np.int32)
    if most_drafts:  # the last steps verify drafts after the end, up to the longest sequence length
        left = policy.max_model_len - (demand.prompt + demand.output - 1)
        unsure = np.clip(left, 0, most_drafts).astype(np.int32)
    fill(
        sequences,
        1,
        number=np.arange(1, len(sequences)),
        prompt_tokens=demand.prompt,
        end_tokens=demand.prompt + demand.output,
        limit_tokens=demand.prompt + demand.limit,
        full_tokens=demand.prompt + demand.output - 1 + unsure,
        num_unsure=unsure,
        is_refused=refused,
        priority=demand.priority,
        adapter=demand.adapter,
        reservation=demand.reservations(policy) if isinstance(policy, Contiguous) else 0,
        num_tokens=demand.prompt,
        place=request_rows.NO_ROW if isinstance(policy, Radix) else 0,
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


def _blocks(
    num_usable: int, initial_free: list[int] | None, num_used: int, *, compiled: bool
) -> Records[records.Block]:
    """Return the records of all blocks, linked into the free queue: in the order `initial_free`, else by id.

    `num_used` is the number of blocks that the run would use if it freed none.
    """
    ids = np.arange(num_usable + 1)
    queue = ids if initial_free is None else np.array([0, *initial_free])
    columns = {name: np.zeros_like(ids) for name in ("next", "previous")}
    columns["next"][queue], columns["previous"][queue] = np.roll(queue, -1), np.roll(queue, 1)
    columns["key"] = np.full(len(ids), NO_KEY)
    return make_lazily(records.Block, len(ids), compiled=compiled, num_used=num_used, **columns)
