"""One server under one load, simulated: the figures that decide whether it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import KvsimError
from kvsim.fitting.load import steady
from kvsim.fitting.server import paced
from kvsim.fitting.shares import TimeShares, time_shares
from kvsim.metrics import Distribution, WaitingFor
from kvsim.metrics.steady import Steadiness, SteadyPart, steady_part
from kvsim.metrics.verdict import Limit, limit_of
from kvsim.simulation import measure, measure_replicas
from kvsim.steptime import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fitting.load import Load
    from kvsim.fitting.server import Server
    from kvsim.simulation import EngineName, Machine, Measured

_NONE = Distribution(mean=np.nan, p50=np.nan, p90=np.nan, p99=np.nan)
_HOST = 2.0
"""Hosts differ more than GPUs: so many times the error of the times as a whole, as in `kvsim.experiments.bands`."""
_OVERLOADED_S = 1.0
"""Seconds that the queue must have grown by before a server is said not to keep up."""

_FEWEST_WAITS = 8
_HOPELESS = 0.5
"""Seconds by which the queue grows in each, from which on a server will not keep up however long the load goes on."""
_PRICE = 1.5
"""A time so many times as long is a price that is told."""
_LESS = 0.05
"""So is output that is less by this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a load meets on a server. Means and percentiles are of requests that met it at work (`load.steady`)."""

    error: str = ""
    """The reason why nothing could be simulated: the server does not start, or a request can never be served."""
    num_blocks: int = 0
    """vLLM's number on each GPU, null block included."""
    kv_bytes: int = 0
    """Bytes of the pool on each GPU."""
    ttft_s: Distribution = _NONE
    tpot_s: Distribution = _NONE
    e2e_s: Distribution = _NONE
    output_tokens_per_s: float = np.nan
    """Output tokens per second of all replicas: in the steady part where there is one, else over the whole run."""
    steadiness: Steadiness = Steadiness.STEADY
    """Whether the rate of an open loop settled on all replicas."""
    num_requests: int = 0
    """Requests that were simulated, repetitions included."""
    requests_per_s: float = np.nan
    duration_s: float = np.nan
    num_preemptions: int = 0
    preemptions_per_min: float = 0.0
    preemptions_per_request: float = 0.0
    vain_share: float = 0.0
    """Share of all computed tokens that were computed for nothing, 0 to 1."""
    waiting_share: float = 0.0
    """Share of the requests that are there on average which waits for memory or for a place in the batch, 0 to 1."""
    waiting_for: WaitingFor | None = None
    """Requests that wait on average over the whole run, the first rush included, by what for."""
    steady_queue: float = 0.0
    """Requests that wait for their first step on average, once the first rush is over."""
    refused_share: float = 0.0
    overload: float = 0.0
    """Seconds by which the wait in the queue grows in each second of an open loop; 0 where the server keeps up."""
    mean_batch: float = np.nan
    peak_occupancy: float = np.nan
    limit: Limit | None = None
    shares: TimeShares | None = None
    label: str = ""
    """The basis of the step times, in words."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        times = {name: dict(getattr(self, name).as_dict()) for name in ("ttft_s", "tpot_s", "e2e_s")}
        plain = ("error", "num_blocks", "kv_bytes", "output_tokens_per_s", "requests_per_s", "duration_s",
                 "num_preemptions", "preemptions_per_min", "vain_share", "waiting_share", "refused_share", "overload",
                 "mean_batch", "peak_occupancy")  # fmt: skip
        return {name: getattr(self, name) for name in plain} | times | {
            "steadiness": self.steadiness.name.lower(),
            "num_requests": self.num_requests,
            "limit": None if self.limit is None else self.limit.name.lower(),
            "time_shares": None if self.shares is None else self.shares.as_dict(),
            "times": self.label,
        }  # fmt: skip


def evaluate(server: Server, load: Load, *, engine: EngineName = "auto", pace: float = 1.0) -> Outcome:
    """Simulate `load` on `server`; what cannot be simulated is an outcome with an error.

    Args:
        server: one kind, and how many replicas.
        load: what it is asked for.
        engine: as in `kvsim.simulation.Options`.
        pace: what the GPU does takes so many times as long, and what the host does moves by twice as much.
    """
    try:
        machine, policy = server.machine(), server.policy()
        if pace != 1.0:
            slower = Pace(host=max(1 + _HOST * (pace - 1), 0.1), gpu=pace)
            machine = replace(machine, step_time=paced(machine.step_time, slower))
        options: Any = {"refuse_misfits": True, "engine": engine, "stamp_at_entry": load.stamp_at_entry}
        if load.users is not None:
            options |= {"concurrency": load.users, "think_s": load.think_s}
        outcome = Outcome()
        longer: Load | None = load
        while longer is not None:
            if server.replicas == 1:
                runs = [measure(longer.workload, policy, machine, **options)]
            else:
                runs = measure_replicas(longer.workload, policy, machine, server.replicas, "shortest", **options)
            runs = [run for run in runs if len(run.requests)]
            outcome = outcome_of(longer, runs, machine)
            longer = longer.longer(_least_steady(runs)) if not _is_hopeless(outcome) else None
        pool = machine.pool(policy)
    except KvsimError as error:
        return Outcome(error=str(error))
    return replace(outcome, num_blocks=(pool.num_units or 0) + pool.first_unit, kv_bytes=machine.kv_bytes)


def _least_steady(runs: Sequence[Measured]) -> SteadyPart:
    """The part of the run of a replica whose rate settles last."""
    parts = [steady_part(run.requests) for run in runs]
    return max(parts, key=lambda part: (part.steadiness is Steadiness.SHORT, part.running_s))


def _is_hopeless(outcome: Outcome) -> bool:
    """Whether going on would only make the queue longer."""
    return outcome.overload > _HOPELESS


def price_words(before: Outcome, after: Outcome) -> str:
    """What a change from `before` to `after` makes much worse, as a clause; nothing where it does not."""
    found = []
    for name, old, new in (
        ("TTFT", before.ttft_s.p99, after.ttft_s.p99),
        ("TPOT", before.tpot_s.p99, after.tpot_s.p99),
    ):
        if new > _PRICE * old:
            found.append(f"{name} p99 {new / old:.1f} times as long")
    less = 1 - after.output_tokens_per_s / before.output_tokens_per_s
    if less > _LESS:
        found.append(f"{100 * less:.0f} % less output")
    return f"at the price of {' and '.join(found)}" if found else ""


def outcome_of(load: Load, runs: Sequence[Measured], machine: Machine) -> Outcome:
    """What `load` met in `runs`, one for each server that was sent anything, on `machine`."""
    summaries, parts = [run.summary for run in runs], [steady_part(run.requests) for run in runs]
    steadiness = _least_steady(runs).steadiness if load.is_judged_steady else Steadiness.STEADY
    duration_s = max(summary.duration_s for summary in summaries)
    times = [_times(load, run, part) for run, part in zip(runs, parts, strict=True)]
    ttft, tpot, e2e, wait, arrival = (np.concatenate([each[index] for each in times]) for index in range(5))
    num_requests = sum(len(run.requests) for run in runs)
    tokens_per_s, requests_per_s = (
        sum(getattr(summary, name) for summary in summaries) / duration_s if duration_s else np.nan
        for name in ("output_tokens", "num_finished")
    )
    if load.repeats and all(part.steadiness is Steadiness.STEADY for part in parts):
        tokens_per_s, requests_per_s = (
            sum(getattr(part, name) for part in parts) for name in ("output_tokens_per_s", "requests_per_s")
        )
    num_preemptions = sum(summary.num_preemptions for summary in summaries)
    waits = WaitingFor(
        **{name: float(np.nansum([getattr(each.waiting_for, name) for each in summaries]))
           for name in ("memory", "batch", "tokens")}
    )  # fmt: skip
    present = sum(summary.mean_batch + summary.mean_waiting for summary in summaries)
    computed = sum(summary.computed_tokens for summary in summaries)
    worst = max(summaries, key=lambda summary: (summary.num_preemptions, summary.mean_waiting))
    return Outcome(
        ttft_s=Distribution.of(ttft),
        tpot_s=Distribution.of(tpot),
        e2e_s=Distribution.of(e2e),
        output_tokens_per_s=tokens_per_s,
        steadiness=steadiness,
        num_requests=num_requests,
        requests_per_s=requests_per_s,
        duration_s=duration_s,
        num_preemptions=num_preemptions,
        preemptions_per_min=60 * num_preemptions / duration_s if duration_s else 0.0,
        preemptions_per_request=num_preemptions / num_requests,
        vain_share=sum(summary.vain_tokens for summary in summaries) / computed if computed else 0.0,
        waiting_share=(waits.memory + waits.batch) / present if present else 0.0,
        waiting_for=waits,
        steady_queue=float(np.nanmean(wait)) * requests_per_s if len(wait) else 0.0,
        refused_share=sum(summary.num_refused for summary in summaries) / num_requests,
        overload=_overload(load, arrival, wait),
        mean_batch=sum(summary.mean_batch for summary in summaries),
        peak_occupancy=max(summary.peak_occupancy for summary in summaries),
        limit=limit_of(worst),
        shares=time_shares(runs[0], machine),
        label=machine.step_time.label,
    )


def _times(load: Load, run: Measured, part: SteadyPart) -> tuple[np.ndarray, ...]:
    """TTFT, TPOT, end to end, time in the queue and arrival of the requests that met the server at work, in seconds."""
    rows, requests = steady(load, run, part), run.requests
    arrival_s, first_s, end_s = (
        column[rows] for column in (requests.arrival_s, requests.first_token_s, requests.finished_s)
    )
    later = requests.output_tokens[rows] - 1
    tpot = np.full(len(rows), np.nan)
    np.divide(end_s - first_s, later, out=tpot, where=later > 0)
    return first_s - arrival_s, tpot, end_s - arrival_s, requests.first_scheduled_s[rows] - arrival_s, arrival_s


def _overload(load: Load, arrival_s: np.ndarray, wait_s: np.ndarray) -> float:
    """How fast the queue grows, from how much longer later requests wait than earlier ones."""
    if load.users is not None or len(wait_s) < _FEWEST_WAITS:
        return 0.0
    order = np.argsort(arrival_s, kind="stable")
    quarter = len(order) // 4
    early, late = order[:quarter], order[-quarter:]
    longer_s = float(wait_s[late].mean() - wait_s[early].mean())
    span_s = float(arrival_s[late].mean() - arrival_s[early].mean())
    return longer_s / span_s if longer_s > _OVERLOADED_S and span_s > 0 else 0.0
