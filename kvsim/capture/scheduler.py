"""Watch a vLLM V1 scheduler from inside its engine and report what it does as events.

The scheduler subclass in `kvsim.capture.vllm` calls the hooks here around its own methods; allocation and freeing are
watched on its cache manager. Nothing of a request but its length, its timing and the hashes of its blocks is looked
at. A defect in here ends the recording and leaves the engine alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from kvsim.capture.offload import OffloadWatch, has_offload
from kvsim.capture.sinks import Sink
from kvsim.errors import RecordingError
from kvsim.recording import eventlog

log = logging.getLogger("kvsim")

Hook = TypeVar("Hook", bound=Callable[..., None])


def _harmless(hook: Hook) -> Hook:
    """A hook that is skipped while nothing is recorded, and ends the recording instead of raising."""

    @wraps(hook)
    def guarded(self: SchedulerRecorder, *args: Any) -> None:
        if self.sink is None:
            return
        try:
            hook(self, *args)
        except Exception:
            log.exception("kvsim: recording ends here because of a defect; the engine goes on.")
            self._abandon()

    return guarded  # type: ignore[return-value]


class SchedulerRecorder:
    """Reports one scheduler's doings to a sink, from `start` to `stop`."""

    def __init__(self, scheduler: Any) -> None:
        """Watch `scheduler`, which has been set up."""
        self.sink: Sink | None = None
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._offload = OffloadWatch(scheduler, self._report_if_recording) if has_offload(scheduler) else None
        self._watch_memory()

    def check(self) -> None:
        """See whether this engine can be recorded.

        Raises:
            RecordingError: its model has several KV-cache groups.
        """
        num_groups = self._manager.num_kv_cache_groups
        if num_groups != 1:
            raise RecordingError(
                f"the model has {num_groups} KV-cache groups, as with windows in some of its layers, and kvsim records "
                "models with one."
            )
        connector = getattr(self._scheduler, "connector", None)
        if connector is not None and self._offload is None:
            raise RecordingError(
                f"the engine moves its cache with {type(connector).__name__}, and kvsim records none "
                "but vLLM's native offload."
            )

    def start(self, sink: Sink, meta: dict[str, Any]) -> None:
        """Begin a recording. Requests that the engine already holds are not part of it.

        Raises:
            RecordingError: the model has several KV-cache groups; nothing is recorded.
        """
        self.check()
        if self._offload is not None:
            self._offload.start()
            meta = meta | {"policy": meta["policy"] | self._offload.settings()}
        self._meta = meta
        self._begin_s: float | None = None
        self._held: dict[str, int] = {}  # blocks in each request's table
        self._rows: dict[str, int] = {}
        self._all_rows: dict[str, int] = {}  # of requests that have ended too: a copy may be reported afterwards
        self._num_rows = 0
        self._num_steps = 0
        self._steps_in_flight: dict[int, int] = {}
        self._last_tokens: dict[str, int] = {}
        self._awaiting_first: dict[str, Any] = {}
        self._ended: list[Any] = []
        self._evicted: list[int] = []
        self._num_preempted = 0
        self._lines: list[bytes] = [self._opening()]
        self.sink = sink
        self._send()

    def stop(self) -> None:
        """End the recording."""
        if self.sink is not None:
            self._send()
            self.sink.close()
            self.sink = None

    def _abandon(self) -> None:
        """End the recording behind the last lines that were sent, without making the engine wait."""
        sink, self.sink = self.sink, None
        if sink is not None:
            threading.Thread(target=sink.close, name="kvsim-end").start()

    @_harmless
    def arrived(self, request: Any) -> None:
        """`request` was added to the queue."""
        self._rows[request.request_id] = self._all_rows[request.request_id] = self._num_rows
        self._num_rows += 1
        self._awaiting_first[request.request_id] = request
        self._report(*self._arrival(request))
        self._send()

    @_harmless
    def scheduling(self) -> None:
        """The scheduler is about to decide a step."""
        self._start_s = self._now()
        self._num_preempted = 0
        self._report("seq")

    @_harmless
    def scheduled(self, output: Any) -> None:
        """The scheduler has decided the step in `output`."""
        tokens: dict[str, int] = output.num_scheduled_tokens
        if self._offload is not None:  # a step that computes nothing may begin copies, and report them
            self._offload.scheduled(output, self._all_rows)
        elif not tokens and not self._num_preempted:
            return
        requests = self._scheduler.requests
        num_tokens = output.total_num_scheduled_tokens
        num_prefill = 0
        if tokens and tokens == self._last_tokens and num_tokens == len(tokens):
            self._report("again", self._start_s)
        else:
            rows = []
            for name, count in tokens.items():
                request = requests[name]
                before = request.num_computed_tokens - count
                rows.append((self._rows[name], before, count))
                if count > 1 or before < request.num_prompt_tokens:
                    num_prefill += count
            self._report("tokens", self._start_s, rows)
        # What the last step computed for a prompt does not go on token by token.
        self._last_tokens = dict(tokens) if not num_prefill else {}
        self._steps_in_flight[id(output)] = self._num_steps
        self._num_steps += 1
        self._report("step", self._step_columns(self._start_s, num_prefill, num_tokens - num_prefill, len(tokens)))
        self._send()

    @_harmless
    def updating(self) -> None:
        """The output of a step is about to be processed."""
        self._report("seq")

    @_harmless
    def updated(self, output: Any) -> None:
        """The output of the step in `output` was processed."""
        time_s = self._now()
        for name in [name for name in output.num_scheduled_tokens if name in self._awaiting_first]:
            request = self._awaiting_first[name]
            if request.num_output_tokens:
                del self._awaiting_first[name]
                self._report("emit", self._rows[name], time_s, 1)
        for request in self._ended:
            self._end(request, time_s)
        self._ended.clear()
        step = self._steps_in_flight.pop(id(output), None)
        if step is not None:
            self._report("output", step, time_s)
        self._send()

    @_harmless
    def aborted(self) -> None:
        """Requests were finished from outside."""
        time_s = self._now()
        if self._offload is not None:  # one that loads keeps its blocks until that has ended
            gone = [request for name, request in self._scheduler.requests.items() if name in self._rows]
            self._ended += [request for request in gone if request.is_finished() and request not in self._ended]
        for request in self._ended:
            self._end(request, time_s)
        self._ended.clear()
        self._send()

    @_harmless
    def preempted(self, request: Any) -> None:
        """`request` is about to lose its memory."""
        if request.request_id in self._rows:
            self._num_preempted += 1
            self._report("preempt", self._rows[request.request_id])

    @_harmless
    def _allocated(self, request: Any, hits: Any, new_blocks: list[Any]) -> None:
        name = request.request_id
        if name not in self._rows:
            return
        row, held = self._rows[name], self._held.get(name, 0)
        if hits is not None and hits.blocks[0]:
            shared = [block.block_id for block in hits.blocks[0]]
            self._report("share", row, held, shared)
            held += len(shared)
        if self._evicted:
            self._report("evict", self._evicted)
            self._evicted = []
        if new_blocks:
            self._report("append", row, held, [block.block_id for block in new_blocks])
        self._held[name] = held + len(new_blocks)

    @_harmless
    def _freeing(self, request: Any, deferred: bool = False) -> None:
        name = request.request_id
        if name not in self._all_rows:
            return
        if held := self._held.pop(name, 0):
            num_cached = self._manager.coordinator.single_type_managers[0].num_cached_block.get(name, 0)
            if deferred and self._offload is not None:
                self._offload.deferring(self._all_rows[name], held, num_cached)
            else:
                self._report("release", self._all_rows[name], held, num_cached)
        if request.is_finished() and name in self._rows:
            self._ended.append(request)

    @_harmless
    def freed(self, num_tables: int) -> None:
        """The blocks of tables that were lost while steps were under way are free now."""
        if self._offload is not None:
            self._offload.freed(num_tables)

    def _watch_memory(self) -> None:
        """Put a listener around the cache manager's allocation and freeing, and around the pool's evictions."""
        manager, pool = self._manager, self._manager.block_pool
        allocate_slots, free, evict = manager.allocate_slots, manager.free, pool._maybe_evict_cached_block
        pop_blocks = getattr(manager, "pop_blocks_for_free", None)

        def watched_allocate(request: Any, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate_slots(request, *args, **kwargs)
            # Called for every running request at every step: do nothing more where nothing happened.
            if blocks is not None and self.sink is not None:
                hits = kwargs.get("new_computed_blocks") or (args[2] if len(args) > 2 else None)
                new_blocks = blocks.blocks[0]
                if kwargs.get("num_external_computed_tokens"):  # blocks that are loaded into are not among the new ones
                    table = manager.coordinator.single_type_managers[0].req_to_blocks[request.request_id]
                    new_blocks = table[self._held.get(request.request_id, 0) + len(hits.blocks[0] if hits else ()) :]
                if new_blocks or hits is not None:
                    self._allocated(request, hits, new_blocks)
            return blocks

        def watched_free(request: Any) -> Any:
            self._freeing(request)
            return free(request)

        def watched_pop(request: Any) -> Any:
            self._freeing(request, True)
            return pop_blocks(request)  # type: ignore[misc]

        def watched_evict(block: Any) -> Any:
            evicted = evict(block)
            if evicted and self.sink is not None:
                self._evicted.append(block.block_id)
            return evicted

        manager.allocate_slots, manager.free = watched_allocate, watched_free
        if pop_blocks is not None:
            manager.pop_blocks_for_free = watched_pop
        pool._maybe_evict_cached_block = watched_evict

    def _opening(self) -> bytes:
        """The first line of a log that begins now."""
        queue = self._manager.block_pool.free_block_queue.get_all_free_blocks()
        return eventlog.line("meta", self._meta | {"initial_free": [block.block_id for block in queue]})

    def _arrival(self, request: Any) -> tuple[Any, ...]:
        hashes = [int.from_bytes(key[:8], "little", signed=True) for key in request.block_hashes]
        return (
            "arrive",
            request.request_id,
            self._now(),
            request.num_prompt_tokens,
            request.max_tokens,
            request.priority,
            hashes[: request.num_prompt_tokens // self._scheduler.block_size],
        )

    def _step_columns(self, start_s: float, num_prefill: int, num_decode: int, num_scheduled: int) -> dict[str, float]:
        scheduler = self._scheduler
        return {
            "start_s": start_s,
            "prefill_tokens": num_prefill,
            "decode_tokens": num_decode,
            "num_scheduled": num_scheduled,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting) + len(scheduler.skipped_waiting),
            "preempted": self._num_preempted,
            "free_units": self._manager.block_pool.get_num_free_blocks(),
        }

    def _end(self, request: Any, time_s: float) -> None:
        name = request.request_id
        row = self._rows.pop(name)
        outputs = request.num_output_tokens
        if self._awaiting_first.pop(name, None) is None:
            outputs -= 1
        if outputs:
            self._report("emit", row, time_s, outputs)
        status = "aborted" if request.status.name == "FINISHED_ABORTED" else "finished"
        self._report("end", row, status, time_s)

    def _now(self) -> float:
        now = time.monotonic()
        if self._begin_s is None:
            self._begin_s = now
        return round(now - self._begin_s, 9)

    def _report_if_recording(self, *event: Any) -> None:
        if self.sink is not None:
            self._report(*event)

    def _report(self, *event: Any) -> None:
        self._lines.append(eventlog.line(*event))

    def _send(self) -> None:
        if self.sink is not None and self._lines:
            self.sink.write(b"".join(self._lines))
            self._lines = []
