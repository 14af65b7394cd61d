"""The trace is read back with Perfetto's own messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.exporters import perfetto, write_perfetto
from kvsim.memory.waste import SlotState
from kvsim.metrics import latencies, waste
from kvsim.recording import RequestStatus

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.recording import Recording

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
CLEARED, NEEDS_NAMES = 1, 2


class Trace:
    """What a viewer would make of a file."""

    def __init__(self, path: Path) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Message

        message = Message()
        message.ParseFromString(path.read_bytes())
        self.tracks: dict[int, Any] = {}
        self.slices: dict[str, list[tuple[str, int, int, dict[str, int]]]] = defaultdict(list)
        self.counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.instants: list[tuple[str, int]] = []
        opened: dict[int, tuple[str, int, dict[str, int]]] = {}
        names: dict[int, str] = {}
        note_names: dict[int, str] = {}
        assert message.packet[0].sequence_flags == CLEARED
        for packet in message.packet:
            assert packet.trusted_packet_sequence_id == 1
            names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
            note_names |= {entry.iid: entry.name for entry in packet.interned_data.debug_annotation_names}
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            elif packet.HasField("track_event"):
                assert packet.sequence_flags == NEEDS_NAMES
                event = packet.track_event
                name = self.tracks[event.track_uuid].name
                if event.type == BEGIN:
                    assert event.track_uuid not in opened, "slices of a track must not overlap"
                    notes = {note_names[note.name_iid]: note.int_value for note in event.debug_annotations}
                    opened[event.track_uuid] = names[event.name_iid], packet.timestamp, notes
                elif event.type == END:
                    what, begin, notes = opened.pop(event.track_uuid)
                    self.slices[name].append((what, begin, packet.timestamp, notes))
                elif event.type == COUNTER:
                    self.counters[name].append((packet.timestamp, event.counter_value))
                else:
                    assert event.type == INSTANT
                    self.instants.append((names[event.name_iid], packet.timestamp))
        assert not opened


@pytest.fixture(scope="module")
def trace(run: Recording, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return Trace(write_perfetto(run, tmp_path_factory.mktemp("trace") / "run.pftrace"))


def test_steps_are_slices_that_do_not_overlap(run: Recording, trace: Trace) -> None:
    steps = trace.slices["engine: steps"]
    assert len(steps) == len(run.steps)
    assert all(before[2] <= after[1] for before, after in pairwise(steps))
    assert [notes["prefill_tokens"] for *_, notes in steps] == run.steps.prefill_tokens.tolist()
    assert steps[-1][2] == round(run.duration_s * 1e9)
    preempted = sum(int(name.split()[0]) for name, _ in trace.instants)
    assert preempted == run.num_preemptions


def test_requests_are_tracks(run: Recording, trace: Trace) -> None:
    parent = next(uuid for uuid, track in trace.tracks.items() if track.name == "requests")
    children = [track.name for track in trace.tracks.values() if track.parent_uuid == parent]
    assert sorted(children) == sorted(run.requests.id.tolist())
    times = latencies(run)
    for row, ttft_s, e2e_s in zip(times.request, times.ttft_s, times.e2e_s, strict=True):
        slices = {what: (begin, end) for what, begin, end, _ in trace.slices[str(run.requests.id[row])]}
        arrival_ns = round(run.requests.arrival_s[row] * 1e9)
        assert slices["prompt"][1] - arrival_ns == pytest.approx(ttft_s * 1e9, abs=2)
        assert slices["answer"][1] - arrival_ns == pytest.approx(e2e_s * 1e9, abs=2)
    refused = run.requests.id[run.requests.status == RequestStatus.REFUSED][0]
    assert not trace.slices.get(str(refused)), "it was never served, and never waited"


def test_counters_are_the_states_of_the_pool(run: Recording, trace: Trace) -> None:
    slots = waste(run)
    bytes_per_slot = run.meta.pool.bytes_per_unit // run.meta.pool.unit_tokens
    for state in SlotState:
        times, values = zip(*trace.counters.get(state.name.lower(), [(0, 0)]), strict=True)
        frames = np.searchsorted(times, np.round(slots.time_s * 1e9), side="right") - 1
        # Frames at one moment have one value in the trace: the last.
        last = np.append(np.diff(slots.time_s) > 0, True)
        assert np.array(values)[frames][last].tolist() == (slots.slots[:, state] * bytes_per_slot)[last].tolist()


def test_the_same_recording_has_the_same_bytes(run: Recording, tmp_path: Path) -> None:
    first, second = (write_perfetto(run, tmp_path / name).read_bytes() for name in "ab")
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_many_requests_share_lanes(run: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "MAX_REQUEST_TRACKS", 4)
    # One after the other, so that a lane is free again when the next arrives.
    apart = np.arange(13) * 100.0
    times = ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s")
    requests = replace(run.requests, **{name: getattr(run.requests, name) + apart for name in times})
    trace = Trace(write_perfetto(replace(run, requests=requests), tmp_path / "lanes"))
    lanes = [track.name for track in trace.tracks.values() if track.name.startswith("lane")]
    assert lanes == ["lane 0"]
    assert Counter(what for what, *_ in trace.slices["lane 0"])["answer"] == 12
