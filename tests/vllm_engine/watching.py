"""What a server tells of an engine from outside: its page of metrics and its KV events, made by vLLM's own classes.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import prometheus_client
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats

METRICS, EVENTS, STATE = "metrics.txt", "events.txt", "state.json"
"""Files: the page; a batch of events in base64 a line, as they are published; and the keys of its cache,
with their groups."""


class Watcher:
    """Hears what an engine says of its requests, as the front end of a server does."""

    def __init__(self, engine: Any, config: Any, folder: Path) -> None:
        self._scheduler, self._folder = engine.scheduler, folder
        self._front_end = OutputProcessor(None, log_stats=True)
        self._metrics = PrometheusStatLogger(config, [0])
        self._metrics.log_engine_initialized()
        self._batches: list[bytes] = []
        self._num_preemptions = 0
        self._scheduler.kv_event_publisher.publish = self._published

    def asked(self, request: Any) -> None:
        """A client has sent a request."""
        self._front_end.add_request(request, None)

    def stepped(self, answers: dict[int, Any] | None) -> None:
        """The engine has answered."""
        for answer in (answers or {}).values():
            stats = IterationStats()
            self._front_end.process_outputs(answer.outputs, answer.timestamp, stats)
            self._metrics.record(answer.scheduler_stats, stats)
            self._num_preemptions += stats.num_preempted_reqs

    def look(self) -> None:
        """Write down what is told at this moment, and what the engine holds."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / METRICS).write_bytes(prometheus_client.generate_latest())
        (self._folder / EVENTS).write_bytes(b"\n".join(base64.b64encode(batch) for batch in self._batches))
        scheduler = self._scheduler
        pool = scheduler.kv_cache_manager.block_pool
        keys = pool.cached_block_hash_to_block._cache
        state = {
            "keys": [[get_group_id(key), maybe_convert_block_hash(get_block_hash(key))] for key in keys],
            "num_blocks": pool.num_gpu_blocks,
            "usage": pool.get_usage(),
            "running": len(scheduler.running),
            "waiting": scheduler.get_request_counts()[1],
            "preemptions": self._num_preemptions,
        }
        (self._folder / STATE).write_text(json.dumps(state))

    def _published(self, batch: Any) -> None:
        self._batches.append(msgspec.msgpack.encode(batch))
