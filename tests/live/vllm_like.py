"""A small server with two of vLLM's pages: it answers completions, from a pool of blocks that may run short, and says
in `/metrics` what it does, in vLLM's words.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK_SIZE = 16


@dataclass(eq=False)
class Sequence:
    """A completion on its way."""

    prompt_tokens: int
    max_tokens: int
    num_generated: int = 0
    num_blocks: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def needs(self, num_tokens: int) -> int:
        """Blocks that it lacks for so many tokens."""
        return -(-num_tokens // BLOCK_SIZE) - self.num_blocks


class Engine:
    """First come, first served; whoever was admitted last gives way."""

    def __init__(self, num_blocks: int, step_s: float) -> None:
        self.num_blocks, self.step_s = num_blocks, step_s
        self.free = num_blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.counts = dict.fromkeys(("num_preemptions", "prompt_tokens", "generation_tokens", "request_success"), 0)
        self.lock = threading.Lock()
        self._page = self._written()

    def metrics(self) -> str:
        """As vLLM writes them, at the end of a step: a request that waits there was not admitted by it."""
        with self.lock:
            return self._page

    def run(self, until: threading.Event) -> None:
        """Take steps."""
        while not until.wait(self.step_s):
            with self.lock:
                self._step()
                self._page = self._written()

    def _step(self) -> None:
        while self.waiting and self.waiting[0].needs(self.waiting[0].prompt_tokens) <= self.free:
            admitted = self.waiting.pop(0)
            self._grow(admitted, admitted.prompt_tokens)
            self.running.append(admitted)
            self.counts["prompt_tokens"] += admitted.prompt_tokens
        for sequence in list(self.running):
            length = sequence.prompt_tokens + sequence.num_generated + 1
            while sequence in self.running and sequence.needs(length) > self.free:
                self._preempt(self.running[-1])
            if sequence in self.running:
                self._grow(sequence, length)
                self._generate(sequence)

    def _grow(self, sequence: Sequence, num_tokens: int) -> None:
        more = max(sequence.needs(num_tokens), 0)
        sequence.num_blocks += more
        self.free -= more

    def _generate(self, sequence: Sequence) -> None:
        sequence.num_generated += 1
        self.counts["generation_tokens"] += 1
        if sequence.num_generated == sequence.max_tokens:
            self._release(sequence)
            self.counts["request_success"] += 1
            sequence.done.set()

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        self.counts["num_preemptions"] += 1
        sequence.prompt_tokens += sequence.num_generated
        sequence.max_tokens -= sequence.num_generated
        sequence.num_generated = 0
        self.waiting.insert(0, sequence)

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.free += sequence.num_blocks
        sequence.num_blocks = 0

    def _written(self) -> str:
        labels = 'engine="0",model_name="small"'
        lines = [f"vllm:{name}_total{{{labels}}} {count}" for name, count in self.counts.items()]
        lines += [
            f"vllm:kv_cache_usage_perc{{{labels}}} {1 - self.free / self.num_blocks}",
            f"vllm:num_requests_running{{{labels}}} {len(self.running)}",
            f"vllm:num_requests_waiting{{{labels}}} {len(self.waiting)}",
            f'vllm:cache_config_info{{block_size="{BLOCK_SIZE}",num_gpu_blocks="{self.num_blocks}"}} 1.0',
        ]
        return "\n".join(lines) + "\n"


class Pages(BaseHTTPRequestHandler):
    """`GET /metrics` and `POST /v1/completions`."""

    engine: Engine

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(self.engine.metrics().encode())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sequence = Sequence(len(asked["prompt"]), int(asked["max_tokens"]))
        with self.engine.lock:
            self.engine.waiting.append(sequence)
        sequence.done.wait(30)
        with suppress(OSError):  # a client may have gone
            self._send(
                json.dumps({"object": "text_completion", "usage": {"completion_tokens": asked["max_tokens"]}}).encode()
            )

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(num_blocks: int, step_s: float = 0.002) -> Iterator[tuple[str, Engine]]:
    """A server on this machine: its `HOST:PORT`, and what it does."""
    engine, over = Engine(num_blocks, step_s), threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("OfEngine", (Pages,), {"engine": engine})) as server:
        server.daemon_threads = True
        threads = [
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True),
            threading.Thread(target=engine.run, args=(over,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", engine
        finally:
            over.set()
            server.shutdown()
            for thread in threads:
                thread.join(5)
