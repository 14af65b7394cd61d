"""What vLLM's Prometheus metrics say of a server at one moment, checked.

The metrics say how much of the pool is in use and how many requests run and wait, not which blocks are whose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from kvsim.errors import RecordingError
from kvsim.live.exposition import Sample, samples

_PREFIX = "vllm:"
_MAX_COUNT = 1e15
_MAX_BUCKETS = 200
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "inter_token": "vllm:inter_token_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
"""Our name of each distribution, and vLLM's; all in seconds."""
_OLDER_NAMES = {"inter_token": "vllm:time_per_output_token_seconds"}
"""Names of vLLM before 0.11."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often a time was at most each bound, since the server started."""

    bounds_s: tuple[float, ...] = ()
    """Ascending, in seconds; the last is infinite."""
    counts: tuple[float, ...] = ()
    """Number of times that were not larger than each bound."""
    sum_s: float = 0.0

    @property
    def count(self) -> float:
        """All times."""
        return self.counts[-1] if self.counts else 0.0

    def since(self, earlier: Histogram) -> Histogram:
        """The times that came after `earlier`."""
        if not earlier.counts or earlier.bounds_s != self.bounds_s:
            return self
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds_s, counts, self.sum_s - earlier.sum_s)

    def quantile_s(self, share: float) -> tuple[float, float] | None:
        """The bounds between which the quantile lies, in seconds; None where there is no time. More is not known."""
        low = 0.0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=True):
            if self.count and count >= share * self.count:
                return low, bound_s
            low = bound_s
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics:
    """What the metrics said at one moment, over all engines of the server."""

    time_s: float
    """Time of the look, on the clock of the process that asked, in seconds."""
    model: str
    num_engines: int
    usage: float
    """Share of the pools in use, 0 to 1: the mean over the engines."""
    fullest_usage: float
    """The figure of the engine with the fullest pool."""
    num_blocks: int | None
    """Blocks of all pools; None where the metrics do not say."""
    block_size: int | None
    """Tokens in a block; None where the metrics do not say."""
    running: int
    """Requests in the batch."""
    waiting: int
    """Requests in the queue, deferred ones included."""
    deferred: int
    """Waiting requests that something else than capacity holds back."""
    preemptions: int
    """Preemptions since the server started; the following are counted from then too."""
    finished: int
    prompt_tokens: int
    generation_tokens: int
    queried_tokens: int
    """Prompt tokens that were looked up in the prefix cache."""
    hit_tokens: int
    """Tokens that were found in the prefix cache."""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """Histograms, by the keys of `HISTOGRAMS`."""

    @property
    def counters(self) -> tuple[int, ...]:
        """What never falls while a server runs."""
        return (self.preemptions, self.finished, self.prompt_tokens, self.generation_tokens, self.queried_tokens)


def parse_metrics(page: str, time_s: float = 0.0) -> ServerMetrics:
    """Read vLLM's metrics in Prometheus' text format; several engines are added up.

    Raises:
        RecordingError: there is no usage of a KV cache among them, or a value cannot be.
    """
    found: dict[str, list[Sample]] = {}
    for sample in samples(page, _PREFIX):
        found.setdefault(sample.name, []).append(sample)

    def values(name: str, most: float) -> list[float]:
        said = found.get(name, [])
        for sample in said:
            if not 0 <= sample.value <= most:  # NaN is not either
                raise RecordingError(f"the metrics say {name} = {sample.value:g}, which cannot be.")
        return [sample.value for sample in said]

    def total(*names: str) -> int:
        """The sum over all engines under the first of `names` that there is."""
        return next((int(sum(values(name, _MAX_COUNT))) for name in names if name in found), 0)

    usage = values("vllm:kv_cache_usage_perc", 1 + 1e-6)
    if not usage:
        raise RecordingError("there is no vllm:kv_cache_usage_perc among the metrics: is this a vLLM V1 server?")
    about = found.get("vllm:cache_config_info", [])
    blocks = [_whole(sample.labels.get("num_gpu_blocks", "")) for sample in about]
    sizes = {_whole(sample.labels.get("block_size", "")) for sample in about}
    models = {sample.labels.get("model_name", "") for sample in found["vllm:kv_cache_usage_perc"]}
    deferred = found.get("vllm:num_requests_waiting_by_reason", [])
    values("vllm:num_requests_waiting_by_reason", _MAX_COUNT)
    return ServerMetrics(
        time_s=time_s,
        model=" and ".join(sorted(filter(None, models))),
        num_engines=len(usage),
        usage=min(sum(usage) / len(usage), 1.0),
        fullest_usage=min(max(usage), 1.0),
        num_blocks=sum(filter(None, blocks)) if len(blocks) == len(usage) and all(blocks) else None,
        block_size=sizes.pop() if len(sizes) == 1 else None,
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        deferred=int(sum(sample.value for sample in deferred if sample.labels.get("reason") == "deferred")),
        preemptions=total("vllm:num_preemptions_total"),
        finished=total("vllm:request_success_total"),
        prompt_tokens=total("vllm:prompt_tokens_total"),
        generation_tokens=total("vllm:generation_tokens_total"),
        queried_tokens=total("vllm:prefix_cache_queries_total"),
        hit_tokens=total("vllm:prefix_cache_hits_total"),
        histograms={key: _histogram(found, name, key) for key, name in HISTOGRAMS.items()},
    )


def _histogram(found: dict[str, list[Sample]], name: str, key: str) -> Histogram:
    """The distribution `name`, added up over engines; empty where there is none."""
    if f"{name}_bucket" not in found:
        name = _OLDER_NAMES.get(key, name)
    by_bound: dict[float, float] = {}
    for sample in found.get(f"{name}_bucket", []):
        try:
            bound_s = float(sample.labels.get("le", ""))
        except ValueError:
            bound_s = math.nan
        if not (bound_s >= 0 and 0 <= sample.value <= _MAX_COUNT):
            raise RecordingError(f"the metrics have a bucket of {name} that cannot be.")
        by_bound[bound_s] = by_bound.get(bound_s, 0.0) + sample.value
    bounds_s = tuple(sorted(by_bound))
    counts = tuple(by_bound[bound_s] for bound_s in bounds_s)
    sums = [sample.value for sample in found.get(f"{name}_sum", [])]
    rises = all(now >= before for before, now in pairwise(counts))
    if not rises or len(bounds_s) > _MAX_BUCKETS or not all(0 <= value <= _MAX_COUNT for value in sums):
        raise RecordingError(f"the buckets of {name} do not add up.")
    if not bounds_s or not math.isinf(bounds_s[-1]):
        return Histogram()
    return Histogram(bounds_s, counts, sum(sums))


def _whole(text: str) -> int | None:
    """A number in a label; None where it is none, or more than any pool has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 and int(text) > 0 else None
