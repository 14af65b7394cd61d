"""The coarse view of a server that cannot be restarted: vLLM's Prometheus metrics, polled.

The metrics say how much of the pool is in use and how many requests run and wait, not which blocks are whose. The
recording made of them is marked as coarse: one stand-in request holds as many blocks as are in use.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvsim.errors import RecordingError
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.model import Meta, Pool, Recording

_TIMEOUT_S = 5.0
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the metrics said at one moment."""

    usage: float
    """Share of the pool in use, 0 to 1."""
    running: int
    waiting: int
    preemptions: int
    """Since the server started."""
    hit_tokens: int
    """Prompt tokens found in the prefix cache since the server started."""
    num_blocks: int | None
    block_size: int | None
    model: str


def parse_metrics(text: str) -> Sample:
    """Read vLLM's metrics in Prometheus' text format; several engines are added up.

    Raises:
        RecordingError: there is no usage of a KV cache among them.
    """
    values: dict[str, list[float]] = {}
    labels: Mapping[str, str] = MappingProxyType({})
    model = ""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or not match["name"].startswith("vllm:"):
            continue
        found = dict(_LABEL.findall(match["labels"] or ""))
        model = found.get("model_name", model)
        if match["name"] == "vllm:cache_config_info":
            labels = found
        try:
            values.setdefault(match["name"], []).append(float(match["value"]))
        except ValueError:
            raise RecordingError(f"{line!r} is not a sample of a metric.") from None
    if "vllm:kv_cache_usage_perc" not in values:
        raise RecordingError("there is no vllm:kv_cache_usage_perc among the metrics: is this a vLLM V1 server?")

    def total(name: str) -> int:
        return int(sum(values.get(name, [0])))

    def number(name: str) -> int | None:
        return int(labels[name]) if labels.get(name, "").isdigit() else None

    usage = values["vllm:kv_cache_usage_perc"]
    return Sample(
        usage=sum(usage) / len(usage),
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        preemptions=total("vllm:num_preemptions_total"),
        hit_tokens=total("vllm:prefix_cache_hits_total"),
        num_blocks=number("num_gpu_blocks"),
        block_size=number("block_size"),
        model=model,
    )


class MetricsFeed:
    """Polls a `/metrics` page in a thread until `close`."""

    def __init__(self, url: str, *, period_s: float = 0.5) -> None:
        """Begin to poll `url`.

        Raises:
            RecordingError: there is no such page, or no vLLM behind it.
        """
        self.name = url
        self.ended: str | None = None
        """Why the feed has ended, as a sentence; None while it goes on."""
        self._period_s = period_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._series = _Series(self._poll(), self.name)
        self._thread = threading.Thread(target=self._follow, name="kvsim-metrics", daemon=True)
        self._thread.start()

    def recording(self) -> Recording | None:
        """Everything polled so far."""
        with self._lock:
            return self._series.recording()

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._thread.join(timeout=2 * _TIMEOUT_S)

    def _poll(self) -> Sample:
        try:
            with urllib.request.urlopen(self.name, timeout=_TIMEOUT_S) as page:
                return parse_metrics(page.read().decode("utf-8", "replace"))
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RecordingError(f"{self.name} cannot be read: {reason}.") from error

    def _follow(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                sample = self._poll()
            except RecordingError as error:
                self.ended = str(error)
                return
            with self._lock:
                self._series.add(sample)


class _Series:
    """Samples as a recording: each poll is a step, and one stand-in request holds what is in use."""

    def __init__(self, first: Sample, source: str) -> None:
        self._first = self._last = first
        self._source = source
        self._num_units = (first.num_blocks or 1001) - 1
        self._held = 0
        self._begin_s = time.monotonic()
        self._builder = RecordingBuilder()
        self._request = self._builder.arrived("in use", 0.0, 1, 1)
        self.add(first)

    def add(self, sample: Sample) -> None:
        """One more poll."""
        builder = self._builder
        now = time.monotonic() - self._begin_s
        builder.next_seq()
        held = round(sample.usage * self._num_units)
        if held != self._held:
            if self._held:
                builder.release(self._request, self._held, 0)
            if held:
                builder.append_extent(self._request, 0, 1, held, held)
            self._held = held
        if held:
            builder.scheduled(self._request, 0, held * (self._first.block_size or 16), now)
        number = builder.step(
            start_s=now,
            prefill_tokens=0,
            decode_tokens=sample.running,
            num_scheduled=sample.running,
            running=sample.running,
            waiting=sample.waiting,
            preempted=max(sample.preemptions - self._last.preemptions, 0),
            free_units=self._num_units - held,
        )
        builder.next_seq()
        builder.output(number, now)
        self._last = sample

    def recording(self) -> Recording:
        first, last = self._first, self._last
        block_size = first.block_size or 16
        engine: dict[str, Any] = {"name": "vllm", "view": "coarse, from Prometheus metrics"}
        hits = last.hit_tokens - first.hit_tokens
        meta = Meta(
            source="vllm",
            engine=engine | {"prefix_hit_tokens": hits},
            gpu="unknown GPU",
            model={"name": first.model or "unknown model"},
            policy={"name": "paged", "block_size": block_size},
            pool=Pool(unit_tokens=block_size, num_units=self._num_units, first_unit=1, bytes_per_unit=1),
            notes="Coarse: the metrics say how much is in use, not which blocks; one stand-in request holds it all."
            + ("" if first.num_blocks else " The size of the pool is unknown; it is shown as 1,000 blocks."),
            extra={"coarse": True},
        )
        return self._builder.finish(meta, self._source)
