"""Reader of a page of Prometheus metrics of vLLM, or of SGLang under vLLM's names.

Every server has these metrics without the recorder. They have the usage of the pool and the numbers of running and
waiting requests, but not the blocks of each request.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from kvsim.errors import RecordingError, shortened
from kvsim.live.exposition import Sample, kinds, samples
from kvsim.live.sglang_metrics import PREFIX as SGLANG
from kvsim.live.sglang_metrics import as_vllm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PREFIX = "vllm:"
_MAX_COUNT = 1e15
_MAX_BUCKETS = 200
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "inter_token": "vllm:inter_token_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
"""vLLM's name of each distribution of times in seconds, by kvsim's name."""
_GAUGES = ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
_COUNTERS = (
    "vllm:num_preemptions", "vllm:request_success", "vllm:prompt_tokens", "vllm:generation_tokens",
    "vllm:prefix_cache_queries", "vllm:prefix_cache_hits",
)  # fmt: skip
"""Names of counters; samples end in `_total`."""
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
"""Counter of prompt tokens, each once. `prefix_cache_*` before vLLM 0.27 counts them per attempt to admit."""
_OTHERS = {"tgi_": "Text Generation Inference", "trtllm_": "TensorRT-LLM", "nv_": "Triton"}
"""Beginnings of the names of other servers' metrics."""
_OLDER_NAMES = {"inter_token": "vllm:time_per_output_token_seconds"}
"""vLLM's names before 0.11 of some distributions, by kvsim's names (`HISTOGRAMS`)."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts of times, from the start of the server unless taken by `since`."""

    bounds_s: tuple[float, ...] = ()
    """Upper bounds in seconds, ascending; the last is infinite."""
    counts: tuple[float, ...] = ()
    """Number of measured times up to each bound."""
    sum_s: float = 0.0

    @property
    def count(self) -> float:
        """Number of all measured times."""
        return self.counts[-1] if self.counts else 0.0

    def since(self, earlier: Histogram) -> Histogram:
        """Return the histogram of times after `earlier`; this one, if `earlier` is empty or its bounds differ."""
        if not earlier.counts or earlier.bounds_s != self.bounds_s:
            return self
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Histogram(self.bounds_s, counts, self.sum_s - earlier.sum_s)

    def quantile_s(self, share: float) -> tuple[float, float] | None:
        """Return the bounds in seconds of the bucket with the quantile `share`, 0 to 1; None without any times."""
        low = 0.0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=True):
            if self.count and count >= share * self.count:
                return low, bound_s
            low = bound_s
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics:
    """Metrics of a server at one time, for all its engines together."""

    time_s: float
    """Time of the poll in seconds, by the clock of the polling process."""
    model: str
    num_engines: int
    usage: float
    """Share of the pools in use, 0 to 1: mean over the engines."""
    fullest_usage: float
    """Share in use of the fullest pool, 0 to 1."""
    num_blocks: int | None
    """Number of blocks in all pools; None if the metrics lack it."""
    block_size: int | None
    """Number of tokens per block; None if the metrics lack it."""
    running: int
    """Number of requests in the batch."""
    waiting: int
    """Number of requests in the queue, including deferred ones."""
    deferred: int
    """Number of waiting requests that vLLM holds back for another reason than a lack of room."""
    preemptions: int
    """Number of preemptions since the server started."""
    finished: int
    """Number of requests that finished since the server started."""
    prompt_tokens: int
    """Number of prompt tokens computed or found in the cache since the server started."""
    generation_tokens: int
    """Number of tokens generated since the server started."""
    queried_tokens: int
    """Number of prompt tokens looked up in the prefix cache since the server started."""
    hit_tokens: int
    """Number of prompt tokens found in the prefix cache since the server started."""
    server: str = "vLLM"
    """Program that serves: vLLM or SGLang."""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    """Histograms, by the keys of `HISTOGRAMS`."""

    @property
    def counters(self) -> tuple[int, ...]:
        """All counts since the server's start. If one falls, the server has restarted."""
        return (
            self.preemptions, self.finished, self.prompt_tokens, self.generation_tokens, self.queried_tokens,
            self.hit_tokens, *(int(each.count) for each in self.histograms.values()),
        )  # fmt: skip


def parse_metrics(page: str, time_s: float = 0.0) -> ServerMetrics:
    """Read a server's metrics in Prometheus' text format, and add up those of several engines.

    Args:
        page: the metrics as text.
        time_s: the time of the poll.

    Raises:
        RecordingError: the page has no metrics of vLLM or SGLang, or its metrics contradict each other.
    """
    found: dict[str, list[Sample]] = {}
    is_sglang = f"\n{_PREFIX}" not in f"\n{page}" and f"\n{SGLANG}" in f"\n{page}"
    for sample in as_vllm(page) if is_sglang else samples(page, _PREFIX):
        found.setdefault(sample.name, []).append(sample)

    def total(*names: str) -> int:
        """Return the sum over all engines for the first of `names` that exists; 0 without any."""
        return next((int(sum(_values(found, name, _MAX_COUNT))) for name in names if name in found), 0)

    usage = _values(found, "vllm:kv_cache_usage_perc", 1 + 1e-6)
    if not usage:
        other = next((name for begin, name in _OTHERS.items() if f"\n{begin}" in f"\n{page}"), "")
        raise RecordingError(
            "there is no vllm:kv_cache_usage_perc among the metrics, nor sglang:token_usage: is this a vLLM V1 server, "
            "or SGLang with --enable-metrics?" + (f" They are {other}'s, which kvsim does not read." if other else "")
        )
    _check_kinds(page)
    _check_whole(found)
    about = found.get("vllm:cache_config_info", [])
    blocks = [_whole(sample, "num_gpu_blocks") for sample in about]
    sizes = {_whole(sample, "block_size") for sample in about}
    models = {sample.labels.get("model_name", "") for sample in found["vllm:kv_cache_usage_perc"]}
    # These two are read below; here their values are only checked.
    _values(found, "vllm:num_requests_waiting_by_reason", _MAX_COUNT)
    _values(found, _BY_SOURCE, _MAX_COUNT)
    queried, hits = _prefix_tokens(found, total)
    return ServerMetrics(
        server="SGLang" if is_sglang else "vLLM",
        time_s=time_s,
        model=" and ".join(sorted(filter(None, models))),
        num_engines=len(usage),
        usage=min(sum(usage) / len(usage), 1.0),
        fullest_usage=min(max(usage), 1.0),
        num_blocks=sum(filter(None, blocks)) if len(blocks) == len(usage) and all(blocks) else None,
        block_size=sizes.pop() if len(sizes) == 1 else None,
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        deferred=_deferred(found.get("vllm:num_requests_waiting_by_reason", []), total("vllm:num_requests_waiting")),
        preemptions=total("vllm:num_preemptions_total"),
        finished=total("vllm:request_success_total"),
        prompt_tokens=total("vllm:prompt_tokens_total"),
        generation_tokens=total("vllm:generation_tokens_total"),
        queried_tokens=queried,
        hit_tokens=hits,
        histograms={key: _histogram(found, name, key) for key, name in HISTOGRAMS.items()},
    )


def _values(found: Mapping[str, Sequence[Sample]], name: str, most: float) -> list[float]:
    series = found.get(name, [])
    for sample in series:
        if not 0 <= sample.value <= most:  # also true for NaN
            raise RecordingError(f"the metrics say {name} = {sample.value:g}, which cannot be.")
    return [sample.value for sample in series]


def _check_kinds(page: str) -> None:
    """Check that the page declares each metric as the kind that vLLM declares: gauge, counter or histogram."""
    declared = kinds(page, _PREFIX)
    histograms = (*HISTOGRAMS.values(), *_OLDER_NAMES.values())
    expected = dict.fromkeys(_GAUGES, "gauge") | dict.fromkeys(histograms, "histogram")
    expected |= {name + end: "counter" for name in _COUNTERS for end in ("", "_total")}
    for name, kind in expected.items():
        if declared.get(name, kind) not in (kind, "untyped", "unknown"):
            raise RecordingError(f"the metrics declare {name} as {shortened(declared[name])}; vLLM's is a {kind}.")


def _check_whole(found: dict[str, list[Sample]]) -> None:
    """Check that numbers of requests and all counters are whole numbers, of the same engines as the pools' usage."""
    engines = {sample.labels.get("engine", "") for sample in found["vllm:kv_cache_usage_perc"]}
    for name in (*_GAUGES[1:], *(f"{name}_total" for name in _COUNTERS)):
        series = found.get(name, [])
        for sample in series:
            if sample.value % 1:
                raise RecordingError(f"the metrics say {name} = {sample.value:g}, which is no whole number.")
        if series and engines != {""} and {sample.labels.get("engine", "") for sample in series} != engines:
            raise RecordingError(f"the metrics say {name} of other engines than vllm:kv_cache_usage_perc.")


def _deferred(by_reason: list[Sample], waiting: int) -> int:
    found = int(sum(sample.value for sample in by_reason if sample.labels.get("reason") == "deferred"))
    if found > waiting:
        raise RecordingError(f"the metrics say that {found:,} requests are deferred, of {waiting:,} that wait.")
    return found


def _prefix_tokens(found: dict[str, list[Sample]], total: Callable[[str], int]) -> tuple[int, int]:
    """Return the numbers of prompt tokens that were looked up and found in the prefix cache.

    `found` has the samples by metric, and `total` adds up a counter over the engines. Each token counts once if the
    metrics have `_BY_SOURCE`, otherwise once per attempt to admit its request.
    """
    counts = [(total("vllm:prefix_cache_queries_total"), total("vllm:prefix_cache_hits_total"))]
    once = [sample.value for sample in found.get(_BY_SOURCE, []) if sample.labels.get("source") == "local_cache_hit"]
    if counts[0][0] and once:
        counts.append((total("vllm:prompt_tokens_total"), int(sum(once))))
    for queried, hits in counts:
        if hits > queried:
            raise RecordingError(
                f"the metrics say that the prefix cache held {hits:,} tokens, of {queried:,} looked up."
            )
    return counts[-1]


def _histogram(found: dict[str, list[Sample]], name: str, key: str) -> Histogram:
    """Add up the histograms `name` of all engines or, if there are none, those with the older name for `key`."""
    if f"{name}_bucket" not in found:
        name = _OLDER_NAMES.get(key, name)
    series: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    for sample in found.get(f"{name}_bucket", []):
        try:
            bound_s = float(sample.labels.get("le", ""))
        except ValueError:
            bound_s = math.nan
        if not (bound_s >= 0 and 0 <= sample.value <= _MAX_COUNT):
            raise RecordingError(f"the metrics have a bucket of {name} that cannot be.")
        by_bound = series.setdefault(_without(sample, "le"), {})
        if bound_s in by_bound:
            raise RecordingError(f"the metrics have the bucket of {name} up to {bound_s:g} s twice.")
        by_bound[bound_s] = sample.value
    if not series:
        return Histogram()
    bounds = {tuple(sorted(by_bound)) for by_bound in series.values()}
    bounds_s = bounds.pop()
    if bounds or len(bounds_s) > _MAX_BUCKETS or not math.isinf(bounds_s[-1]):
        raise RecordingError(f"the buckets of {name} are not the same of all engines, up to +Inf.")
    sums = {_without(sample): sample.value for sample in found.get(f"{name}_sum", [])}
    numbers = {_without(sample): sample.value for sample in found.get(f"{name}_count", [])}
    if not series.keys() >= sums.keys() | numbers.keys():
        raise RecordingError(f"the metrics have a sum or a number of {name} without its buckets.")
    for labels, by_bound in series.items():
        counts = [by_bound[bound_s] for bound_s in bounds_s]
        _check_buckets(name, bounds_s, counts, sums.get(labels), numbers.get(labels))
    total = tuple(sum(by_bound[bound_s] for by_bound in series.values()) for bound_s in bounds_s)
    return Histogram(bounds_s, total, sum(sums.values()))


def _without(sample: Sample, *names: str) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in sample.labels.items() if name not in names)


def _check_buckets(
    name: str, bounds_s: Sequence[float], counts: Sequence[float], sum_s: float | None, count: float | None
) -> None:
    rises = all(now >= before for before, now in pairwise(counts))
    if not rises or (count is not None and count != counts[-1]):
        raise RecordingError(f"the buckets of {name} are not cumulative, or contradict its count.")
    # The sum of all times lies between two limits: each time is at least the lower bound of its bucket, and at most the
    # upper bound.
    held = [now - before for before, now in pairwise((0.0, *counts))]
    least_s = sum(number * low_s for number, low_s in zip(held, (0.0, *bounds_s), strict=False))
    most_s = sum(number * high_s for number, high_s in zip(held, bounds_s, strict=True) if number)
    if sum_s is not None and not least_s * (1 - 1e-9) <= sum_s <= min(most_s * (1 + 1e-9), _MAX_COUNT):
        raise RecordingError(f"the metrics say {name}_sum = {sum_s:g}, which its buckets cannot hold.")


def _whole(sample: Sample, label: str) -> int | None:
    """Return the number in `label`; None if the server has not set it."""
    text = sample.labels.get(label, "")
    if text in ("", "None"):
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) > 0):
        raise RecordingError(f"the metrics say {sample.name} with {label} = {shortened(text)!r}, which cannot be.")
    return int(text)


_CSV_COLUMNS = (
    "usage", "fullest_usage", "num_blocks", "block_size", "running", "waiting", "deferred", "preemptions", "finished",
    "prompt_tokens", "generation_tokens", "queried_tokens", "hit_tokens",
)  # fmt: skip


def as_csv(polls: Sequence[ServerMetrics]) -> str:
    """Return a CSV with a row for each poll.

    The columns are `time_s` since the first poll, the gauges and counters of `ServerMetrics`, and the count and sum in
    seconds of each histogram.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["time_s", *_CSV_COLUMNS, *(f"{key}_{what}" for key in HISTOGRAMS for what in ("count", "sum_s"))])
    for poll in polls:
        times = [poll.histograms[key] for key in HISTOGRAMS]
        row = [round(poll.time_s - polls[0].time_s, 3), *(getattr(poll, name) for name in _CSV_COLUMNS)]
        rows.writerow([*row, *(value for time in times for value in (time.count, time.sum_s))])
    return text.getvalue()
