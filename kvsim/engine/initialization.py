"""Build an engine: turn a workload, a policy and a machine into the records that the engine works on.

`EnginePlan` holds all inputs; its `build` allocates and fills the records.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvsim.engine import records, scheduler
from kvsim.engine.arrays import Numbers, Records, fill, make, make_growing, make_one, numbers
from kvsim.engine.coefficients import step_times
from kvsim.engine.connector import connected, connector_initialization, disaggregated
from kvsim.engine.custom import custom_memory
from kvsim.engine.encoder_records import encoder_cache
from kvsim.engine.external_records import external_kv
from kvsim.engine.host import host_initialization, tiered
from kvsim.engine.known_requests import Demand
from kvsim.engine.memory import MemoryManager
from kvsim.engine.paged import kv_cache
from kvsim.engine.paged.group_initialization import (
    check_groups,
    flight_is_counted,
    one_group,
    records_of_groups,
    settings_of_groups,
)
from kvsim.engine.radix import radix_initialization, request_rows, sglang_scheduler
from kvsim.engine.records import NEVER
from kvsim.engine.reserved import reservations, static_batch
from kvsim.engine.state import BEST_FIT, BUDDY, FIRST_FIT, NEXT_FIT, NO_KEY, Engine
from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies import Contiguous, Paged, Pipeline, Policy, Radix, Static
from kvsim.policies.connectors import Connector
from kvsim.policies.drafts import Drafts
from kvsim.policies.encoding import Encoding
from kvsim.policies.kinds import most_running
from kvsim.policies.releases import rules_of
from kvsim.policies.settings import ContiguousSettings, Growth, Order, PagedSettings, Reserve
from kvsim.steptime import StepTimeModel

if TYPE_CHECKING:
    from kvsim.engine.custom.custom_rules import CustomRules
    from kvsim.engine.custom.optimal_eviction import OptimalEviction

STEPS_PER_SLICE = 1 << 14
"""Steps after which recorded rows are drained and progress is reported."""
FIRST_ROWS = 1 << 16
"""Initial capacity for rows of a recording."""
FITS = {"first": FIRST_FIT, "best": BEST_FIT, "next": NEXT_FIT, "buddy": BUDDY}
_MOST_ENTRIES = 1 << 28
"""Largest total number of table entries."""
_MOST_BLOCKS = 1 << 22
"""Largest number of blocks in a pool."""
_MOST_LISTED = 1 << 24
"""Longest list of numbers in an interpreted engine. Longer ones are arrays, which are slower but take less memory."""
_MOST_BUCKET_BITS = 16
"""Largest number of bits of a bucket's index for a radix tree, which has far fewer nodes than pages."""
_GIB, _GIGA = 1 << 30, 1e9

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
    """Requests that are refused when they arrive: bool[n]."""
    unit_bytes: int = 0
    """Number of bytes of one unit on each GPU."""
    num_gpus: int = 1
    num_layers: int = 1
    initial_free: list[int] | None = None
    """The initial free queue; None for all blocks in ascending order."""
    layout: KVCacheLayout | None = None
    """The KV-cache groups of the model; None for full attention in all layers."""
    pipeline: Pipeline = _ONE_STAGE
    retention_tokens: int | None = None
    """Tokens between the boundaries at which windows and states are kept for hits; None for all boundaries."""
    answers: bool = False
    """The engine stops whenever a request has ended, so that a client can act on the answer."""
    lockstep: bool = False
    """The engine stops at every step, because the step waits for those of other ranks."""
    stamp_at_entry: bool = False
    """A request's arrival is recorded when the engine has added it, not when it was sent."""
    records_memory: bool = False
    records_schedule: bool = False
    copies_are_timed: bool = True
    """The engine's clock decides when a copy between GPU and host has ended; if False, the caller reports it."""
    checking: bool = False
    """The engine stops at every step, so that the caller can check its bookkeeping."""
    reports: bool = False
    """Evictions, duplicates and retractions in SGLang's cache are recorded."""
    window_tokens: int = 0
    """Length of the attention window in tokens, where SGLang has a separate pool for windows; 0 for none."""
    num_window_units: int = 0
    """Number of units in the window pool."""
    hicache: tuple[str, int] | None = None
    """SGLang's write policy for a host tier, and the number of units in the tier; None for no host tier."""
    num_moments: int = 1
    """Largest number of events that one call of `Driver.play` replays."""
    drafts: Drafts | None = None
    """Speculative decoding as vLLM schedules it; None without."""
    encoding: Encoding | None = None
    """Images of the prompts; None without."""
    connector: Connector | None = None
    """The exchange of KV with a store or with other servers; None without."""
    rules: CustomRules | None = None
    """A custom policy in Python."""
    eviction: OptimalEviction | None = None
    """An eviction rule in place of vLLM's; ignored with `rules`, which include one."""

    @property
    def most_unsure(self) -> int:
        """Largest number of unsure tokens of a sequence, which may turn out not to be computed; see `totals`."""
        ahead = isinstance(self.policy, Paged) and self.policy.scheduler.async_scheduling
        return 1 if self.drafts is None else (1 + ahead) * (1 + self.drafts.num_tokens) - 1

    def build(self, *, compiled: bool = False) -> Engine:
        """Build an engine in its initial state, to be run interpreted or `compiled`.

        Raises:
            BudgetError: the tables of all sequences that may run at once are too large, or the host memory too small.
            UsageError: two settings, or a setting and the model, cannot be combined.
        """
        _check_pipeline(self.policy, self.pipeline, self.rules)
        _check_drafts(self)
        groups = self.layout or one_group(self.policy)
        if isinstance(self.policy, Paged):
            caches_prefixes = self.policy.cache.enable_prefix_caching
            check_groups(groups, self.policy.scheduler.vllm, caches_prefixes=caches_prefixes)
        room = _Room.of(self, groups)
        engine = self._empty_engine(groups, room, compiled=compiled)
        engine.state.seq, engine.state.num_free = -1, self.num_units
        engine.state.num_free_places = room.places
        engine.state.num_free_host_blocks = engine.settings.host_blocks
        fill(engine.lists, 0, free_place=room.places - 1 - np.arange(len(engine.lists)))
        if self.initial_free is not None:
            engine.state.num_free = len(self.initial_free)
        if isinstance(self.policy, Contiguous):
            engine.state.num_holes = _cut_holes(engine, self.policy, self.num_units)
        return engine

    def _empty_engine(self, layout: KVCacheLayout, room: _Room, *, compiled: bool) -> Engine:
        """Return the records of an engine. Only those of requests, blocks and settings are filled in."""
        size, batch, policy, demand = len(self.demand.prompt), room.batch, self.policy, self.demand
        settings = self._settings(layout, room, compiled=compiled)
        is_custom = self.rules is not None and self.rules.own_units is not None
        times = step_times(self.step_time, compiled=compiled)
        most_drafts = self.most_unsure if self.drafts else 0
        zeros = partial(_zeros, compiled=compiled)
        records_of = partial(make, compiled=compiled)
        return Engine(
            memory=custom_memory.CUSTOM if is_custom else memory_of(policy, self.connector),
            scheduler=sglang_scheduler.SGLANG if isinstance(policy, Radix) else scheduler.SCHEDULER,
            rules=self.rules or _built_in_rules(self.eviction),
            settings=settings,
            step_times=times,
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
            lists=records_of(records.Lists, max(2 * batch, room.places)),
            groups=records_of_groups(
                layout, room.widths, policy, self.retention_tokens, self.pipeline, compiled=compiled
            ),
            tables=_tables(room, compiled=compiled),
            entries=zeros((room.places + 1) * room.width),
            prompt_keys=numbers(np.array(demand.keys.values, np.int64), compiled=compiled),
            blocks=_blocks(self.num_units if room.has_blocks else 0, self.initial_free, compiled=compiled),
            readers=records_of(records.Readers, self.num_units + 1 if settings.has_windows else 0),
            buckets=records_of(records.Bucket, _num_buckets(demand, policy, self.num_units)),
            **self._optional_parts(settings, room, compiled=compiled),
            holes=records_of(records.Hole, room.num_holes),
            rectangle=make_one(records.Rectangle, compiled=compiled),
            first_uses=_first_uses(demand, policy, compiled=compiled),
            moments=records_of(records.Moment, self.num_moments),
            **self._rows(settings, room, compiled=compiled),
        )

    def _lists_of_steps(self, settings: records.Settings, batch: int, *, compiled: bool) -> dict[str, Any]:
        """Return the empty lists of running sequences and of steps in flight, with at most `batch` sequences each."""
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

    def _rows(self, settings: records.Settings, room: _Room, *, compiled: bool) -> dict[str, Any]:
        """Return the empty tables of the rows that one slice of a run records."""
        rows_of = partial(make_growing, compiled=compiled)
        return {
            "steps": rows_of(records.Step, STEPS_PER_SLICE),
            "outputs": rows_of(records.Output, STEPS_PER_SLICE + settings.most_in_flight),
            "memory_rows": rows_of(records.MemoryRow, room.memory_rows if self.records_memory else 0),
            "schedule_rows": rows_of(records.ScheduleRow, 2 * room.batch + FIRST_ROWS if self.records_schedule else 0),
        }

    def _settings(self, layout: KVCacheLayout, room: _Room, *, compiled: bool) -> records.Settings:
        """Return the settings of the engine."""
        policy = self.policy
        chosen = _settings_of(policy, self.num_units) | _loop(policy, self.pipeline)
        chosen |= settings_of_groups(layout, policy) | {
            "max_num_seqs": room.batch,
            "first_hit": room.places * room.width,
            "checking": self.checking,
            "answers": self.answers,
            "lockstep": self.lockstep,
            "records_memory": self.records_memory,
            "records_schedule": self.records_schedule,
            "stamp_at_entry": self.stamp_at_entry,
            "most_unsure": self.most_unsure,
            "most_rows_before_load": FIRST_ROWS + room.rows_of_loads - host_initialization.rows_of_table(room.width),
        }
        if isinstance(policy, Paged) and policy.cache.swap_gib:
            chosen |= _host_memory(policy.cache, self.unit_bytes)
        if isinstance(policy, Paged) and rules_of(policy.scheduler.vllm).retains_windows:
            chosen["retention_tokens"] = NEVER if self.retention_tokens is None else self.retention_tokens
        if self.drafts is not None and isinstance(policy, Paged):
            chosen |= _drafting(self.drafts, policy)
        if self.encoding is not None and isinstance(policy, Paged):
            chosen |= _encoding(self.encoding, policy)
        settings = make_one(records.Settings, compiled=compiled)
        for name, value in chosen.items():
            setattr(settings, name, value)
        waits_for_flight = isinstance(policy, Paged) and flight_is_counted(layout, policy)
        settings.windows_wait = waits_for_flight
        if self.connector is not None and isinstance(policy, Paged):
            _set_connector(settings, self.connector, policy)
        settings.answers_awaited = settings.num_drafts > 0 or self.connector is not None
        settings.counts_flight = (
            settings.answers_awaited
            or settings.encoder_tokens > 0
            or (
                settings.most_in_flight > (1 if waits_for_flight else 2)
                and (waits_for_flight or settings.late_outputs_block)
            )
        )
        settings.leaves_alone = not self.rules and _leaves_alone(settings)
        return settings

    def _optional_parts(self, settings: records.Settings, room: _Room, *, compiled: bool) -> dict[str, Any]:
        """Return the parts that most engines leave empty: the encoder cache, and what single kinds of memory need."""
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
            "radix": radix_initialization.radix(
                policy, self.demand, num_units, settings.most_in_flight, room.memory_rows,
                windows=(self.num_window_units, self.window_tokens), hicache=self.hicache, reports=self.reports,
                compiled=compiled,
            ) if isinstance(policy, Radix) else (),
            "encoder": encoder_cache(
                self.encoding, room.batch, FIRST_ROWS, records=self.records_memory, compiled=compiled
            ),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Numbers of records to allocate for an engine."""

    batch: int
    """Largest number of sequences that run at once."""
    places: int
    """Largest number of tables that exist at once in each group; 0 if memory has no blocks."""
    widths: list[int]
    """Number of entries in the longest table of each group."""
    num_holes: int
    rows_of_loads: int
    """Rows of the memory table that loads write in one step, in addition to the rows of running sequences."""
    memory_rows: int

    @property
    def width(self) -> int:
        """Number of entries of one place, over all groups."""
        return sum(self.widths)

    @property
    def has_blocks(self) -> bool:
        """Tell whether memory is allocated in blocks."""
        return self.places > 0

    @classmethod
    def of(cls, plan: EnginePlan, layout: KVCacheLayout) -> _Room:
        """Return the numbers of records that the engine of a plan needs."""
        policy, size, num_units = plan.policy, len(plan.demand.prompt), plan.num_units
        batch = min(most_running(policy), size)
        places, widths = 0, [1]
        if isinstance(policy, Paged):
            if not layout.is_uniform:
                _check_modelled(policy.cache)
            host_initialization.check_offload(policy, len(layout.groups))
            places = host_initialization.num_places(policy, num_units, size)
            if plan.drafts is not None and policy.cache.enable_prefix_caching:
                plan.drafts.check_groups(policy.scheduler.vllm, layout)
            if plan.encoding is not None:
                plan.encoding.check(policy.scheduler.vllm, num_groups=len(layout.groups))
            if plan.connector is not None:
                plan.connector.check(policy.scheduler.vllm, len(layout.groups))
                places = min(size, 5 * batch + num_units)
            ahead = plan.pipeline.tokens_ahead(async_scheduling=policy.scheduler.async_scheduling)
            ahead += 2 * (1 + plan.drafts.lookahead_tokens + plan.drafts.num_tokens) if plan.drafts else 0
            widths = _table_widths(plan.demand, policy, layout, num_units, places, ahead)
        rows_of_loads = host_initialization.rows_of_loads(
            policy, num_units, size, sum(widths), has_connector=plan.connector is not None
        )
        margin = _memory_margin(policy, batch, sum(widths) + len(layout.groups), num_units) + rows_of_loads
        return cls(
            batch=batch,
            places=places,
            widths=widths,
            num_holes=2 * _most_holes(policy, batch, num_units),
            rows_of_loads=rows_of_loads,
            memory_rows=margin + FIRST_ROWS + 1,
        )


def _built_in_rules(eviction: OptimalEviction | None) -> scheduler.BuiltInRules:
    """Return vLLM's rules, with another rule for `eviction` if one is given."""
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
    """Return the kind of memory of a policy, which also depends on whether there is a connector."""
    if isinstance(policy, Radix):
        return request_rows.RADIX
    if isinstance(policy, Static):
        return static_batch.RECTANGLE
    if isinstance(policy, Contiguous):
        return reservations.CONTIGUOUS
    if connector is not None:
        return disaggregated.DISAGGREGATED if connector.link else connected.CONNECTED
    return tiered.TIERED if policy.cache.kv_offloading_size else kv_cache.PAGED


def _settings_of(policy: Policy, num_units: int) -> dict[str, Any]:
    """Return the settings that follow from the policy."""
    settings: dict[str, Any] = {
        "max_model_len": policy.max_model_len,
        "num_units": num_units,
        "prefill_interval": 1,
        "most_steps": STEPS_PER_SLICE,
        "most_memory_rows": FIRST_ROWS,
        "most_schedule_rows": FIRST_ROWS,
    }
    if isinstance(policy, Static):
        names = ("batch_size", "preallocated", "timeout_s", "sort_by_length", "memory_guard")
        return settings | {name: getattr(policy.scheduler, name) for name in names}
    if isinstance(policy, Radix):
        return settings
    chosen, rules = policy.scheduler, rules_of(policy.scheduler.vllm)
    settings |= {
        "max_num_batched_tokens": chosen.max_num_batched_tokens,
        "max_num_active_seqs": chosen.max_num_active_seqs or chosen.max_num_seqs,
        "long_prefill_token_threshold": chosen.long_prefill_token_threshold,
        "threshold_is_adaptive": chosen.long_prefill_token_threshold > 0
        and chosen.long_prefill_token_threshold_adaptive,
        "prefill_interval": chosen.prefill_schedule_interval,
        "max_adapters": chosen.max_loras if chosen.enable_lora else 0,
        "running_keep_adapters": rules.running_keep_adapters,
        "most_chunk_tokens": min(
            chosen.max_num_batched_tokens, chosen.long_prefill_token_threshold or chosen.max_num_batched_tokens
        ),
        "by_priority": chosen.order is Order.PRIORITY,
        "chunked_prefill": chosen.enable_chunked_prefill,
        "reserve_full_prompt": chosen.reserve_full_prompt and rules.knows_reserve,
        "late_outputs_block": rules.late_outputs_block,
        "skipped_keep_places": rules.skipped_keep_places,
        "keeps_turns": rules.keeps_turns,
        "preempted_self_stops": rules.preempted_self_stops,
        "lone_prompt_is_limited": rules.lone_prompt_is_limited,
    }
    return settings | (_paged_settings(policy, num_units) if isinstance(policy, Paged) else _extents(policy.cache))


def _paged_settings(policy: Paged, num_units: int) -> dict[str, Any]:
    rules = rules_of(policy.scheduler.vllm)
    return {
        "prefix_caching": policy.cache.enable_prefix_caching,
        "watermark_blocks": int(policy.cache.watermark * (num_units + 1)) if rules.knows_watermark else 0,
        "offloads": policy.cache.kv_offloading_size > 0,
        "frees_late": policy.cache.kv_offloading_size > 0,
    }


def _drafting(drafts: Drafts, policy: Paged) -> dict[str, Any]:
    """Return the settings of speculative decoding."""
    chosen, rules = policy.scheduler, rules_of(policy.scheduler.vllm)
    most_running = chosen.max_num_active_seqs or chosen.max_num_seqs
    if drafts.limits_running:
        most_running = min(most_running, chosen.max_num_batched_tokens // drafts.lookahead_tokens)
    by_request = rules.drafting_takes_tokens
    return {
        "num_drafts": drafts.num_tokens,
        "lookahead_tokens": drafts.lookahead_tokens,
        "draft_slots": drafts.step_tokens if by_request else 0,
        "max_num_batched_tokens": chosen.max_num_batched_tokens
        - (0 if by_request else drafts.step_tokens * chosen.max_num_seqs),
        "ahead_tokens": drafts.ahead_tokens,
        "prompt_ahead_tokens": drafts.prompt_ahead_tokens,
        "drops_last_hit": drafts.drops_last_hit,
        "pads_admission": not drafts.by_batch,
        "pads_alone": rules.pads_alone,
        "caches_processed": rules.caches_processed,
        "reserved_draft_tokens": 1 + drafts.num_tokens + drafts.lookahead_tokens if rules.reserves_drafts else 0,
        "max_num_active_seqs": most_running,
    }


def _set_connector(settings: records.Settings, connector: Connector, policy: Paged) -> None:
    """Set the settings of the scheduler that depend on a connector."""
    rules = rules_of(policy.scheduler.vllm)
    settings.frees_late = connector.consumes and bool(policy.scheduler.async_scheduling)
    settings.drops_late = connector.produces and rules.delivers_kept
    settings.caches_processed = rules.caches_processed
    settings.notes_every_step = True


def _encoding(encoding: Encoding, policy: Paged) -> dict[str, Any]:
    """Return the settings of the encoder and its cache."""
    rules = rules_of(policy.scheduler.vllm)
    return {
        "encoder_tokens": encoding.compute_tokens,
        "encoder_cache_tokens": encoding.cache_tokens,
        "keeps_images_whole": encoding.is_whole,
        "cuts_before_images": rules.cuts_before_images,
        "counts_repeated_images": rules.counts_repeated_images,
    }


def _request_drafts(drafts: Drafts | None, size: int, *, compiled: bool) -> Records[records.RequestDrafts]:
    """Return the records that locate the given drafts of each request in `Engine.draft_counts`."""
    located = make(records.RequestDrafts, size + 1 if drafts else 0, compiled=compiled)
    if drafts is not None:
        accepted, proposed = drafts.accepted, drafts.proposed
        fill(
            located, 1, first_right=accepted.first, num_right=accepted.lengths,
            first_proposed=proposed.first + len(accepted.values), num_proposed=proposed.lengths,
        )  # fmt: skip
    return located


def _numbers_of_drafts(drafts: Drafts | None, *, compiled: bool) -> Numbers:
    """Return the given numbers of right drafts of all requests, then those of proposed drafts."""
    parts = [np.zeros(0, np.int64)] if drafts is None else [drafts.accepted.values, drafts.proposed.values]
    return numbers(np.concatenate(parts), compiled=compiled)


def _extents(cache: ContiguousSettings) -> dict[str, Any]:
    return {
        "fit": FITS[cache.fit],
        "reserve": reservations.DOUBLING if cache.reserve is Reserve.DOUBLING else reservations.GIVEN,
        "moves": cache.growth is Growth.MOVE,
        "compaction": cache.compaction,
        "request_level": cache.request_level,
    }


def _loop(policy: Policy, pipeline: Pipeline) -> dict[str, Any]:
    """Return the settings of the engine loop: the steps in flight and their intervals."""
    if isinstance(policy, Static):
        return {"most_in_flight": 1}
    if isinstance(policy, Radix):
        return {"most_in_flight": 1 if policy.scheduler.disable_overlap_schedule else 2}
    ahead = policy.scheduler.async_scheduling
    return {
        "ahead": ahead,
        "most_in_flight": pipeline.most_in_flight(async_scheduling=ahead),
        "decode_interval": pipeline.decode_interval(async_scheduling=ahead),
        "feedback": pipeline.feedback(async_scheduling=ahead),
        "fills_pipeline": rules_of(policy.scheduler.vllm).fills_pipeline,
        "notes_every_step": memory_of(policy) is tiered.TIERED or pipeline.pipeline_parallel_size > 1,
    }


def _check_pipeline(policy: Policy, pipeline: Pipeline, rules: CustomRules | None) -> None:
    """Check that a policy with several pipeline stages has only settings that are modelled for them."""
    if pipeline.pipeline_parallel_size == 1 or isinstance(policy, Static):
        return
    cache = policy.cache if isinstance(policy, Paged) else PagedSettings()
    drafts = isinstance(policy, Paged) and bool(policy.scheduler.speculative_config)
    for what, flag, is_asked in (
        ("a policy of your own", "another --policy", rules is not None),
        ("SGLang's scheduler", "another --policy", isinstance(policy, Radix)),
        ("native offload", "--kv-offloading-size 0", cache.kv_offloading_size > 0),
        ("swapping to host memory", "--swap-gib 0", cache.swap_gib > 0),
        ("speculative decoding", "no --speculative-config", drafts),
    ):
        if is_asked:
            raise UsageError(
                f"{what} is modelled where one stage holds all layers; with pipeline_parallel_size "
                f"{pipeline.pipeline_parallel_size}, take {flag}, or --pipeline-parallel-size 1."
            )


def _check_drafts(plan: EnginePlan) -> None:
    """Check that speculative decoding is combined only with settings that are modelled together with it."""
    if isinstance(plan.policy, Contiguous) and bool(plan.policy.scheduler.speculative_config):
        raise UsageError(
            "speculative decoding is followed in a paged cache; take --policy paged, or no --speculative-config."
        )
    if plan.drafts is None:
        return
    assert isinstance(plan.policy, Paged)
    cache, chosen = plan.policy.cache, plan.policy.scheduler
    if chosen.drafting is not None:
        chosen.drafting.check_starts(chosen.vllm, chosen.max_num_seqs, chosen.max_num_batched_tokens)
    for what, flag, is_asked in (
        ("a policy of your own", "another --policy", plan.rules is not None),
        ("native offload", "no --kv-offloading-size", cache.kv_offloading_size > 0),
        ("swapping to host memory", "no --swap-gib", cache.swap_gib > 0),
    ):
        if is_asked:
            raise UsageError(f"kvsim does not follow speculative decoding and {what} together; take {flag}, or no "
                             "--speculative-config.")  # fmt: skip


def _check_modelled(cache: PagedSettings) -> None:
    """Check that a model with several KV-cache groups has no settings that are modelled only for one group."""
    if cache.swap_gib:
        raise UsageError(
            "swapping to host memory is modelled where every layer keeps every token; this model has several KV-cache "
            "groups, so leave --swap-gib out."
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
    """Return the number of entries in the longest table of every group."""
    tokens = int((demand.prompt + demand.output).max(initial=1)) + tokens_ahead - 1
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
    """Return the largest number of holes, plus one that exists while holes are changed."""
    if not isinstance(policy, Contiguous):
        return 0
    return (batch + 2) * (2 * num_units.bit_length() if policy.cache.fit == "buddy" else 1) + 1


def _cut_holes(engine: Engine, policy: Contiguous, num_units: int) -> int:
    """Write the holes of an empty memory; return their number.

    There is one hole or, for buddies, the largest powers of two that fill the memory.
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


def _leaves_alone(settings: records.Settings) -> bool:
    """Tell whether fast-forward may skip decoding sequences: no setting requires a visit in every step."""
    visits_sequences = (
        settings.lookahead_tokens
        or settings.num_drafts
        or settings.encoder_tokens
        or settings.compaction
        or settings.by_priority
        or settings.notes_every_step
    )
    return not visits_sequences and settings.prefill_interval == 1


def _memory_margin(policy: Policy, batch: int, width: int, num_units: int) -> int:
    """Return the largest number of changes of ownership in one step."""
    if isinstance(policy, Paged):
        return batch * host_initialization.rows_of_table(width)
    if isinstance(policy, Static):
        return 3 * batch
    if isinstance(policy, Radix):
        return radix_initialization.MOST_ROWS_OF_PAGE * num_units + radix_initialization.ROWS_OF_HITS
    # all sequences may be released and admitted, and each admission may move all others
    return 4 * batch * (batch + 1) if policy.cache.compaction else 4 * batch


def _num_buckets(demand: Demand, policy: Policy, num_units: int) -> int:
    if isinstance(policy, Radix):
        return 1 << min(num_units.bit_length(), _MOST_BUCKET_BITS)
    if isinstance(policy, Paged) and policy.cache.enable_prefix_caching:
        return int(1 << num_units.bit_length())
    if isinstance(policy, Static) and policy.scheduler.sort_by_length:
        return int(demand.prompt.max(initial=0)) + 1
    return 1


def _zeros(length: int, *, compiled: bool) -> Numbers:
    return numbers(np.zeros(length, np.int64), compiled=compiled or length > _MOST_LISTED)


def _tables(room: _Room, *, compiled: bool) -> Records[records.Table]:
    """Return the tables of every place, one for each group, with their entries one after the other."""
    tables = make(records.Table, room.places * len(room.widths), compiled=compiled)
    fill(tables, 0, begin=np.cumsum([0, *room.widths * room.places])[:-1])
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


def _blocks(num_usable: int, initial_free: list[int] | None, *, compiled: bool) -> Records[records.Block]:
    """Return the records of all blocks, linked into the free queue in ascending or in the given order."""
    blocks = make(records.Block, num_usable + 1, compiled=compiled)
    ids = np.arange(num_usable + 1)
    queue = ids if initial_free is None else np.array([0, *initial_free])
    following, preceding = np.zeros_like(ids), np.zeros_like(ids)
    following[queue], preceding[queue] = np.roll(queue, -1), np.roll(queue, 1)
    fill(blocks, 0, next=following, previous=preceding, key=NO_KEY)
    return blocks
