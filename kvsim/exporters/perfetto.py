"""Export recordings as Perfetto traces: engine steps, phases of requests, and memory by state.

Open the file at https://ui.perfetto.dev, which shows them on a common time axis. Times are nanoseconds from the
recording's first event. Equal recordings make equal files.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kvsim.exporters.packets import Bytes, joined, message, number, where
from kvsim.files.atomic import whole_file
from kvsim.memory.waste import SlotState
from kvsim.metrics import waste
from kvsim.replay.host_memory import host_memory

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from kvsim.metrics.gaps import Gaps
    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray

MAX_REQUEST_TRACKS = 1000
"""Most requests with a track each. More share tracks ("lane 0"), because the viewer is slow with many."""
_ENGINE, _REQUESTS, _POOL, _HOST, _WINDOWS = 1, 2, 3, 4, 5
_FIRST_COUNTER, _FIRST_REQUEST = 10, 1000
_SEQUENCE = 1
_ROWS_AT_ONCE = 1 << 14
"""Number of rows that are encoded together, so that their columns fit into the CPU cache."""
_NOTES = ("step", "num_scheduled", "prefill_tokens", "decode_tokens", "running", "waiting", "free_units")
_ABOUT = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")


def write_perfetto(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write `recording` atomically as the trace file `path`.

    - `engine`: a slice per step, and an instant per preemption. A slice ends with the output of its step. It begins
      when the step is scheduled, or with the previous output if that is later: steps of an asynchronous scheduler
      overlap, but slices must not.
    - `requests`: a slice each for waiting, prompt and answer.
    - `KV pool`: a counter in bytes per state, and counters of running sequences and waiting requests.
    - `host memory`, with offloading: the bytes stored there, being copied there, and being copied back.

    Raises:
        RecordingError: the recording has no steps.
        UsageError: the file cannot be written.
    """
    slots = waste(recording)
    assert slots.in_gaps is not None
    gaps, slots = slots.in_gaps.gaps, slots.with_gaps()
    with whole_file(path) as scratch, scratch.open("wb") as file:
        trace = _Trace(file)
        trace.track(_ENGINE, "engine: steps")
        _write_steps(trace, recording)
        trace.track(_REQUESTS, "requests")
        _write_requests(trace, recording)
        trace.track(_POOL, "KV pool")
        pool = recording.meta.pool
        bytes_per_slot = pool.bytes_per_slot
        uuid = _FIRST_COUNTER
        for state in SlotState:
            values = (slots.slots[:, state] * bytes_per_slot).astype(np.int64)
            if values.any():
                trace.counter(uuid, state.name.lower(), slots.time_s, values, parent=_POOL, counts_bytes=True)
                uuid += 1
        for name in ("running", "waiting"):
            trace.counter(uuid, name, *gaps.over_time(recording, name))
            uuid += 1
        _write_host(trace, recording, gaps, uuid)
        _write_windows(trace, recording, gaps, uuid)
    return Path(path)


class _Trace:
    """Writer of the packets of one trace. Names are written once and numbered; frequent packets encoded together."""

    def __init__(self, file: BinaryIO) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, Trace, TracePacket, TrackEvent  # noqa: PLC0415  brings protobuf

        self._file, self._trace, self._packet = file, Trace, TracePacket
        self._begins, self._ends = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
        self._happens, self._counts = TrackEvent.TYPE_INSTANT, TrackEvent.TYPE_COUNTER
        self._in_trace, self._in_packet, self._in_event, self._in_note = map(
            _numbers_of_fields, (Trace, TracePacket, TrackEvent, DebugAnnotation)
        )
        self._event_names: dict[str, int] = {}
        self._note_names: dict[str, int] = {}
        self._write(TracePacket(sequence_flags=TracePacket.SEQ_INCREMENTAL_STATE_CLEARED))

    def track(self, uuid: int, name: str, *, parent: int | None = None, counts_bytes: bool | None = None) -> None:
        """Write the descriptor of a track.

        `parent` is the uuid of the track above it; None for a track at the top. `counts_bytes` tells whether a
        counter's unit is bytes; it is None if the track is no counter.
        """
        packet = self._packet()
        packet.track_descriptor.uuid, packet.track_descriptor.name = uuid, name
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        if counts_bytes is not None:
            unit = type(packet.track_descriptor.counter)
            packet.track_descriptor.counter.unit = unit.UNIT_SIZE_BYTES if counts_bytes else unit.UNIT_COUNT
        self._write(packet)

    def event_names(self, names: Iterable[str]) -> list[int]:
        return self._numbers(self._event_names, list(names), "event_names")

    def slices(
        self,
        uuid: IntArray | int,
        name: IntArray | int,
        begin_s: FloatArray,
        end_s: FloatArray,
        notes: Mapping[str, IntArray],
    ) -> list[Bytes]:
        """Encode the begin and the end of one slice per entry of `begin_s`; return the bytes of both, by entry.

        An entry that does not end after its begin has no slice, and its bytes are empty. `uuid` is that of the track,
        `name` the number of an event name. `notes` has the values of each annotation by its name.
        """
        event, note = self._in_event, self._in_note
        lasts = end_s > begin_s
        begin_s, end_s = np.where(lasts, begin_s, 0.0), np.where(lasts, end_s, 0.0)
        numbers = self._numbers(self._note_names, list(notes), "debug_annotation_names")
        about = [
            message(event["debug_annotations"], [number(note["name_iid"], name_iid), number(note["int_value"], values)])
            for name_iid, values in zip(numbers, notes.values(), strict=True)
        ]
        begins = self._events(begin_s, uuid, self._begins, [*about, number(event["name_iid"], name)])
        return [where(lasts, begins), where(lasts, self._events(end_s, uuid, self._ends, []))]

    def instants(self, uuid: int, name: IntArray, time_s: FloatArray, happens: npt.NDArray[np.bool_]) -> list[Bytes]:
        return [where(happens, self._events(time_s, uuid, self._happens, [number(self._in_event["name_iid"], name)]))]

    def write(self, parts: list[Bytes]) -> None:
        self._file.write(joined(parts))

    def counter(
        self,
        uuid: int,
        name: str,
        time_s: FloatArray,
        values: IntArray,
        *,
        parent: int | None = None,
        counts_bytes: bool = False,
    ) -> None:
        """Write a track of a value over time. Equal successive values are written once. See `track` for `parent`."""
        self.track(uuid, name, parent=parent, counts_bytes=counts_bytes)
        # The value put before the first one differs from it, so that the first one is written.
        changed = np.flatnonzero(np.diff(values, prepend=values[0] - 1 if len(values) else 0))
        for rows in _parts(len(changed)):
            at = changed[rows]
            value = number(self._in_event["counter_value"], values[at])
            self.write([self._events(time_s[at], uuid, self._counts, [value])])

    def _events(self, time_s: FloatArray, uuid: IntArray | int, kind: int, more: list[Bytes]) -> Bytes:
        packet, event = self._in_packet, self._in_event
        inside = [number(event["type"], kind), number(event["track_uuid"], uuid), *more]
        return message(
            self._in_trace["packet"],
            [
                number(packet["timestamp"], np.rint(time_s * 1e9).astype(np.int64)),
                number(packet["trusted_packet_sequence_id"], _SEQUENCE),
                number(packet["sequence_flags"], self._packet.SEQ_NEEDS_INCREMENTAL_STATE),
                message(packet["track_event"], inside),
            ],
        )

    def _numbers(self, known: dict[str, int], names: list[str], kind: str) -> list[int]:
        new = [name for name in dict.fromkeys(names) if name not in known]
        if new:
            packet = self._packet(sequence_flags=self._packet.SEQ_NEEDS_INCREMENTAL_STATE)
            for name in new:
                known[name] = len(known) + 1
                getattr(packet.interned_data, kind).add(iid=known[name], name=name)
            self._write(packet)
        return [known[name] for name in names]

    def _write(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        self._file.write(self._trace(packet=[packet]).SerializeToString())


def _numbers_of_fields(kind: Any) -> dict[str, int]:
    return {field.name: field.number for field in kind.DESCRIPTOR.fields}


def _parts(count: int) -> list[slice]:
    return [slice(begin, begin + _ROWS_AT_ONCE) for begin in range(0, count, _ROWS_AT_ONCE)]


def _write_steps(trace: _Trace, recording: Recording) -> None:
    steps = recording.steps
    # Slices of one track must not overlap, but steps in flight do. So a slice begins after the end of all steps before.
    before = np.concatenate(([0.0], np.maximum.accumulate(steps.end_s)[:-1]))
    decode, prefill, both = trace.event_names(("decode", "prefill", "prefill and decode"))
    counts, which = np.unique(steps.preempted, return_inverse=True)
    preempted = np.array(trace.event_names(f"{count} preempted" for count in counts.tolist()))[which]
    for rows in _parts(len(steps)):
        notes = {name: getattr(steps, name)[rows] for name in _NOTES}
        prompts, answers = notes["prefill_tokens"] > 0, notes["decode_tokens"] > 0
        kind = np.where(prompts & answers, both, np.where(prompts, prefill, decode))
        begin_s = np.maximum(steps.start_s[rows], before[rows])
        trace.write([
            *trace.instants(_ENGINE, preempted[rows], steps.start_s[rows], steps.preempted[rows] > 0),
            *trace.slices(_ENGINE, kind, begin_s, steps.end_s[rows], notes),
        ])  # fmt: skip


def _write_host(trace: _Trace, recording: Recording, gaps: Gaps, uuid: int) -> None:
    host, steps = host_memory(recording), recording.steps
    if host is None:
        return
    trace.track(_HOST, "host memory")
    unit_bytes = recording.meta.pool.bytes_per_unit
    time_s = np.append(steps.start_s, recording.duration_s)
    trace.counter(uuid, "on the host", time_s, host.used * host.slot_bytes, parent=_HOST, counts_bytes=True)
    copies = {"going there": (host.storing, host.storing_after), "coming back": (host.loading, host.loading_after)}
    for nth, (name, (of_steps, after)) in enumerate(copies.items(), start=1):
        time_s, num_blocks = gaps.joined(steps, of_steps[:-1], after[gaps.step])
        trace.counter(uuid + nth, name, time_s, num_blocks * unit_bytes, parent=_HOST, counts_bytes=True)


def _write_windows(trace: _Trace, recording: Recording, gaps: Gaps, uuid: int) -> None:
    windows, steps = recording.meta.pool.windows, recording.steps
    if windows is None or steps.free_window_units is None or steps.cached_window_units is None:
        return
    trace.track(_WINDOWS, "layers with windows")
    free, cached = steps.free_window_units, steps.cached_window_units
    # Recordings of earlier versions do not state what an output leaves; there a value holds until the next step.
    free_after = free if steps.free_window_units_after is None else steps.free_window_units_after
    cached_after = cached if steps.cached_window_units_after is None else steps.cached_window_units_after
    values = {
        "windows held": (windows.num_units - free, windows.num_units - free_after),
        "windows cached": (cached, cached_after),
    }
    for nth, (name, (of_steps, after)) in enumerate(values.items()):
        time_s, units = gaps.joined(steps, of_steps, after[gaps.step])
        size = units.astype(np.int64) * windows.bytes_per_unit
        trace.counter(uuid + nth, name, time_s, size, parent=_WINDOWS, counts_bytes=True)


def _write_requests(trace: _Trace, recording: Recording) -> None:
    requests = recording.requests
    order = np.argsort(requests.arrival_s, kind="stable").tolist()
    end_s = np.fmax.reduce(
        [requests.arrival_s, requests.first_scheduled_s, requests.first_token_s, requests.finished_s]
    )
    lanes = order if len(requests) <= MAX_REQUEST_TRACKS else _lanes(order, requests.arrival_s, end_s)
    for lane in sorted(set(lanes)):
        name = str(requests.id[lane]) if len(requests) <= MAX_REQUEST_TRACKS else f"lane {lane}"
        trace.track(_FIRST_REQUEST + lane, name, parent=_REQUESTS)
    waiting, prompt, answer = trace.event_names(("waiting", "prompt", "answer"))
    rows, uuids = np.array(order, np.int64), _FIRST_REQUEST + np.array(lanes, np.int64)
    for part in _parts(len(rows)):
        at, uuid = rows[part], uuids[part]
        arrival_s, scheduled_s = requests.arrival_s[at], requests.first_scheduled_s[at]
        first_s, finished_s = requests.first_token_s[at], requests.finished_s[at]
        request = {"request": at}
        about = request | {name: getattr(requests, name)[at] for name in _ABOUT}
        trace.write([
            *trace.slices(uuid, waiting, arrival_s, scheduled_s, request),
            *trace.slices(uuid, prompt, scheduled_s, first_s, about),
            *trace.slices(uuid, answer, first_s, finished_s, about),
        ])  # fmt: skip


def _lanes(order: list[int], arrival_s: FloatArray, end_s: FloatArray) -> list[int]:
    """Return the lane of each request in `order`: the lowest that is free when the request arrives."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = []
    for row in order:
        while busy and busy[0][0] <= arrival_s[row]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float(end_s[row]), lane))
        lanes.append(lane)
    return lanes
