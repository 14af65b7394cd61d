"""Outcome of one load on one server: a simulation, and the figures that decide whether the load fits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import KvsimError
from kvsim.fitting.offered_load import steady
from kvsim.fitting.time_shares import TimeShares, time_shares
from kvsim.fitting.vllm_server import paced
from kvsim.metrics import Distribution, WaitingFor
from kvsim.metrics.run_verdict import Limit, limit_of
from kvsim.metrics.steady import FEWEST_REQUESTS, Steadiness, SteadyPart, steady_part
from kvsim.policies import Radix
from kvsim.simulation import measure, measure_fleet
from kvsim.steptime import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.searched_server import SearchedServer
    from kvsim.metrics.summary import Summary
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import EngineName, Machine, Measured, Options, Servers

_NONE = Distribution(mean=np.nan, p50=np.nan, p90=np.nan, p99=np.nan)
_HOST_PER_GPU_ERROR = 2.0
"""Relative error of host times, divided by the relative error of GPU times."""
_OVERLOADED_S = 1.0
"""Seconds by which the queueing time must at least grow over the whole run to count as overload."""
_FEWEST_WAITS = 8
"""Least number of requests after the warm-up for which the growth of the queueing time is calculated."""
_MOST_GROWTH = 0.5
"""Growth of the queueing time, in seconds per second, above which a load is not made longer to let its rate settle."""
_IGNORED_SHARE = 0.05
"""Replicas with too few requests for a rate are ignored if they have at most this share of all requests together."""
_PRICE = 1.5
"""Smallest ratio of the new latency to the old one with which the latency is mentioned as the price of a change."""
_MENTIONED_LOSS = 0.05
"""Smallest share of the throughput whose loss is mentioned as the price of a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of a load on a server. Means and percentiles are over the requests after the warm-up."""

    error: str = ""
    """Reason why nothing was simulated, such as a server that does not start; empty after a simulation."""
    num_blocks: int = 0
    """Number of vLLM's blocks on each GPU, null block included; for SGLang, the number of pages."""
    kv_bytes: int = 0
    """Bytes of the pool on each GPU."""
    ttft_s: Distribution = _NONE
    tpot_s: Distribution = _NONE
    e2e_s: Distribution = _NONE
    output_tokens_per_s: float = np.nan
    """Output tokens per second of all replicas, in the steady part of the run; over the whole run if there is none."""
    steadiness: Steadiness = Steadiness.STEADY
    """Steadiness of the run; STEADY if `Load.is_judged_steady` is False."""
    num_requests: int = 0
    """Number of simulated requests, repetitions included."""
    requests_per_s: float = np.nan
    duration_s: float = np.nan
    """Longest duration of a replica's run in seconds."""
    num_preemptions: int = 0
    preemptions_per_min: float = 0.0
    preemptions_per_request: float = 0.0
    vain_share: float = 0.0
    """Share of the computed tokens that had to be computed again, 0 to 1."""
    waiting_share: float = 0.0
    """Share of the requests in the server that wait for memory, a place in the batch, or a slot of their adapter.

    It is the mean over time, 0 to 1.
    """
    waiting_for: WaitingFor | None = None
    """Mean number of waiting requests for each limit, over the whole run; None without a simulation."""
    steady_queue: float = 0.0
    """Mean number of requests that wait for their first step, over the time after the warm-up."""
    refused_share: float = 0.0
    overload: float = 0.0
    """Growth of the queueing time in an open loop, in seconds per second; 0 if the server keeps up."""
    mean_batch: float = np.nan
    """Mean number of sequences in the batch, summed over all replicas."""
    peak_occupancy: float = np.nan
    """Largest share of a replica's pool that requests held at any time, 0 to 1."""
    limit: Limit | None = None
    """Limit of the replica with the most preemptions; among equals, of the one with the longest mean queue.

    None if few requests waited there, or if the limits are unknown.
    """
    shares: TimeShares | None = None
    """Shares of the first replica's time, by kind of work; None if they are not known."""
    label: str = ""
    """Source of the step times, in words; empty without a simulation."""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        times = {name: asdict(getattr(self, name)) for name in ("ttft_s", "tpot_s", "e2e_s")}
        plain = ("error", "num_blocks", "kv_bytes", "output_tokens_per_s", "requests_per_s", "duration_s",
                 "num_preemptions", "preemptions_per_min", "vain_share", "waiting_share", "refused_share", "overload",
                 "mean_batch", "peak_occupancy")  # fmt: skip
        return {name: getattr(self, name) for name in plain} | times | {
            "steadiness": self.steadiness.name.lower(),
            "num_requests": self.num_requests,
            "limit": None if self.limit is None else self.limit.name.lower(),
            "time_shares": None if self.shares is None else asdict(self.shares),
            "times": self.label,
        }  # fmt: skip


def evaluate(server: SearchedServer, load: Load, *, engine: EngineName = "auto", pace: float = 1.0) -> Outcome:
    """Simulate `load` on `server`. If the server cannot be simulated, the outcome has an `error`.

    Args:
        server: the server and its number of replicas.
        load: requests and their senders.
        engine: as in `kvsim.simulation.Options`.
        pace: factor on the GPU times. Host times get the factor 1 + 2 (pace - 1), but at least 0.1.
    """
    try:
        machine, policy = server.machine(), server.policy()
        if pace != 1.0:
            slower = Pace(host=max(1 + _HOST_PER_GPU_ERROR * (pace - 1), 0.1), gpu=pace)
            machine = replace(machine, step_time=paced(machine.step_time, slower))
        options: Any = {"refuse_misfits": True, "engine": engine, "stamp_at_entry": load.stamp_at_entry}
        if load.users is not None:
            options |= {"users": load.users, "think_s": load.think_s}
        longer: Load | None = load
        while longer is not None:
            runs, queues = _runs(longer, machine, policy, server.servers(), options)
            outcome = outcome_of(longer, runs, machine, queues)
            # A longer load lets the rate settle, which is not worth the time if the queue grows fast.
            longer = longer.longer(_least_steady(runs)) if outcome.overload <= _MOST_GROWTH else None
        pool = machine.pool(policy)
    except KvsimError as error:
        return Outcome(error=str(error))
    null_blocks = 0 if isinstance(policy, Radix) else pool.first_unit
    return replace(outcome, num_blocks=(pool.num_units or 0) + null_blocks, kv_bytes=machine.kv_bytes)


def _runs(
    load: Load, machine: Machine, policy: AnyPolicy, servers: Servers | None, options: Options
) -> tuple[list[Measured], list[Summary]]:
    """Simulate `load`. Return the results of the servers that answer, and the summaries of those whose queues count.

    Without prefill servers, these are the same servers. With prefill servers, the decode servers answer, and only the
    queues of the prefill servers count, because requests at a decode server also wait for the transfer of their KV.
    Servers without requests are left out, except for prefill servers.
    """
    if servers is None:
        run = measure(load.workload, policy, machine, **options)
        return [run], [run.summary]
    fleet = measure_fleet(load.workload, policy, machine, servers, **options)
    if fleet.num_prefill:  # decode servers, with the times of requests as clients see them
        answering = zip(fleet.servers[fleet.num_prefill :], fleet.clients, strict=True)
        runs = [replace(run, requests=requests) for run, requests in answering if len(requests)]
        return runs, [run.summary for run in fleet.servers[: fleet.num_prefill]]
    runs = [run for run in fleet.servers if len(run.requests)]
    return runs, [run.summary for run in runs]


def _least_steady(runs: Sequence[Measured]) -> SteadyPart:
    parts = [steady_part(run.requests) for run in _busy(runs)]
    return max(parts, key=lambda part: (part.steadiness is Steadiness.SHORT, part.running_s))


def _rates(
    runs: Sequence[Measured], parts: Sequence[SteadyPart], duration_s: float, *, in_parts: bool
) -> tuple[float, float]:
    """Return output tokens per second and finished requests per second of all replicas.

    If `in_parts` and all busy replicas have settled, the rate of a replica is that of its steady part. Otherwise it is
    the rate over the whole run.
    """
    totals = np.array([(run.summary.output_tokens, run.summary.num_finished) for run in runs])
    rates = totals / duration_s if duration_s else np.full(totals.shape, np.nan)
    if in_parts and all(steady_part(run.requests).steadiness is Steadiness.STEADY for run in _busy(runs)):
        steady_rates = np.array([(part.output_tokens_per_s, part.requests_per_s) for part in parts])
        rates = np.where(np.isnan(steady_rates), rates, steady_rates)
    tokens_per_s, requests_per_s = rates.sum(axis=0).tolist()
    return tokens_per_s, requests_per_s


def _busy(runs: Sequence[Measured]) -> list[Measured]:
    """Return the replicas with enough requests for a rate; all replicas if the others together have more than
    `_IGNORED_SHARE` of all requests.

    A router may send nearly all requests of a light load to its first servers. It would then take hours of simulation
    until the last servers have enough requests.
    """
    busy = [run for run in runs if len(run.requests) >= FEWEST_REQUESTS]
    num_requests, num_busy = (sum(len(run.requests) for run in some) for some in (runs, busy))
    return busy if num_requests - num_busy <= _IGNORED_SHARE * num_requests else list(runs)


def price_words(before: Outcome, after: Outcome) -> str:
    """Describe the figures that become much worse from `before` to `after`; empty if there is none."""
    found = []
    for name, old, new in (
        ("TTFT", before.ttft_s.p99, after.ttft_s.p99),
        ("TPOT", before.tpot_s.p99, after.tpot_s.p99),
    ):
        if new > _PRICE * old > 0:
            found.append(f"{name} p99 {new / old:.1f} times as long")
    old, new = before.output_tokens_per_s, after.output_tokens_per_s
    if new < (1 - _MENTIONED_LOSS) * old:
        found.append(f"{100 * (1 - new / old):.0f} % less output")
    return f"at the price of {' and '.join(found)}" if found else ""


def milliseconds(value_s: float) -> str:
    """Format a time: in milliseconds below 10 seconds, otherwise in seconds; a dash if it is NaN."""
    return "–" if value_s != value_s else f"{1000 * value_s:,.0f} ms" if value_s < 10 else f"{value_s:,.1f} s"


def outcome_of(load: Load, runs: Sequence[Measured], machine: Machine, queues: Sequence[Summary] = ()) -> Outcome:
    """Return the outcome of `load` from `runs`, one for each server that received requests.

    Waiting requests are counted at the servers of `queues`; if it is empty, at those of `runs`.
    """
    summaries, parts = [run.summary for run in runs], [steady_part(run.requests) for run in runs]
    steadiness = _least_steady(runs).steadiness if load.is_judged_steady else Steadiness.STEADY
    duration_s = max(summary.duration_s for summary in summaries)
    times = [_times(load, run, part) for run, part in zip(runs, parts, strict=True)]
    ttft, tpot, e2e, wait, arrival = (np.concatenate(columns) for columns in zip(*times, strict=True))
    num_requests = sum(len(run.requests) for run in runs)
    tokens_per_s, requests_per_s = _rates(runs, parts, duration_s, in_parts=load.repeats)
    num_preemptions = sum(summary.num_preemptions for summary in summaries)
    queues = queues or summaries
    waits = _waits(queues)
    present = sum(summary.mean_batch + summary.mean_waiting for summary in queues)
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
        waiting_share=(waits.memory + waits.batch + waits.adapters) / present if present else 0.0,
        waiting_for=waits,
        steady_queue=float(np.nanmean(wait)) * requests_per_s if len(wait) else 0.0,
        refused_share=sum(summary.num_refused for summary in summaries) / num_requests,
        overload=_overload(load, arrival, wait),
        mean_batch=sum(summary.mean_batch for summary in summaries),
        peak_occupancy=max(summary.peak_occupancy for summary in summaries),
        limit=limit_of(worst),
        shares=time_shares(runs[0], machine),
        label=str(runs[0].meta.engine.get("step_time", machine.step_time.label)),
    )


def _waits(queues: Sequence[Summary]) -> WaitingFor:
    names = ("memory", "batch", "tokens", "adapters")
    return WaitingFor(
        **{name: float(np.nansum([getattr(each.waiting_for, name) for each in queues])) for name in names}
    )


def _times(load: Load, run: Measured, part: SteadyPart) -> tuple[np.ndarray, ...]:
    """Return TTFT, TPOT, end-to-end time, queueing time and arrival of the requests after the warm-up, in seconds."""
    rows, requests = steady(load, run, part), run.requests
    arrival_s, first_s, end_s = (
        column[rows] for column in (requests.arrival_s, requests.first_token_s, requests.finished_s)
    )
    later = requests.output_tokens[rows] - 1
    tpot = np.full(len(rows), np.nan)
    np.divide(end_s - first_s, later, out=tpot, where=later > 0)
    return first_s - arrival_s, tpot, end_s - arrival_s, requests.first_scheduled_s[rows] - arrival_s, arrival_s


def _overload(load: Load, arrival_s: np.ndarray, wait_s: np.ndarray) -> float:
    """Return the growth of the queueing time in seconds per second, from the waits of early and of late requests.

    It is 0 in a closed loop, for few requests, or if the queueing time grows little over the whole run. A request whose
    wait is unknown (NaN) is left out.
    """
    is_known = ~np.isnan(wait_s)
    arrival_s, wait_s = arrival_s[is_known], wait_s[is_known]
    if load.users is not None or len(wait_s) < _FEWEST_WAITS:
        return 0.0
    order = np.argsort(arrival_s, kind="stable")
    quarter = len(order) // 4
    early, late = order[:quarter], order[-quarter:]
    longer_s = float(wait_s[late].mean() - wait_s[early].mean())
    span_s = float(arrival_s[late].mean() - arrival_s[early].mean())
    return longer_s / span_s if longer_s > _OVERLOADED_S and span_s > 0 else 0.0
