"""A recording as a Perfetto trace: what the engine did, what each request waited for, and where the memory was.

Open the file at https://ui.perfetto.dev. Times are nanoseconds from the recording's first event; nothing in the file
depends on when or where it was written.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.atomic import whole_file
from kvsim.memory.waste import SlotState
from kvsim.metrics import waste
from kvsim.recording.host_memory import host_memory

if TYPE_CHECKING:
    import os

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray, IntArray

MAX_REQUEST_TRACKS = 1000
"""With more requests, a track is a lane that serves one after the other: the viewer cannot draw more."""
_ENGINE, _REQUESTS, _POOL, _HOST = 1, 2, 3, 4
_FIRST_COUNTER, _FIRST_REQUEST = 10, 1000
_SEQUENCE = 1


def write_perfetto(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write `recording` as the trace file `path`, which appears when it is whole.

    - `engine`: a slice per step, from the later of its schedule and the output before it to its own output (an engine
      that schedules ahead has overlapping steps, and slices must not overlap); preemptions are instants.
    - `requests`: for each, a slice of waiting, one of its prompt and one of its answer.
    - `KV pool`: a counter in bytes per state, and counters of sequences running and requests waiting.
    - `host memory`, where blocks are offloaded: what stands there, what goes there and what comes back, in bytes.

    Raises:
        RecordingError: the recording has no steps.
        UsageError: the file cannot be written.
    """
    slots = waste(recording)
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
                trace.counter(uuid, state.name.lower(), slots.time_s, values, parent=_POOL, is_bytes=True)
                uuid += 1
        steps = recording.steps
        for name, counts in (("running", steps.running), ("waiting", steps.waiting)):
            trace.counter(uuid, name, steps.start_s, counts)
            uuid += 1
        _write_host(trace, recording, uuid)
    return Path(path)


class _Trace:
    """Packets of one trace, written as they come. Equal recordings make equal files: track numbers are fixed."""

    def __init__(self, file: Any) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # noqa: PLC0415  brings protobuf
            TracePacket,
            TrackEvent,
        )
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder  # noqa: PLC0415

        self._builder = StreamingTraceProtoBuilder(file)
        self._event = TrackEvent
        first = self._builder.create_packet()
        first.trusted_packet_sequence_id = _SEQUENCE
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._builder.write_packet(first)

    def track(self, uuid: int, name: str, *, parent: int | None = None) -> Any:
        """Announce a track."""
        self._builder.write_packet(self._descriptor(uuid, name, parent))

    def slice(self, uuid: int, name: str, begin_s: float, end_s: float, **notes: int) -> None:
        """A slice with numbers beside it, unless it lasts no time or never ended."""
        if not end_s > begin_s:
            return
        packet = self._packet(begin_s, uuid, self._event.TYPE_SLICE_BEGIN)
        packet.track_event.name = name
        for key, value in notes.items():
            note = packet.track_event.debug_annotations.add()
            note.name, note.int_value = key, value
        self._builder.write_packet(packet)
        self._builder.write_packet(self._packet(end_s, uuid, self._event.TYPE_SLICE_END))

    def instant(self, uuid: int, name: str, time_s: float) -> None:
        """Something that happens at one moment."""
        packet = self._packet(time_s, uuid, self._event.TYPE_INSTANT)
        packet.track_event.name = name
        self._builder.write_packet(packet)

    def counter(
        self,
        uuid: int,
        name: str,
        time_s: FloatArray,
        values: IntArray,
        *,
        parent: int | None = None,
        is_bytes: bool = False,
    ) -> None:
        """A track of a value over time; a value that stays is not written again."""
        packet = self._descriptor(uuid, name, parent)
        unit = type(packet.track_descriptor.counter)
        packet.track_descriptor.counter.unit = unit.UNIT_SIZE_BYTES if is_bytes else unit.UNIT_COUNT
        self._builder.write_packet(packet)
        changed = np.flatnonzero(np.diff(values, prepend=values[0] - 1 if len(values) else 0))
        for moment, value in zip(time_s[changed].tolist(), values[changed].tolist(), strict=True):
            packet = self._packet(moment, uuid, self._event.TYPE_COUNTER)
            packet.track_event.counter_value = value
            self._builder.write_packet(packet)

    def _descriptor(self, uuid: int, name: str, parent: int | None) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = name
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        return packet

    def _packet(self, time_s: float, uuid: int, kind: int) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp = round(time_s * 1e9)
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = uuid
        return packet


def _write_steps(trace: _Trace, recording: Recording) -> None:
    steps = recording.steps
    before = np.concatenate(([0.0], np.maximum.accumulate(steps.end_s)[:-1]))
    names = ("step", "num_scheduled", "prefill_tokens", "decode_tokens", "running", "waiting", "free_units")
    columns = [getattr(steps, name).tolist() for name in names]
    times = zip(steps.start_s.tolist(), before.tolist(), steps.end_s.tolist(), steps.preempted.tolist(), strict=True)
    for (start_s, before_s, end_s, preempted), *notes in zip(times, *columns, strict=True):
        if preempted:
            trace.instant(_ENGINE, f"{preempted} preempted", start_s)
        kind = "prefill and decode" if notes[2] and notes[3] else "prefill" if notes[2] else "decode"
        trace.slice(_ENGINE, kind, max(start_s, before_s), end_s, **dict(zip(names, notes, strict=True)))


def _write_host(trace: _Trace, recording: Recording, uuid: int) -> None:
    """What stands in host memory, and what crosses the link, in bytes."""
    host = host_memory(recording)
    if host is None:
        return
    trace.track(_HOST, "host memory")
    unit_bytes = recording.meta.pool.bytes_per_unit
    values = {
        "on the host": host.used * host.slot_bytes,
        "going there": host.going * unit_bytes,
        "coming back": host.coming * unit_bytes,
    }
    time_s = np.append(recording.steps.start_s, recording.duration_s)
    for number, (name, counts) in enumerate(values.items()):
        trace.counter(uuid + number, name, time_s, counts, parent=_HOST, is_bytes=True)


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
    for row, lane in zip(order, lanes, strict=True):
        uuid = _FIRST_REQUEST + lane
        arrival_s, scheduled_s = float(requests.arrival_s[row]), float(requests.first_scheduled_s[row])
        first_s, finished_s = float(requests.first_token_s[row]), float(requests.finished_s[row])
        about = {"prompt_tokens": int(requests.prompt_tokens[row]), "output_tokens": int(requests.output_tokens[row])}
        more = {"cached_tokens": int(requests.cached_tokens[row]), "preemptions": int(requests.preemptions[row])}
        request = {"request": row}
        trace.slice(uuid, "waiting", arrival_s, scheduled_s, **request)
        trace.slice(uuid, "prompt", scheduled_s, first_s, **request, **about, **more)
        trace.slice(uuid, "answer", first_s, finished_s, **request, **about, **more)


def _lanes(order: list[int], arrival_s: FloatArray, end_s: FloatArray) -> list[int]:
    """The lane of each request in `order`: the lowest one that is free when it arrives."""
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
