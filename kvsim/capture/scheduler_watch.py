"""Recorder of a vLLM V1 scheduler inside its engine, which reports every decision as an event of a recording.

The scheduler subclass in `kvsim.capture.vllm` calls the hooks of `SchedulerRecorder` before and after its own methods.
`table_watch` observes the blocks that requests get and free. Only lengths, times and block hashes of requests are
recorded, never tokens. A defect in this code ends the recording; the engine continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from kvsim.capture.draft_watch import DraftWatch, check_drafts, proposed, speculates
from kvsim.capture.image_watch import ImageWatch, encoder_settings
from kvsim.capture.kv_cache_specs import layout_of
from kvsim.capture.offload_copies import OffloadWatch, has_offload
from kvsim.capture.release_settings import (
    check_features,
    num_waiting,
    warn_if_untried,
)
from kvsim.capture.sinks import LogSink
from kvsim.capture.table_watch import TableWatch
from kvsim.capture.transfer_watch import TransferWatch, check_transfers, has_transfers
from kvsim.errors import RecordingError
from kvsim.recording import eventlog

log = logging.getLogger("kvsim")

_CUT_SHORT = ("FINISHED_ABORTED", "FINISHED_ERROR")
"""Statuses in vLLM of requests that a recording shows as aborted."""

_CLOCK_STEP_S = 0.001
"""Change in seconds between wall clock and monotonic clock that means that the wall clock was set."""
_LONGEST_DELAY_S = 600.0
"""Longest time in seconds from front end to engine. A longer one means a time stamp of another clock."""

Hook = TypeVar("Hook", bound=Callable[..., None])


def _harmless(hook: Hook) -> Hook:
    """Wrap a hook: it does nothing while nothing is recorded, and if it fails, only the recording ends."""

    @wraps(hook)
    def guarded(self: SchedulerRecorder, *args: Any) -> None:
        self.call(hook, self, *args)

    return guarded  # type: ignore[return-value]


class SchedulerRecorder:
    """Reporter of the actions of one scheduler to a sink, from `start` to `stop`."""

    def __init__(self, scheduler: Any, release: str) -> None:
        """Watch `scheduler`, which must be fully initialized. `release` is the version of vLLM."""
        self.sink: LogSink | None = None
        self._release = release
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._offload = OffloadWatch(scheduler, self._report_if_recording) if has_offload(scheduler) else None
        is_exchange = has_transfers(scheduler)
        self._transfers = TransferWatch(scheduler, self._report_if_recording, self._now) if is_exchange else None
        self._drafts = DraftWatch() if speculates(scheduler) else None
        has_encoder = bool(encoder_settings(scheduler))
        self._images = ImageWatch(scheduler, self._report_if_recording, self._encoder_changed) if has_encoder else None
        # In a pipeline, empty steps are recorded too: with N stages, a sequence decodes only in every Nth step.
        self._is_pipeline = scheduler.parallel_config.pipeline_parallel_size > 1
        self._tables = TableWatch(scheduler, self)

    def check(self) -> None:
        """Check that this engine can be recorded.

        Raises:
            RecordingError: it cannot; the message says why.
        """
        self._layout = layout_of(self._scheduler.kv_cache_config, self._manager.block_pool.hash_block_size)
        check_features(self._scheduler, self._layout, offloads=self._offload is not None)
        if self._transfers is not None:
            check_transfers(self._scheduler, self._layout, self._release)
        if self._drafts is not None:
            check_drafts(self._scheduler, self._layout, self._release)
        self._tables.set_layout(self._layout, self._release)

    def start(self, sink: LogSink, meta: dict[str, Any]) -> None:
        """Begin a recording. Requests that the engine already has are not recorded. `meta` is for `meta.json`.

        Raises:
            RecordingError: this engine cannot be recorded.
        """
        self.check()
        warn_if_untried(self._release)
        if self._offload is not None:
            self._offload.start()
            meta = meta | {"policy": meta["policy"] | self._offload.settings()}
        self._begin_s: float | None = None
        self._ahead_s = 0.0
        """Seconds by which the wall clock is ahead of the monotonic clock."""
        self._rows: dict[str, int] = {}
        self._all_rows: dict[str, int] = {}
        """Row in the recording of each request, also of those that have ended: their copies may be reported later."""
        self._adapters: dict[str, int] = {}
        self._num_rows = 0
        self._num_steps = 0
        self._steps_in_flight: dict[int, int] = {}
        self._last_tokens: dict[str, int] = {}
        self._awaiting_first: dict[str, Any] = {}
        self._ended: list[Any] = []
        self._num_preempted = 0
        self._tables.start(self._rows, self._all_rows)
        if self._transfers is not None:
            self._transfers.start(self._all_rows)
            meta = meta | {"engine": meta["engine"] | self._transfers.settings()}
        if self._images is not None:
            self._images.start(self._all_rows)
        queue = self._manager.block_pool.free_block_queue.get_all_free_blocks()
        meta = meta | {"initial_free": [block.block_id for block in queue]}
        self._lines: list[bytes] = [eventlog.line("meta", meta)]
        self.sink = sink
        self._send()

    @property
    def is_recording(self) -> bool:
        """True from `start` to `stop`; False after an error has ended the recording."""
        return self.sink is not None

    def call(self, hook: Callable[..., None], *args: Any) -> None:
        """Call `hook` if something is recorded. If it fails, the recording ends and the engine goes on."""
        if self.sink is None:
            return
        try:
            hook(*args)
        except RecordingError as error:
            log.warning("kvsim: recording ends here, and the engine goes on: %s", error)
            self._abandon()
        except Exception:
            log.exception("kvsim: recording ends here because of a defect; the engine goes on.")
            self._abandon()

    def stop(self) -> None:
        """End the recording."""
        if self.sink is not None:
            self._send()
            self.sink.close()
            self.sink = None

    def _abandon(self) -> None:
        """End the recording without making the engine wait. Lines that are not sent yet are lost."""
        sink, self.sink = self.sink, None
        if sink is not None:
            threading.Thread(target=sink.close, name="kvsim-end").start()

    @_harmless
    def arrived(self, request: Any) -> None:
        """Report that `request` was added to the waiting queue."""
        self._rows[request.request_id] = self._all_rows[request.request_id] = self._num_rows
        self._num_rows += 1
        self._awaiting_first[request.request_id] = request
        hashes = [int.from_bytes(key[:8], "little", signed=True) for key in request.block_hashes]
        hashes = hashes[: request.num_prompt_tokens // self._layout.hash_block_size]
        if self._transfers is not None:
            self._transfers.arrived(request)
        lengths = request.num_prompt_tokens, request.max_tokens
        time_s = self._now()
        more = self._adapter_of(request), self._delay_s(request, time_s)
        self.report("arrive", request.request_id, time_s, *lengths, request.priority, hashes, *more)
        if getattr(request, "mm_features", None):
            if self._images is None:
                raise RecordingError(f"request {request.request_id} has images, and the engine has no encoder cache.")
            self._images.arrived(request, self._release)
        self._send()

    @_harmless
    def _encoder_changed(self, request: Any, input_id: int, evicted: list[str]) -> None:
        assert self._images is not None
        self._images.changed(request, input_id, evicted)

    @_harmless
    def scheduling(self) -> None:
        """Report that the scheduler begins to decide a step."""
        self._start_s = self._now()
        self._num_preempted = 0
        self.report("seq")

    @_harmless
    def scheduled(self, output: Any) -> None:
        """Report the step that the scheduler has decided. `output` is vLLM's `SchedulerOutput`."""
        tokens: dict[str, int] = output.num_scheduled_tokens
        if self._images is not None:
            self._images.check_unchanged()
        if self._offload is not None:  # a step that computes nothing may begin or report copies
            self._offload.scheduled(output, self._all_rows)
        elif not (tokens or self._num_preempted or self._is_pipeline or self._transfers is not None):
            return
        requests = self._scheduler.requests
        num_tokens = output.total_num_scheduled_tokens
        num_prefill = 0
        drafts = self._drafts is not None
        if tokens and tokens == self._last_tokens and num_tokens == len(tokens) and not drafts:
            self.report("again", self._start_s)
        else:
            rows: list[tuple[int, ...]] = []
            for name, count in tokens.items():
                request = requests[name]
                before = request.num_computed_tokens - count
                known: tuple[int, ...] = (request.num_tokens,) if drafts else ()
                rows.append((self._rows[name], before, count, *known))
                # A preempted request computes its outputs again: several tokens at once, or, with drafts, tokens
                # before the last known one.
                is_again = count > 1 and (not drafts or before < known[0] - 1)
                if is_again or before < request.num_prompt_tokens:
                    num_prefill += count
            self.report("tokens", self._start_s, rows)
        # The event "again" repeats a step of decodes; a step with prompt tokens cannot be repeated.
        self._last_tokens = dict(tokens) if not num_prefill else {}
        self._steps_in_flight[id(output)] = self._num_steps
        self._num_steps += 1
        scheduler = self._scheduler
        columns = {
            "start_s": self._start_s,
            "prefill_tokens": num_prefill,
            "decode_tokens": num_tokens - num_prefill,
            "num_scheduled": len(tokens),
            "running": len(scheduler.running),
            "waiting": num_waiting(scheduler),
            "preempted": self._num_preempted,
            "free_units": self._manager.block_pool.get_num_free_blocks(),
        }
        self.report("step", columns)
        self._send()

    @_harmless
    def updating(self, output: Any = None, answer: Any = None) -> None:
        """Report that the output of a step is about to be processed, or that requests are about to end.

        `output` is vLLM's `SchedulerOutput` of the step, and `answer` the model's output; both None without an output.
        """
        self.report("seq")
        if self._drafts is not None and output is not None:
            self._drafts.updating(self._scheduler, output)
        if self._transfers is not None:
            self._transfers.updating(answer)

    @_harmless
    def updated(self, output: Any) -> None:
        """Report that the step's output was processed. `output` is vLLM's `SchedulerOutput` of the step."""
        time_s = self._now()
        for name in [name for name in output.num_scheduled_tokens if name in self._awaiting_first]:
            request = self._awaiting_first[name]
            if request.num_output_tokens:
                del self._awaiting_first[name]
                self.report("emit", self._rows[name], time_s, 1)
        given = [] if self._drafts is None else [self._drafts.gained(self._rows)]
        step = self._steps_in_flight.pop(id(output), None)
        if step is not None:
            self.report("output", step, time_s, *given)
        self._end(time_s)
        self._send()

    @_harmless
    def proposed(self, names: list[str]) -> None:
        """Report the number of drafts that each request in `names` got after the last step."""
        if self._num_steps:
            self.report("proposed", self._num_steps - 1, proposed(self._scheduler, names, self._rows))
            self._send()

    @_harmless
    def aborted(self) -> None:
        """Report the ends of requests that a client or the server has aborted."""
        time_s = self._now()
        # An aborted request that still loads blocks is not freed now, so `_freeing` has not noted its end.
        if self._offload is not None or self._transfers is not None:
            gone = [request for name, request in self._scheduler.requests.items() if name in self._rows]
            self._ended += [request for request in gone if request.is_finished() and request not in self._ended]
        self._end(time_s)
        self._send()

    @_harmless
    def preempted(self, request: Any) -> None:
        """Report that `request` is about to be preempted and to lose its blocks."""
        if request.request_id in self._rows:
            self._num_preempted += 1
            self.report("preempt", self._rows[request.request_id])

    @_harmless
    def kept(self, request: Any) -> None:
        """Report that `request` has ended, but keeps its blocks until another server has read them."""
        if self._transfers is not None:
            self._transfers.kept(request)
            self.ending(request)

    def ending(self, request: Any) -> None:
        """Note that `request` has finished. `updated` or `aborted`, whichever follows, reports its end."""
        if request.request_id in self._rows:
            self._ended.append(request)

    @_harmless
    def freed(self, num_tables: int) -> None:
        """Report that vLLM has freed the next `num_tables` block tables whose release it had deferred."""
        self._tables.freed(num_tables)

    def _adapter_of(self, request: Any) -> int:
        adapter = getattr(request, "lora_request", None)
        return 0 if adapter is None else self._adapters.setdefault(adapter.lora_name, len(self._adapters) + 1)

    def _end(self, time_s: float) -> None:
        for request in self._ended:
            row, outputs = self._rows.pop(request.request_id), request.num_output_tokens
            if self._awaiting_first.pop(request.request_id, None) is None:
                outputs -= 1
            if outputs:
                self.report("emit", row, time_s, outputs)
            if self._transfers is not None:
                self._transfers.ended(request)
            status = "aborted" if request.status.name in _CUT_SHORT else "finished"
            self.report("end", row, status, time_s)
        self._ended.clear()

    def _now(self) -> float:
        now = time.monotonic()
        if self._begin_s is None:
            self._begin_s = now
        return round(now - self._begin_s, 9)

    def _delay_s(self, request: Any, time_s: float) -> float:
        """Return the seconds from when the server's front end got `request` until `time_s`.

        vLLM stamps a request there by the wall clock, before the text of its prompt is converted to tokens. The front
        end may be another process, with only this clock in common. The result is 0 for a stamp of another clock.
        """
        assert self._begin_s is not None
        # The distance of the clocks is kept, so that delays are exact enough for the order of requests.
        ahead_s = time.time() - time.monotonic()
        if abs(ahead_s - self._ahead_s) > _CLOCK_STEP_S:
            self._ahead_s = ahead_s
        delay_s = time_s - round(request.arrival_time - self._ahead_s - self._begin_s, 9)
        return round(delay_s, 9) if 0 <= delay_s <= _LONGEST_DELAY_S else 0.0

    def _report_if_recording(self, *event: Any) -> None:
        if self.sink is not None:
            self.report(*event)

    def report(self, *event: Any) -> None:
        """Add an event, its name and its fields, to the lines that are sent next."""
        self._lines.append(eventlog.line(*event))

    def _send(self) -> None:
        if self.sink is not None and self._lines:
            self.sink.write(b"".join(self._lines))
            self._lines = []
