"""Effect of another release of vLLM on a load: the decisions that differ, and the rules that cause them.

Every rule that the newer release changed is added to the older release twice: alone, and with all earlier changes. A
rule of which the engine learns nothing, such as one about images where there are none, is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from kvsim.conformance.event_columns import changes_in_words, first_moment
from kvsim.conformance.recorded import Recorded
from kvsim.conformance.verdict import Difference, difference
from kvsim.engine.moments import SCHEDULE
from kvsim.errors import KvsimError
from kvsim.experiments.equal_engines import beginning_of
from kvsim.kv_groups import CachePlan, CacheSettings
from kvsim.metrics import summarize
from kvsim.policies import Paged, Pipeline
from kvsim.policies.releases import Change, net_changes, number_of, rules_of, varied
from kvsim.recording import MemoryKind
from kvsim.recording.row_sinks import RowsInMemory
from kvsim.simulation.setup import Setup
from kvsim.simulation.simulation_run import SimulationRun

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import Machine, Options
    from kvsim.workload import Workload

SetupOfRelease = Callable[[str], tuple[Paged, "Machine"]]
"""Function that returns the policy and the machine for a release of vLLM, given as text such as "0.23"."""
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """First decision in which the runs with two releases differ."""

    step: int
    """Number, from 0, of the step that the decision schedules, or of the last step scheduled before; 0 without one."""
    at_s: float
    decisions: Difference
    """The decision in both runs. In its lines, `recorded` is of the older release, and `simulated` of the newer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Change of one rule between two releases, and its effect on the load."""

    change: Change
    names_first: bool
    """True if this change is named as the reason of the first decision that differs between the releases."""
    first_step: int | None
    """Number, from 0, of the first step that differs if the older release gets only this change; None if none differs.
    """
    alone: Figures
    """Figures of the older release with only this change; empty if it cannot serve the load."""
    together: Figures
    """Figures of the older release with this change and all earlier ones; empty if it cannot serve the load."""
    changes_together: bool
    """True if a decision or figure differs between the runs with all earlier changes, with and without this one."""
    problem: str
    """Reason why the older release with only this change cannot serve the load; empty if it can."""

    @property
    def matters(self) -> bool:
        """True if the change has any effect on the load."""
        return bool(self.problem) or self.first_step is not None or self.changes_together or self.names_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """Result of serving a load with two releases."""

    old: str
    new: str
    before: Figures
    after: Figures
    first: FirstDifference | None
    """First decision that differs between the releases; None if none does."""
    first_step_of_kind: Mapping[str, int]
    """Number, from 0, of the first step in which a kind of decision differs, by kind.

    Kinds that never differ are left out.
    """
    num_changed_requests: Mapping[str, int]
    """Number of requests for which a figure differs, by figure: "preemptions", "cached_tokens" (prefix hits) or
    "ttft_s" (by more than 1 %). Empty if the releases served different numbers of requests.
    """
    effects: tuple[Effect, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        effects = [
            {"since": each.change.since, "rule": each.change.says, "switches": sorted(each.change.values)}
            | {name: getattr(each, name) for name in Effect.__slots__ if name != "change"}
            for each in self.effects
        ]
        return {
            "old": self.old,
            "new": self.new,
            "figures": {self.old: self.before, self.new: self.after},
            "first_difference": None if self.first is None else asdict(self.first),
            "differs_from_step": self.first_step_of_kind,
            "requests_that_differ": self.num_changed_requests,
            "rules": effects,
        }

    def __repr__(self) -> str:
        if self.first is None:
            return f"<Upgrade from {self.old} to {self.new}: every decision is the same>"
        named = "; ".join(each.change.says for each in self.effects if each.names_first)
        return f"<Upgrade from {self.old} to {self.new}: differs from step {self.first.step:,} on: {named}>"


def explain_upgrade(
    old: str, new: str, workload: Workload, setup: SetupOfRelease, **options: Unpack[Options]
) -> Upgrade:
    """Simulate `workload` with two releases, and with each changed rule added to the older one. Return how their
    decisions and figures differ.

    The option `progress` is called with the number of rules that were tried, and the number of all rules.

    Raises:
        UsageError: a release is not known, or `new` is older than `old`.
    """
    number_of(old), number_of(new)  # refuse what is no release
    changes, progress = net_changes(old, new), options.pop("progress", None)

    def run_with(release: str, *known: _Simulated) -> _Simulated:
        return _Simulated.of(workload, *setup(release), options, known)

    before = run_with(old)
    after = run_with(new, before)
    moment = before.first_difference(after)
    tried = changes if before.differs(after) else ()
    return Upgrade(
        old=old,
        new=new,
        before=before.figures,
        after=after.figures,
        first=None if moment is None else before.difference(after, moment),
        first_step_of_kind=before.steps_that_differ(after),
        num_changed_requests=_num_changed_requests(before.recording, after.recording),
        effects=tuple(_effects(old, tried, (before, after), moment, run_with=run_with, progress=progress)),
    )


def _effects(
    old: str, changes: Sequence[Change], both: tuple[_Simulated, _Simulated], moment: int | None, *,
    run_with: _RunWith, progress: Callable[[int, int], None] | None,
) -> Iterator[Effect]:  # fmt: skip
    """Yield the effect of each change, alone and together with all earlier ones.

    `both` are the runs with the releases. `moment` is the index of the first decision that differs between them; None
    if none does.

    A change is named as the reason of this decision (`names_first`) in two cases:

    - The decision is the first that the change alone alters.
    - No earlier change is named. The decision is the first that all earlier changes and this one together alter, but
      not the first that the earlier changes alter without it.
    """
    before, last, together, is_named = both[0], both[0], dict[str, Any](), False
    for number, change in enumerate(changes):
        if progress is not None:
            progress(number, len(changes))
        own = change.values
        together |= own
        alone, problem = _tried(run_with, varied(old, own), both)
        known = (*both, last) if alone is None else (*both, last, alone)
        joint = alone if number == 0 else _tried(run_with, varied(old, together), known)[0]
        first = None if alone is None else before.first_difference(alone)
        names_first = moment is not None and first == moment
        if joint is not None and not is_named and moment is not None and not names_first:
            names_first = before.first_difference(joint) == moment != before.first_difference(last)
        is_named = is_named or names_first
        yield Effect(
            change=change,
            names_first=names_first,
            first_step=None if alone is None or first is None else before.step_at(first, alone),
            alone={} if alone is None else alone.figures,
            together={} if joint is None else joint.figures,
            changes_together=joint is not None and last.differs(joint),
            problem=problem,
        )
        last = joint or last


def _tried(run_with: _RunWith, release: str, known: Sequence[_Simulated]) -> tuple[_Simulated | None, str]:
    try:
        return run_with(release, *known), ""
    except KvsimError as error:
        return None, str(error)


_RunWith = Callable[..., "_Simulated"]
"""Function that returns the run with a release, which it may take from other runs, its further arguments."""


class _Simulated:
    """Decisions and figures of one simulated run."""

    @classmethod
    def of(
        cls, workload: Workload, policy: Paged, machine: Machine, options: Options, known: Sequence[_Simulated]
    ) -> _Simulated:
        """Simulate `workload`; if a run of `known` has an equal engine, take its decisions instead."""
        rows = RowsInMemory()
        run = SimulationRun(Setup.of(workload, policy, machine, options, records=True), [rows])
        beginning = beginning_of(run.engines[0], run.setup.times.step_time)
        for other in known:
            if other._beginning == beginning:
                found = copy(other)
                found.figures = other.figures | _sizes(policy, machine)
                return found
        run.finish()
        return cls(rows.finish(run.meta(), name=run.setup.name), beginning, policy, machine)

    def __init__(self, recording: Recording, beginning: tuple[Any, ...], policy: Paged, machine: Machine) -> None:
        self.recording, self._beginning = recording, beginning
        recorded = Recorded(recording)
        self._timeline = recorded.timeline
        events = recorded.events(0, len(self._timeline))
        self._events = replace(events, steps=events.steps[:, :4])  # free blocks follow from the decisions
        self.figures = _sizes(policy, machine) | _figures(recording)

    def differs(self, other: _Simulated) -> bool:
        return self.first_difference(other) is not None or repr(self.figures) != repr(other.figures)

    def first_difference(self, other: _Simulated) -> int | None:
        """Return the index of the first decision in which two runs differ; None if all are equal."""
        return self._events.first_difference(other._events)

    def step_at(self, moment: int, other: _Simulated) -> int:
        """Return the number, from 0, of the step to which the decision at index `moment` belongs: the last one
        scheduled by then, or 0 if there is none.

        If this run ended before this decision, the step is looked up in `other`.
        """
        timeline = self._timeline if moment < len(self._timeline) else other._timeline
        steps = np.flatnonzero(timeline.kind[: moment + 1] == SCHEDULE)
        return int(timeline.row[steps[-1]]) if len(steps) else 0

    def steps_that_differ(self, other: _Simulated) -> dict[str, int]:
        """Return, by kind of decision, the first step in which it differs, in ascending order; others are left out."""
        found = {}
        for name, ours in self._kinds().items():
            theirs = other._kinds()[name]
            moment = first_moment(ours, theirs)
            if moment is not None:
                found[name] = self.step_at(moment, other)
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    def _kinds(self) -> dict[str, Any]:
        events = self._events
        kind = events.changes[:, 1]
        return {
            "requests and tokens of a step": events.batch,
            "preemptions": events.steps[events.steps[:, 3] > 0][:, [0, 3]],
            "prefix hits": events.changes[kind == MemoryKind.SHARE],
            "blocks handed out": events.changes[kind == MemoryKind.APPEND],
            "blocks given back": events.changes[kind == MemoryKind.RELEASE],
            "prefixes that lose their blocks": events.evicted,
        }

    def difference(self, other: _Simulated, moment: int) -> FirstDifference:
        """Describe the decision `moment`, the first one that differs, in both runs."""
        step = self.step_at(moment, other)
        longer = self if step < len(self.recording.steps) else other
        is_schedule = moment < len(longer._timeline) and longer._timeline.kind[moment] == SCHEDULE
        return FirstDifference(
            step=step,
            at_s=float(longer.recording.steps.start_s[step]),
            decisions=difference(
                f"step {step:,}" if is_schedule else f"after step {step:,} was scheduled",
                self._in_words(moment),
                other._in_words(moment),
            ),
        )

    def _in_words(self, moment: int) -> dict[str, Any]:
        names, events = self.recording.requests.id.tolist(), self._events
        batch, steps = (rows[rows[:, 0] == moment] for rows in (events.batch, events.steps))
        return {
            "is scheduled": bool(len(steps)),
            "preempted": int(steps[:, 3].sum()),
            "scheduled": [f"{names[row]}: {tokens} after {done}" for _, row, tokens, done in batch.tolist()],
            "memory": changes_in_words(events.changes_at(moment), names),
            "evicted": events.evicted_at(moment),
            "running": int(steps[:, 1].sum()),
            "waiting": int(steps[:, 2].sum()),
        }


def _sizes(policy: Paged, machine: Machine) -> dict[str, float]:
    """Return the number of blocks of the pool, and other figures about the pool by name, as vLLM logs them at startup.

    The names of sizes end in their units.
    """
    limits, release = machine.limited(policy).scheduler, policy.scheduler.vllm
    pool, layout = machine.pool(policy), machine.layout(policy)
    assert isinstance(limits, type(policy.scheduler))
    assert layout is not None
    assert pool.num_units is not None  # a paged pool has both
    in_flight = Pipeline.of(machine.model, release).max_in_flight_tokens(limits)
    settings = CacheSettings(max_model_len=limits.max_model_len, max_num_batched_tokens=in_flight)
    num_blocks, size = pool.num_units + pool.first_unit, pool.bytes_per_unit
    plan = CachePlan(layout=layout, num_blocks=num_blocks, bytes_per_block=(size,), settings=settings)
    return {
        "num_blocks": num_blocks,
        "gpu_kv_cache_size_tokens": plan.num_tokens if rules_of(release).logs_longest else plan.divided_tokens,
        "max_concurrency": plan.concurrency,
        "longest_sequence_bytes": plan.blocks_for(limits.max_model_len) * size,
    }


def _figures(recording: Recording) -> dict[str, float]:
    summary = summarize(recording)
    return {
        "num_preemptions": summary.num_preemptions,
        "prefix_hit_rate": summary.prefix_hit_rate,
        "vain_tokens": summary.vain_tokens,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "duration_s": summary.duration_s,
        "ttft_mean_s": summary.ttft_s.mean,
        "ttft_p99_s": summary.ttft_s.p99,
        "tpot_mean_s": summary.tpot_s.mean,
    }


def _num_changed_requests(before: Recording, after: Recording) -> dict[str, int]:
    old, new = before.requests, after.requests
    if len(old) != len(new):
        return {}
    order, other = (np.argsort(requests.id, kind="stable") for requests in (old, new))
    was, became = (
        requests.first_token_s[rows] - requests.arrival_s[rows] for requests, rows in ((old, order), (new, other))
    )
    return {
        "preemptions": int((old.preemptions[order] != new.preemptions[other]).sum()),
        "cached_tokens": int((old.cached_tokens[order] != new.cached_tokens[other]).sum()),
        "ttft_s": int((~np.isclose(was, became, rtol=0.01, atol=1e-6, equal_nan=True)).sum()),
    }
