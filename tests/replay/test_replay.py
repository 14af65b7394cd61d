"""Replay against a naive interpreter that walks through the memory events one unit at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.errors import RecordingError
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, Reserve, StaticSettings
from kvsim.recording import (
    MemoryKind,
    Meta,
    Pool,
    Recording,
    RecordingBuilder,
    RequestStatus,
    find,
    read,
    shipped_names,
    write,
)
from kvsim.replay import Replay, keyframes, ledger, unit_states
from kvsim.replay.free_memory import free_extent_lengths, free_extent_lengths_at
from kvsim.replay.progress import Progress
from kvsim.simulation import simulate
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate

from ..thinned import one_of

ONE_TABLE = [name for name in shipped_names() if not name.endswith(("-windows", "-states"))]
"""Those of models with KV-cache groups are looked at by tests/capture/test_group_logs.py."""

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Unit:
    """What stands in one unit: its holders, newest last, with its position in each one's table."""

    holders: dict[int, int] = field(default_factory=dict)
    cached: bool = False


class Naive:
    """The pool after everything up to a frame, by walking through the rows."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.pool = recording, recording.meta.pool
        assert self.pool.num_units is not None
        self.units = [Unit() for _ in range(self.pool.num_units)]
        self.tables: dict[int, dict[int, int]] = {}  # by request, in order of admission: logical position -> unit
        self.requested: dict[int, int] = {}
        self.growing: dict[int, tuple[int, int, int, int, int]] = {}  # step, times, position, unit, length by request
        self.row = 0
        # After each step, how many tokens each request has had computed by its last row.
        self.computed_after: list[dict[int, int]] = []
        schedule, computed = recording.schedule, dict[int, int]()
        by_step: dict[int, list[tuple[int, int]]] = {}
        for row in range(len(schedule)):
            for repeat in range(int(schedule.repeats[row])):
                total = schedule.computed_before[row] + (repeat + 1) * schedule.tokens[row]
                by_step.setdefault(int(schedule.step[row]) + repeat, []).append(
                    (int(schedule.request[row]), int(total))
                )
        self.most: dict[int, int] = {}
        self.first: dict[int, int] = {}
        for step in range(len(recording.steps)):
            for request, total in by_step.get(step, ()):
                computed[request] = total
                self.first.setdefault(request, total)
                self.most[request] = max(total, self.most.get(request, 0))
            self.computed_after.append(dict(computed))

    def advance(self, frame: int, *, after_output: bool = False) -> None:
        """Apply every row that `frame` shows, up to the schedule or the output of its step."""
        memory, steps = self.recording.memory, self.recording.steps
        seqs = steps.output_seq if after_output else steps.schedule_seq
        while self.row < len(memory) and (frame >= len(steps) or memory.seq[self.row] <= seqs[frame]):
            request, position = int(memory.request[self.row]), int(memory.position[self.row])
            unit, length = int(memory.address[self.row]) - self.pool.first_unit, int(memory.length[self.row])
            match MemoryKind(memory.kind[self.row]):
                case MemoryKind.APPEND | MemoryKind.SHARE:
                    self._take(request, position, unit, length)
                    asked = length if memory.requested is None else int(memory.requested[self.row])
                    times = 1 if memory.repeat is None else int(memory.repeat[self.row])
                    self.requested[request] = (position + asked * times) * self.pool.unit_tokens
                    if times > 1:
                        self.growing[request] = (int(memory.step[self.row]), times, position, unit, length)
                case MemoryKind.RELEASE:
                    self.growing.pop(request, None)
                    kept = self._kept(self.row, request)
                    for position, released in sorted(self.tables.pop(request, {}).items(), reverse=True):
                        del self.units[released].holders[request]
                        self.units[released].cached = not self.units[released].holders and position < kept
                case MemoryKind.EVICT:
                    for offset in range(length):
                        self.units[unit + offset].cached = False
            self.row += 1
        for request, (step, times, position, unit, length) in self.growing.items():
            for nth in range(1, min(frame - step + 1, times)):
                self._take(request, position + nth * length, unit + nth * length, length)

    def _take(self, request: int, position: int, unit: int, length: int) -> None:
        table = self.tables.setdefault(request, {})
        for offset in range(length):
            table[position + offset] = unit + offset
            self.units[unit + offset].holders[request] = position + offset
            self.units[unit + offset].cached = False

    def _kept(self, row: int, request: int) -> int:
        """Leading units of a table that keep their prefix when the release in `row` gives them back."""
        if not self.recording.meta.prefix_caching:
            return 0
        if self.recording.memory.cached is not None:
            return int(self.recording.memory.cached[row])
        step = int(np.flatnonzero(self.recording.steps.schedule_seq < self.recording.memory.seq[row])[-1])
        computed = self.computed_after[step].get(request, 0)
        return (computed if computed == self.most[request] else max(computed - 1, 0)) // self.pool.unit_tokens

    def slots(self, frame: int) -> np.ndarray[Any, Any]:
        """Every slot of every unit, asked one by one what it is for."""
        computed = self.computed_after[min(frame, len(self.computed_after) - 1)]
        slots = np.zeros((len(self.units), NUM_STATES), np.int64)
        for index, unit in enumerate(self.units):
            for offset in range(self.pool.unit_tokens):
                slots[index, self._state(unit, offset, computed)] += 1
        return slots

    def _state(self, unit: Unit, offset: int, computed: dict[int, int]) -> SlotState:
        if not unit.holders:
            return SlotState.CACHED if unit.cached else SlotState.FREE
        if len(unit.holders) > 1:
            return SlotState.TOKEN
        ((request, position),) = unit.holders.items()
        slot, written = position * self.pool.unit_tokens + offset, computed.get(request, 0)
        pad, end = 0, self.most[request]
        if self.recording.meta.policy_name == "static":
            requests = self.recording.requests
            pad = max(self.first[request] - int(requests.prompt_tokens[request]), 0)
            end = pad + int(requests.prompt_tokens[request]) + int(requests.output_tokens[request]) - 1
        if slot >= self.requested[request]:
            return SlotState.EXTERNAL
        if slot < written:
            return SlotState.PADDING if slot < pad or written > end else SlotState.TOKEN
        return SlotState.RESERVED if slot < end and written <= end else SlotState.INTERNAL


def assert_equal_at_every_frame(recording: Recording, *, order: list[int] | None = None) -> None:
    """Step through `recording` with both, then seek in `order` and find the same again; so does who never stepped."""
    player = Replay(recording)
    recording = player.recording
    naive = Naive(recording)
    gaps = steps_before_gaps(recording).tolist()
    seen, left = [], {}
    for frame in range(player.num_frames):
        player.seek(frame)
        naive.advance(frame)
        assert_equal(player, naive, frame)
        seen.append(picture(player))
        if frame in gaps:
            player.seek(frame, after_output=True)
            naive.advance(frame, after_output=True)
            assert_equal(player, naive, frame)
            left[frame] = picture(player)
    for seeker in (player, Replay(recording)):
        for frame in order or range(player.num_frames - 1, -1, -1):
            for after_output in (False, True):
                seeker.seek(frame, after_output=after_output)
                assert seeker.frame == frame
                pictures = left if after_output and frame in left else seen
                for now, then in zip(picture(seeker), pictures[frame], strict=True):
                    np.testing.assert_array_equal(now, then)
    states, owners = player.states_at(gaps, after_output=np.ones(len(gaps), np.bool_))
    np.testing.assert_array_equal(states, [left[frame][3].argmax(axis=1) for frame in gaps] or states)
    np.testing.assert_array_equal(owners, [left[frame][0] for frame in gaps] or owners)

    states, owners = player.states_at(range(len(seen)))
    np.testing.assert_array_equal(states, [slots.argmax(axis=1) for _, _, _, slots, _ in seen])
    np.testing.assert_array_equal(owners, [owner for owner, *_ in seen])
    frames = sorted((0, 0, *range(0, player.num_frames, 3), player.num_frames - 1))
    for frame, lengths in zip(frames, free_extent_lengths_at(Replay(recording), frames), strict=True):
        player.seek(frame)
        np.testing.assert_array_equal(lengths, free_extent_lengths(player))
    for few in (np.arange(0, player.num_units, 9), np.array([player.num_units - 1])):
        states, owners = player.states_at(range(len(seen)), few)
        np.testing.assert_array_equal(states, [slots[few].argmax(axis=1) for _, _, _, slots, _ in seen])
        np.testing.assert_array_equal(owners, [owner[few] for owner, *_ in seen])


def steps_before_gaps(recording: Recording) -> np.ndarray[Any, Any]:
    """Steps after whose output no step is in flight, but for the last."""
    return np.flatnonzero(recording.steps.output_seq[:-1] < recording.steps.schedule_seq[1:])


def picture(player: Replay) -> tuple[np.ndarray[Any, Any], ...]:
    return (player.owner.copy(), player.refs.copy(), player.cached.copy(), player.slots(), player.live_requests())


def assert_equal(player: Replay, naive: Naive, frame: int) -> None:
    units = naive.units
    assert player.refs.tolist() == [len(unit.holders) for unit in units]
    assert player.cached.tolist() == [unit.cached for unit in units]
    for index, unit in enumerate(units):
        owner = int(player.owner[index])
        assert owner in unit.holders or (owner == -1 and not unit.holders)
        assert not unit.holders or player.position[index] == unit.holders[owner]

    slots = player.slots()
    np.testing.assert_array_equal(slots, naive.slots(frame))
    assert (slots.sum(axis=1) == player.unit_tokens).all()
    np.testing.assert_array_equal(player.slots(np.array([len(units) - 1, 0])), slots[[-1, 0]])

    live = player.live_requests()
    assert live.tolist() == list(naive.tables)
    computed = naive.computed_after[min(frame, len(naive.computed_after) - 1)]
    assert player.computed(live).tolist() == [computed.get(request, 0) for request in naive.tables]
    for request in range(len(player.recording.requests)):
        positions, addresses = player.block_table(request)
        table = naive.tables.get(request, {})
        assert positions.tolist() == list(table)
        assert (addresses - player.first_unit).tolist() == list(table.values())


class Engine:
    """Carries out any sequence of wishes that the format allows, and writes down what happened."""

    def __init__(self, num_requests: int, num_units: int, unit_tokens: int, first_unit: int, *, sharing: bool) -> None:
        self.builder = RecordingBuilder()
        self.pool = Pool(unit_tokens=unit_tokens, num_units=num_units, first_unit=first_unit, bytes_per_unit=1)
        self.sharing = sharing
        self.free = list(range(first_unit, first_unit + num_units))
        self.cached: set[int] = set()
        self.tables: dict[int, list[int]] = {}
        self.written: dict[int, int] = {}
        self.dead_tables: list[list[int]] = []
        self.refs = dict.fromkeys(self.free, 0)
        self.busy: set[int] = set()
        for request in range(num_requests):
            self.builder.arrived(f"r{request}", 0.0, 1, 1)
        self.builder.begin_event()

    def act(self, verb: str, request: int, amount: int, turn: int) -> None:
        if verb == "close":
            self.close()
        elif verb == "release" and request in self.tables:
            self.release(request)
        elif verb == "take" and request not in self.busy:
            admitted = request not in self.tables
            if admitted and self.sharing:
                self.share(request, amount, turn)
            self.append(request, amount, turn)
            if request in self.tables:
                self.compute(request, amount)
                if admitted and request not in self.busy:  # no engine admits what it does not schedule
                    self.release(request)
        elif verb == "write" and request in self.tables and request not in self.busy:
            self.compute(request, amount)

    def share(self, request: int, amount: int, turn: int) -> None:
        full = [table[: self.written[other] // self.pool.unit_tokens] for other, table in self.tables.items()]
        donors = [table[:amount] for table in (*full, *self.dead_tables) if table]
        if not donors:
            return
        units = donors[turn % len(donors)]
        if all(self.refs[unit] or unit in self.cached for unit in units):
            self.builder.share_blocks(request, 0, units)
            for unit in units:
                self.cached.discard(unit)
                if unit in self.free:
                    self.free.remove(unit)
                self.refs[unit] += 1
            self.tables[request] = list(units)
            self.written[request] = len(units) * self.pool.unit_tokens

    def append(self, request: int, amount: int, turn: int) -> None:
        if not self.free:
            return
        turn %= len(self.free)
        units = (self.free[turn:] + self.free[:turn])[:amount]
        evicted = [unit for unit in units if unit in self.cached]
        if evicted:
            self.builder.evict(evicted)
            self.cached -= set(evicted)
        self.free = [unit for unit in self.free if unit not in units]
        # What was in these units is gone, and with it the prefixes that ran through them.
        self.dead_tables = [list(takewhile(lambda unit: unit not in units, table)) for table in self.dead_tables]
        table = self.tables.setdefault(request, [])
        self.builder.append_blocks(request, len(table), units)
        table += units
        self.refs.update(dict.fromkeys(units, 1))
        self.written.setdefault(request, 0)

    def compute(self, request: int, amount: int) -> None:
        room = len(self.tables[request]) * self.pool.unit_tokens - self.written[request]
        tokens = min(amount, room)
        if tokens:
            self.builder.scheduled(request, self.written[request], tokens, float(self.builder.num_steps))
            self.written[request] += tokens
            self.busy.add(request)

    def release(self, request: int) -> None:
        table = self.tables.pop(request)
        written = self.written.pop(request)
        kept = written // self.pool.unit_tokens if self.sharing else 0
        self.builder.release(request, len(table), kept)
        self.dead_tables.append(table[:kept])
        for position in range(len(table) - 1, -1, -1):
            unit = table[position]
            self.refs[unit] -= 1
            if not self.refs[unit]:
                self.free.append(unit)
                if position < kept:
                    self.cached.add(unit)

    def close(self) -> None:
        columns = dict.fromkeys(
            ("prefill_tokens", "decode_tokens", "num_scheduled", "running", "waiting", "preempted"), 0
        )
        number = self.builder.step(**columns, free_units=len(self.free), start_s=float(self.builder.num_steps))
        self.builder.begin_event()
        self.builder.output(number, float(self.builder.num_steps))
        self.builder.begin_event()
        self.busy.clear()

    def finish(self) -> Recording:
        self.close()
        for request in list(self.tables):
            self.release(request)
        policy = {"name": "paged", "enable_prefix_caching": self.sharing}
        meta = Meta(source="simulation", engine={}, gpu="", model={}, policy=policy, pool=self.pool)
        return self.builder.finish(meta)


VERBS = ("take", "take", "write", "release", "close")


@st.composite
def event_streams(draw: st.DrawFn) -> Recording:
    num_requests = draw(st.integers(1, 5))
    engine = Engine(
        num_requests,
        draw(st.integers(1, 12)),
        draw(st.sampled_from([1, 2, 4])),
        draw(st.integers(0, 1)),
        sharing=draw(st.booleans()),
    )
    wishes = st.tuples(st.sampled_from(VERBS), st.integers(0, num_requests - 1), st.integers(1, 5), st.integers(0, 11))
    for wish in draw(st.lists(wishes, max_size=40)):
        engine.act(*wish)
    return engine.finish()


@pytest.fixture(params=[1, 3, 8_192], ids=lambda units: f"keyframe-every-{units}")
def keyframe_spacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(keyframes, "_OPS_PER_KEYFRAME", request.param)
    monkeypatch.setattr(unit_states, "_MOST_OPERATIONS", request.param // 2)
    monkeypatch.setattr(ledger, "_OPS_AT_ONCE", request.param)
    return int(request.param)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recording=event_streams(), data=st.data())
@pytest.mark.usefixtures("keyframe_spacing")
def test_any_event_stream_equals_the_naive_interpreter(recording: Recording, data: st.DataObject) -> None:
    assert_equal_in_any_order(recording, data)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recording=event_streams(), data=st.data())
@pytest.mark.usefixtures("keyframe_spacing")
def test_many_event_streams_equal_the_naive_interpreter(recording: Recording, data: st.DataObject) -> None:
    assert_equal_in_any_order(recording, data)


def assert_equal_in_any_order(recording: Recording, data: st.DataObject) -> None:
    last = len(recording.steps)
    assert_equal_at_every_frame(recording, order=data.draw(st.lists(st.integers(0, last), min_size=1, max_size=20)))


def test_seeking_while_another_thread_makes_the_keyframes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyframes, "_OPS_PER_KEYFRAME", 64)
    recording = read(find("vllm-h200-llama-3-8b-pressure-prefixes"))
    stepping, seeking = Replay(recording), Replay(recording)
    frames = np.random.default_rng(1).integers(0, seeking.num_frames, 40)
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(seeking.warm_up) for _ in range(2)]
        found = []
        for frame in frames.tolist():
            seeking.seek(frame)
            found.append(picture(seeking))
        assert [job.result() for job in done] == [None, None]
    for frame, then in sorted(zip(frames.tolist(), found, strict=True), key=lambda pair: pair[0]):
        stepping.seek(frame)
        for now, seen in zip(picture(stepping), then, strict=True):
            np.testing.assert_array_equal(now, seen)


def test_a_seek_moves_contents_that_another_thread_is_creating(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = read(find("vllm-h200-llama-3-8b-pressure-prefixes"))
    replay, creating, sought = Replay(recording), threading.Event(), threading.Event()
    show = unit_states.SingleUnits.go_to

    def show_slowly(pool: unit_states.SingleUnits, op: int, seq: int) -> bool:
        begins_afresh = show(pool, op, seq)
        creating.set()
        sought.wait(0.2)
        return begins_afresh

    with ThreadPoolExecutor() as threads:
        with monkeypatch.context() as patch:
            patch.setattr(unit_states.SingleUnits, "go_to", show_slowly)
            created = threads.submit(replay.warm_up)
            assert creating.wait(60)
            replay.seek(50)
            sought.set()
        created.result()
    alone = Replay(recording)
    alone.seek(50)
    for now, expected in zip(picture(replay), picture(alone), strict=True):
        np.testing.assert_array_equal(now, expected)


@st.composite
def growing_batches(draw: st.DrawFn) -> Recording:
    """Batches whose rows grow by so many slots a step; between them, perhaps, a step in which nobody holds anything."""
    units = st.integers(1, 4)
    builder, num_units = RecordingBuilder(), 80
    for _ in range(draw(st.integers(1, 4))):
        width, growth, times, num_rows = draw(units), draw(units), draw(st.integers(1, 5)), draw(st.integers(1, 3))
        row_units = width + growth * times
        rows = [builder.arrived("r", float(builder.num_steps), 1, 9) for _ in range(num_rows)]
        written = dict.fromkeys(rows, 0)
        for step in range(times + 1):
            builder.begin_event()
            for nth, row in enumerate(rows):
                if step == 0:
                    builder.append_extent(row, 0, nth * row_units, width, width, 1)
                elif step == 1:
                    builder.append_extent(row, width, nth * row_units + width, growth, growth, times)
                tokens = width if step == 0 else draw(units) % growth + 1
                builder.scheduled(row, written[row], tokens, float(builder.num_steps))
                written[row] += tokens
            close(builder, num_units)
        for row in rows:
            builder.emitted(row, float(builder.num_steps), draw(st.integers(1, times + 1)))
            builder.release(row, row_units, 0)
            builder.ended(row, RequestStatus.FINISHED, float(builder.num_steps))
        if draw(st.booleans()):
            builder.begin_event()
            close(builder, num_units)
    pool = Pool(unit_tokens=1, num_units=num_units, bytes_per_unit=1)
    policy = {"name": draw(st.sampled_from(["static", "contiguous"]))}
    return builder.finish(Meta(source="simulation", engine={}, gpu="", model={}, policy=policy, pool=pool))


def close(builder: RecordingBuilder, num_units: int) -> None:
    columns = dict.fromkeys(("prefill_tokens", "decode_tokens", "num_scheduled", "running", "waiting", "preempted"), 0)
    number = builder.step(**columns, free_units=num_units, start_s=float(builder.num_steps))
    builder.begin_event()
    builder.output(number, float(builder.num_steps))
    builder.begin_event()


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recording=growing_batches(), data=st.data())
@pytest.mark.usefixtures("keyframe_spacing")
def test_growing_extents_equal_the_naive_interpreter(recording: Recording, data: st.DataObject) -> None:
    assert recording.memory.repeat is not None
    assert_equal_in_any_order(recording, data)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(recording=growing_batches(), data=st.data())
@pytest.mark.usefixtures("keyframe_spacing")
def test_many_growing_extents_equal_the_naive_interpreter(recording: Recording, data: st.DataObject) -> None:
    assert_equal_in_any_order(recording, data)


@settings(max_examples=60, deadline=None)
@given(recording=growing_batches(), data=st.data())
def test_touched_covers_every_change_of_growing_extents(recording: Recording, data: st.DataObject) -> None:
    last = len(recording.steps)
    frames = st.tuples(st.integers(0, last), st.integers(0, last))
    assert_touched_covers_every_change(Replay(recording), data.draw(st.lists(frames, min_size=1, max_size=10)))


SIMULATED: dict[str, Policy] = {
    "paged": Paged(cache=PagedSettings(block_size=4), scheduler=ContinuousSettings(max_model_len=64)),
    "paged, sync, no cache": Paged(
        cache=PagedSettings(block_size=4, enable_prefix_caching=False),
        scheduler=ContinuousSettings(max_model_len=64, async_scheduling=False),
    ),
    "paged, blocks of one token": Paged(
        cache=PagedSettings(block_size=1), scheduler=ContinuousSettings(max_model_len=64)
    ),
    "contiguous": Contiguous(scheduler=ContinuousSettings(max_model_len=64)),
    "contiguous, buddy": Contiguous(
        cache=ContiguousSettings(fit="buddy", reserve=Reserve.POW2), scheduler=ContinuousSettings(max_model_len=64)
    ),
    "static": Static(scheduler=StaticSettings(batch_size=3, max_model_len=64)),
    "static, preallocated": Static(scheduler=StaticSettings(batch_size=3, max_model_len=64, preallocated=True)),
}


@pytest.fixture(scope="module", params=SIMULATED, ids=str)
def simulated(request: pytest.FixtureRequest, make_machine: Callable[[int], Any]) -> Recording:
    workload = generate(
        24,
        arrivals=Poisson(rate_per_s=400),
        prompt=Uniform(low=1, high=16),
        output=Uniform(low=1, high=20),
        prefixes=SharedPrefixes(num_groups=2, tokens=9),
        max_tokens=24,
        seed=3,
    )
    return simulate(workload, SIMULATED[request.param], make_machine(160), check=True)


def test_growing_extents_are_read_back(simulated: Recording, tmp_path: Path) -> None:
    again = read(write(simulated, tmp_path / "rec"))
    for read_back, written in (
        (again.memory.repeat, simulated.memory.repeat),
        (again.schedule.repeat, simulated.schedule.repeat),
    ):
        assert (read_back is None) == (written is None)
        np.testing.assert_array_equal(again.memory.length, simulated.memory.length)
        if read_back is not None:
            np.testing.assert_array_equal(read_back, written)


def test_simulations_equal_the_naive_interpreter(simulated: Recording) -> None:
    assert_equal_at_every_frame(simulated)


def test_simulations_use_what_they_are_meant_to_test(make_machine: Callable[[int], Any]) -> None:
    workload = generate(
        24, arrivals=Poisson(rate_per_s=400), prompt=Uniform(low=1, high=16), output=Uniform(low=1, high=20),
        prefixes=SharedPrefixes(num_groups=2, tokens=9), max_tokens=24, seed=3,
    )  # fmt: skip
    recording = simulate(workload, SIMULATED["paged"], make_machine(160))
    assert recording.num_preemptions > 0
    assert {MemoryKind(kind) for kind in recording.memory.kind} == set(MemoryKind)


def assert_touched_covers_every_change(player: Replay, frames: list[tuple[int, int]]) -> None:
    for before, after in frames:
        player.seek(before)
        old, old_owner = player.slots(), player.owner.copy()
        player.seek(after)
        changed = np.flatnonzero((player.slots() != old).any(axis=1) | (player.owner != old_owner))
        touched = player.changed_units(before, after)
        assert np.isin(changed, touched).all(), f"from frame {before} to {after}: {np.setdiff1d(changed, touched)}"
        assert (np.diff(touched) > 0).all()


@settings(max_examples=60, deadline=None)
@given(recording=event_streams(), data=st.data())
def test_touched_covers_every_change_of_any_event_stream(recording: Recording, data: st.DataObject) -> None:
    last = len(recording.steps)
    frames = st.tuples(st.integers(0, last), st.integers(0, last))
    assert_touched_covers_every_change(Replay(recording), data.draw(st.lists(frames, min_size=1, max_size=10)))


def test_touched_covers_every_change_of_simulations(simulated: Recording) -> None:
    player = Replay(simulated)
    steps = [(frame, frame + 1) for frame in range(player.num_frames - 1)]
    jumps = [(frame, (frame * 7 + 3) % player.num_frames) for frame in range(player.num_frames)]
    assert_touched_covers_every_change(player, steps + [(after, before) for before, after in steps] + jumps)


def assert_touched_is_what_the_tables_say(player: Replay, frames: list[tuple[int, int]]) -> None:
    """No unit too many: those of the operations in between, and those in which somebody's new tokens stand."""
    for before, after in frames:
        player.seek(before)
        held_before = player.refs > 0
        player.seek(after)
        expected = held_before ^ (player.refs > 0)  # a run that grows has no operation for it
        low, high = sorted((before, after))
        operations = player.ledger.part(player.num_ops(low), player.num_ops(high))
        for first, length in zip(operations.address - player.first_unit, operations.length, strict=True):
            expected[first : first + length] = True
        live = player.live_requests()
        old, new = (player.progress.computed(live, min(frame, player.num_frames - 2)) for frame in (low, high))
        for request, begin, end in zip(live.tolist(), old, new, strict=True):
            stale = begin <= player.full[request] < end
            positions, addresses = player.block_table(request)
            slots = positions * player.unit_tokens
            written = (slots < end) & (slots + player.unit_tokens > (0 if stale else begin)) & (end > begin)
            expected[addresses[written] - player.first_unit] = True
        np.testing.assert_array_equal(player.changed_units(before, after), np.flatnonzero(expected))


@settings(max_examples=60, deadline=None)
@given(recording=event_streams(), data=st.data())
def test_touched_is_what_the_tables_of_any_event_stream_say(recording: Recording, data: st.DataObject) -> None:
    last = len(recording.steps)
    frames = st.tuples(st.integers(0, last), st.integers(0, last))
    assert_touched_is_what_the_tables_say(Replay(recording), data.draw(st.lists(frames, min_size=1, max_size=10)))


@pytest.mark.parametrize("num_frames", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", one_of(3, ONE_TABLE))
def test_touched_is_what_the_tables_of_shipped_recordings_say(name: str, num_frames: int) -> None:
    player, rng = Replay(read(find(name))), np.random.default_rng(1)
    frames = rng.integers(0, player.num_frames - 1, num_frames).tolist()
    assert_touched_is_what_the_tables_say(
        player, [pair for frame in frames for pair in ((frame, frame + 1), (frame + 1, frame), (frame, frames[0]))]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_TABLE)
def test_shipped_recordings_equal_the_naive_interpreter(name: str) -> None:
    """Unit by unit at a few frames; the real pools are too large to look at every unit of every frame."""
    player = Replay(read(find(name)))
    naive, rng = Naive(player.recording), np.random.default_rng(0)
    frames = sorted({*rng.integers(0, player.num_frames, 4).tolist(), 0, player.num_frames - 1})
    expected = {}
    for frame in frames:
        naive.advance(frame)
        expected[frame] = (
            [len(unit.holders) for unit in naive.units],
            [unit.cached for unit in naive.units],
            list(naive.tables),
        )
    for frame in reversed(frames):
        player.seek(frame)
        refs, cached, live = expected[frame]
        assert player.refs.tolist() == refs
        assert player.cached.tolist() == cached
        assert player.live_requests().tolist() == live
        assert player.slots().sum() == player.num_units * player.unit_tokens


def test_the_free_units_of_every_step_are_those_that_the_engine_counted(pressure: Recording) -> None:
    player = Replay(pressure)
    for frame in range(len(pressure.steps)):
        player.seek(frame)
        assert (player.refs == 0).sum() == pressure.steps.free_units[frame]


def test_who_waits_is_who_the_engine_says_waits(pressure: Recording) -> None:
    player = Replay(pressure)
    for frame in range(0, len(pressure.steps), 7):
        player.seek(frame)
        waiting = player.waiting_requests()
        assert len(waiting) == pressure.steps.waiting[frame]
        assert not np.isin(waiting, player.live_requests()).any()


def test_preempted_requests_wait_in_front_of_new_ones(pressure: Recording) -> None:
    player = Replay(pressure)
    player.seek(int(np.flatnonzero(pressure.steps.preempted > 0)[20]))
    waiting = player.waiting_requests()
    started = pressure.requests.first_scheduled_s[waiting] <= player.time_s
    assert started.any()
    assert not started.all()
    assert (np.diff(started.astype(int)) <= 0).all()
    for part in (waiting[started], waiting[~started]):
        assert (np.diff(pressure.requests.arrival_seq[part]) > 0).all()


def test_refused_requests_never_wait(
    make_machine: Callable[[int], Any], make_workload: Callable[..., Workload]
) -> None:
    workload = make_workload((0, 60, 4), (0, 4, 4))
    policy = Paged(scheduler=ContinuousSettings(max_model_len=32), cache=PagedSettings(block_size=4))
    recording = simulate(workload, policy, make_machine(64), refuse_misfits=True)
    assert recording.requests.status.tolist() == [RequestStatus.REFUSED, RequestStatus.FINISHED]
    player = Replay(recording)
    for frame in range(player.num_frames):
        player.seek(frame)
        assert 0 not in player.waiting_requests()


def test_frames_and_times(pressure: Recording) -> None:
    player = Replay(pressure)
    starts = pressure.steps.start_s
    assert player.num_frames == len(starts) + 1
    assert player.frame_at(-1.0) == player.frame_at(float(starts[0])) == 0
    assert player.frame_at(float(starts[100])) == 100
    assert player.frame_at(float(np.nextafter(starts[100], 0))) == 99
    assert player.frame_at(1e9) == player.num_frames - 1
    player.seek(10**9)
    assert player.frame == player.num_frames - 1
    assert player.time_s == pressure.duration_s
    assert (player.owner == -1).all(), "everything was given back at the end"
    player.seek(-5)
    assert (player.frame, player.time_s) == (0, starts[0])


def test_a_recording_without_steps_has_nothing_to_replay(make_meta: Callable[..., Meta]) -> None:
    builder = RecordingBuilder()
    with pytest.raises(RecordingError, match="has no steps"):
        Replay(builder.finish(make_meta(4), name="empty"))


def test_units_that_only_lose_a_prefix_stay_free(make_meta: Callable[..., Meta]) -> None:
    """As at the beginning of a recording of a server that had run before."""
    builder = RecordingBuilder()
    builder.begin_event()
    builder.evict([1, 3])
    close(builder, 4)
    player = Replay(builder.finish(make_meta(4, unit_tokens=2)))
    player.seek(player.num_frames)
    assert player.slots()[:, SlotState.FREE].tolist() == [2, 2, 2, 2]
    assert player.changed_units(0, 1).tolist() == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_unit_that_loses_its_prefix_while_a_request_holds_it_is_refused(
    make_meta: Callable[..., Meta], *, shared: bool
) -> None:
    """Whoever gives it back first, the one who stays longest counts."""
    builder = RecordingBuilder()
    requests = [builder.arrived(f"r{nth}", 0.0, 4, 1) for nth in range(2)]
    builder.begin_event()
    builder.append_blocks(requests[0], 0, [1, 2])
    if shared:
        builder.share_blocks(requests[1], 0, [1])
        builder.release(requests[1], 1, 0)
    builder.evict([1])
    row = 3 if shared else 1
    close(builder, 4)
    recording = builder.finish(make_meta(4, unit_tokens=2))
    with pytest.raises(RecordingError, match=f"row {row}: unit 1 should be free"):
        Replay(recording)


def test_a_pool_that_nobody_uses_stays_free(make_meta: Callable[..., Meta]) -> None:
    builder = RecordingBuilder()
    builder.arrived("r0", 0.0, 1, 1)
    builder.begin_event()
    builder.step(start_s=0.0)
    builder.begin_event()
    builder.output(0, 1.0)
    player = Replay(builder.finish(make_meta(4, unit_tokens=2)))
    assert player.slots()[:, SlotState.FREE].tolist() == [2, 2, 2, 2]
    assert player.waiting_requests().tolist() == [0]


def test_drafts_do_not_count_before_they_are_accepted(make_meta: Callable[..., Meta]) -> None:
    """Before its first step, a request has computed nothing."""
    builder = RecordingBuilder()
    late, early = builder.arrived("late", 0.0, 4, 8), builder.arrived("early", 0.0, 4, 8)
    for step, (request, before, tokens, known) in enumerate([(early, 0, 4, 4), (early, 4, 3, 5), (late, 0, 4, 4)]):
        builder.begin_event()
        builder.scheduled(request, before, tokens, float(step), 1, known)
        builder.step(start_s=float(step))
        builder.begin_event()
        builder.output(step, step + 0.5, {request: 1})
        builder.emitted(request, step + 0.5)
    progress = Progress(builder.finish(make_meta(4, unit_tokens=2)))
    assert [progress.most_tokens(early, step) for step in range(3)] == [4, 5, 5]
    assert [progress.most_tokens(late, step) for step in range(3)] == [0, 0, 4]
