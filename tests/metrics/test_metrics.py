"""The vectorised breakdown against the unit-by-unit one, and every other figure against values computed by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import RecordingError
from kvsim.memory.waste import SlotState
from kvsim.metrics import Distribution, latencies, summarize, waste, waste_shares
from kvsim.policies import Contiguous, Paged, Static
from kvsim.policies.settings import ContiguousSettings, PagedSettings, Reserve, StaticSettings
from kvsim.recording import Meta, Pool, Recording, RecordingBuilder, RequestStatus, find, read, shipped_names
from kvsim.replay import Replay
from kvsim.simulation import simulate

from ..thinned import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.policies import Policy
    from kvsim.simulation import Machine
    from kvsim.workload import Workload

SEVERAL_TABLES = ("-windows", "-states")
"""How the recordings of models with KV-cache groups end, which tests/capture/test_group_logs.py looks at."""
TOKEN, RESERVED, INTERNAL, PADDING, EXPIRED, CACHED, EXTERNAL, FREE = SlotState


def meta_of(
    policy: str, *, num_units: int, unit_tokens: int = 1, first_unit: int = 0, prefix_caching: bool = False
) -> Meta:
    return Meta(
        source="simulation",
        engine={"name": "test"},
        gpu="none",
        model={"name": "tiny"},
        policy={"name": policy, "enable_prefix_caching": prefix_caching},
        pool=Pool(unit_tokens=unit_tokens, num_units=num_units, first_unit=first_unit, bytes_per_unit=unit_tokens),
    )


class Script:
    """Steps and their rows, written down one by one; every step lasts a second."""

    def __init__(self, prompt_tokens: list[int], output_tokens: list[int]) -> None:
        self.builder = RecordingBuilder()
        self.output_tokens, self.time_s = output_tokens, 0.0
        for prompt, output in zip(prompt_tokens, output_tokens, strict=True):
            self.builder.arrived("request", 0.0, prompt, output)
        self.builder.begin_event()

    def compute(self, request: int, before: int, tokens: int) -> None:
        self.builder.scheduled(request, before, tokens, self.time_s)

    def close(
        self, finished: tuple[int, ...] = (), *, preempted: int = 0, scheduled: int = 1, waiting: int = 0, **more: int
    ) -> None:
        """End the step: its output is processed a second later, which ends the requests in `finished`."""
        columns: dict[str, float] = {
            "prefill_tokens": 0,
            "decode_tokens": 0,
            "num_scheduled": scheduled,
            "running": scheduled,
        }
        columns |= {"waiting": waiting, "preempted": preempted, "free_units": 0, "start_s": self.time_s} | more
        step = self.builder.step(**columns)
        self.time_s += 1
        self.builder.begin_event()
        self.builder.output(step, self.time_s)
        for request in finished:
            self.builder.emitted(request, self.time_s, self.output_tokens[request])
            self.builder.ended(request, RequestStatus.FINISHED, self.time_s)

    def next_step(self) -> None:
        self.builder.begin_event()


class PagedEngine:
    """A tiny engine with blocks of 4 tokens: shares and caches prefixes by group, preempts the newest sequence."""

    unit = 4

    def __init__(self, requests: list[tuple[int, int, int]], num_units: int, chunk: int) -> None:
        self.group, self.prompt, self.output = (list(column) for column in zip(*requests, strict=True))
        self.script = Script(self.prompt, self.output)
        self.num_units, self.chunk = num_units, chunk
        self.free = deque(range(1, num_units + 1))
        self.refs = dict.fromkeys(self.free, 0)
        self.key_of: dict[int, tuple[int, int]] = {}
        self.block_of: dict[tuple[int, int], int] = {}
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.goal = [prompt + output - 1 for prompt, output in zip(self.prompt, self.output, strict=True)]

    def run(self) -> Recording:
        running: list[int] = []
        waiting = deque(range(len(self.prompt)))
        while waiting or running:
            preempted, scheduled = 0, 0
            for request in tuple(running):
                while request in running and not self.grow(request):
                    victim = running.pop()
                    self.release(victim)
                    waiting.appendleft(victim)
                    preempted += 1
                scheduled += request in running
            while waiting and not preempted and self.admit(waiting[0]):
                running.append(waiting.popleft())
                scheduled += 1
            finished = tuple(request for request in running if self.computed[request] == self.goal[request])
            self.script.close(finished, preempted=preempted, scheduled=scheduled, waiting=len(waiting))
            for request in finished:
                running.remove(request)
                self.release(request)
            self.script.next_step()
        meta = meta_of("paged", num_units=self.num_units, unit_tokens=self.unit, first_unit=1, prefix_caching=True)
        return self.script.builder.finish(meta, name="paged")

    def admit(self, request: int) -> bool:
        table: list[int] = []
        while (len(table) + 1) * self.unit < self.prompt[request] and (
            self.group[request],
            len(table),
        ) in self.block_of:
            table.append(self.block_of[self.group[request], len(table)])
        available = len(self.free) - sum(self.refs[block] == 0 for block in table)
        self.computed[request] = len(table) * self.unit
        needed = -(-self.next_tokens(request) // self.unit) + 1
        if needed > available:
            return False
        for block in table:
            if not self.refs[block]:
                self.free.remove(block)
            self.refs[block] += 1
        self.script.builder.share_blocks(request, 0, table)
        self.tables[request] = table
        assert self.grow(request)
        return True

    def next_tokens(self, request: int) -> int:
        left = self.prompt[request] - self.computed[request]
        return min(left, self.chunk) if left > 0 else 1

    def grow(self, request: int) -> bool:
        table, tokens = self.tables[request], self.next_tokens(request)
        needed = -(-(self.computed[request] + tokens) // self.unit) - len(table)
        if needed > len(self.free):
            return False
        blocks = [self.free.popleft() for _ in range(needed)]
        for block in blocks:
            self.refs[block] = 1
        evicted = [block for block in blocks if block in self.key_of]
        for block in evicted:
            del self.block_of[self.key_of.pop(block)]
        self.script.builder.evict(evicted)
        self.script.builder.append_blocks(request, len(table), blocks)
        table += blocks
        self.script.compute(request, self.computed[request], tokens)
        self.computed[request] += tokens
        for index in range(min(self.computed[request], self.prompt[request]) // self.unit):
            key = (self.group[request], index)
            if key not in self.block_of and table[index] not in self.key_of:
                self.block_of[key], self.key_of[table[index]] = table[index], key
        return True

    def release(self, request: int) -> None:
        table = self.tables.pop(request)
        for block in reversed(table):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free.append(block)
        num_cached = next((i for i, block in enumerate(table) if block not in self.key_of), len(table))
        self.script.builder.release(request, len(table), num_cached)


def contiguous_recording(requests: list[tuple[int, int, int]], *, unusable: bool) -> Recording:
    """One extent per request, a second after the one before, asked for with slack and rounded to a power of two."""
    prompts, outputs, slacks = (list(column) for column in zip(*requests, strict=True))
    script, address = Script(prompts, outputs), 0
    computed: dict[int, int] = {}
    pending = deque(range(len(requests)))
    while pending or computed:
        for request, before in computed.items():
            script.compute(request, before, 1)
            computed[request] = before + 1
        if pending:
            request = pending.popleft()
            requested = prompts[request] + outputs[request] + slacks[request]
            length = 1 << (requested - 1).bit_length()
            script.builder.append_extent(request, 0, address, length, requested)
            script.compute(request, 0, prompts[request])
            computed[request], address = prompts[request], address + length
        finished = tuple(r for r in computed if computed[r] == prompts[r] + outputs[r] - 1)
        script.close(finished, **({"unusable_units": len(pending)} if unusable else {}))
        for request in finished:
            del computed[request]
            script.builder.release(request, 1, 0)
        script.next_step()
    return script.builder.finish(meta_of("contiguous", num_units=address + 7), name="contiguous")


def static_recording(requests: list[tuple[int, int]], *, preallocated: int | None) -> Recording:
    """One padded batch; rows grow a column a step, or have `preallocated` columns beyond the longest prompt."""
    prompts, outputs = (list(column) for column in zip(*requests, strict=True))
    script, width, num_steps = Script(prompts, outputs), max(prompts), max(outputs)
    stride = width + (num_steps if preallocated is None else num_steps + preallocated)
    for step in range(num_steps):
        for request in range(len(requests)):
            begin, end = (0, width) if step == 0 else (width + step - 1, width + step)
            script.compute(request, begin, end - begin)
            if preallocated is None:
                script.builder.append_extent(request, begin, request * stride + begin, end - begin, end - begin)
            elif step == 0:
                script.builder.append_extent(request, 0, request * stride, stride, stride)
        last = step == num_steps - 1
        script.close(tuple(range(len(requests))) if last else ())
        if last:
            for request in range(len(requests)):
                script.builder.release(request, 1, 0)
        script.next_step()
    return script.builder.finish(meta_of("static", num_units=stride * len(requests) + 3), name="static")


def assert_same_as_replay(recording: Recording, every: int = 1) -> None:
    replay = Replay(recording)
    got = waste(replay)
    unusable = recording.steps.unusable_units
    assert (got.slots.sum(axis=1) == got.capacity).all()
    assert (got.slots >= 0).all()
    for frame in [*range(0, replay.num_frames, every), replay.num_frames - 1]:
        replay.seek(frame)
        expected = replay.slots().sum(axis=0)
        if unusable is not None and frame < len(unusable):
            moved = min(int(unusable[frame]) * replay.unit_tokens, int(expected[FREE]))
            expected[FREE] -= moved
            expected[EXTERNAL] += moved
        assert got.slots[frame].tolist() == expected.tolist(), f"frame {frame}"
        assert got.held[frame] == (replay.owner >= 0).sum() * replay.unit_tokens
        assert got.time_s[frame] == replay.time_s


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_names() if not name.endswith(SEVERAL_TABLES)])
def test_every_seventh_frame_of_a_real_recording_is_what_replay_shows(name: str) -> None:
    assert_same_as_replay(read(find(name)), every=7)


@pytest.mark.parametrize("name", one_of(3, [name for name in shipped_names() if name.startswith("vllm")]))
def test_what_nobody_holds_is_what_the_engine_counted_as_free(name: str) -> None:
    recording = read(find(name))
    account = waste(recording)
    free_units = (account.capacity - account.held[:-1]) // recording.meta.pool.unit_slots
    assert (free_units == recording.steps.free_units).all()


@pytest.mark.parametrize(
    "policy",
    [
        Paged(cache=PagedSettings(block_size=4)),
        Paged(cache=PagedSettings(block_size=1)),
        Contiguous(cache=ContiguousSettings(fit="buddy", reserve=Reserve.POW2)),
        Static(scheduler=StaticSettings(batch_size=3, preallocated=True)),
        Static(scheduler=StaticSettings(batch_size=3, preallocated=False)),
    ],
    ids=lambda policy: f"{policy.name}-{policy.unit_tokens}",
)
def test_every_frame_of_a_simulation_is_what_replay_shows(
    policy: Policy, make_machine: Callable[[int], Machine], make_workload: Callable[..., Workload]
) -> None:
    lengths = np.random.default_rng(5).integers(1, 40, (24, 2)).tolist()
    workload = make_workload(*((0.001 * row, prompt, output) for row, (prompt, output) in enumerate(lengths)))
    assert_same_as_replay(simulate(workload, policy, make_machine(300)))


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 14), st.integers(1, 12)), min_size=1, max_size=8),
    num_units=st.integers(8, 16),
    chunk=st.integers(1, 9),
)
def test_shared_cached_and_preempted_blocks_are_what_replay_shows(
    requests: list[tuple[int, int, int]], num_units: int, chunk: int
) -> None:
    assert_same_as_replay(PagedEngine(requests, num_units, chunk).run())


def test_the_paged_engine_of_these_tests_does_share_cache_and_preempt() -> None:
    recording = PagedEngine([(0, 13, 9)] * 6, num_units=9, chunk=5).run()
    assert recording.num_preemptions > 0
    assert waste(recording).slots[:, CACHED].max() > 0
    assert Replay(recording).ledger.is_shared
    assert (recording.schedule.repeats > 1).any()


@settings(max_examples=50, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=6),
    unusable=st.booleans(),
)
def test_rounded_extents_are_what_replay_shows(requests: list[tuple[int, int, int]], unusable: bool) -> None:
    assert_same_as_replay(contiguous_recording(requests, unusable=unusable))


@settings(max_examples=50, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    preallocated=st.none() | st.integers(0, 5),
)
def test_padded_batches_are_what_replay_shows(requests: list[tuple[int, int]], preallocated: int | None) -> None:
    assert_same_as_replay(static_recording(requests, preallocated=preallocated))


def test_rows_that_repeat_a_chunk_are_what_replay_shows() -> None:
    script = Script([12], [4])
    script.builder.append_extent(0, 0, 0, 16, 16)
    for chunk in range(4):
        script.compute(0, 3 * chunk, 3)
        script.close((0,) if chunk == 3 else ())
        script.next_step()
    recording = script.builder.finish(meta_of("contiguous", num_units=20))
    assert recording.schedule.repeats.tolist() == [4]
    assert_same_as_replay(recording)
    assert waste(recording).slots[:, TOKEN].tolist() == [3, 6, 9, 12, 12]


def test_one_extent_by_hand() -> None:
    recording = contiguous_recording([(3, 3, 4)], unusable=False)  # asks for 10, gets 16, needs 5, in a pool of 23
    expected = [
        {TOKEN: 3, RESERVED: 2, INTERNAL: 5, EXTERNAL: 6, FREE: 7},
        {TOKEN: 4, RESERVED: 1, INTERNAL: 5, EXTERNAL: 6, FREE: 7},
        {TOKEN: 5, RESERVED: 0, INTERNAL: 5, EXTERNAL: 6, FREE: 7},
        {FREE: 23},
    ]
    assert [{state: int(n) for state, n in zip(SlotState, row, strict=True)} for row in waste(recording).slots] == [
        {state: row.get(state, 0) for state in SlotState} for row in expected
    ]


def test_a_padded_batch_by_hand() -> None:
    slots = waste(static_recording([(2, 1), (5, 3)], preallocated=None)).slots
    assert slots[:, TOKEN].tolist() == [2 + 5, 6, 7, 0], "the first row has ended once the second step begins"
    assert slots[:, PADDING].tolist() == [3, 6, 7, 0]


def nothing_recorded() -> Recording:
    builder = RecordingBuilder()
    builder.arrived("too long", 0.0, 1000, 1, refused=True)
    return builder.finish(meta_of("paged", num_units=9))


def test_a_recording_without_steps_has_no_waste() -> None:
    with pytest.raises(RecordingError, match="no steps"):
        waste(nothing_recorded())


def test_shares_are_weighted_with_time_and_add_up_to_100() -> None:
    script = Script([4], [2])
    script.builder.append_extent(0, 0, 0, 8, 8)
    script.compute(0, 0, 4)
    script.close()
    script.time_s += 2  # the first frame lasts three seconds, the second one
    script.next_step()
    script.compute(0, 4, 1)
    script.close((0,))
    shares = waste_shares(waste(script.builder.finish(meta_of("contiguous", num_units=20))))
    assert shares.pool_percent[TOKEN] == pytest.approx(100 * (3 * 4 + 5) / 4 / 20)
    assert shares.pool_percent[RESERVED] == pytest.approx(100 * 3 * 1 / 4 / 20)
    assert shares.pool_percent.sum() == pytest.approx(100)
    assert shares.allocated_percent.sum() == pytest.approx(100)
    assert shares.allocated_percent[TOKEN] == pytest.approx(100 * (3 * 4 + 5) / 4 / 8)
    assert shares.allocated_percent[FREE] == 0
    assert list(shares.paper_percent) == ["token", "reservation", "internal", "external and others"]
    assert sum(shares.paper_percent.values()) == pytest.approx(100)


def test_padding_counts_as_internal_among_the_classes_of_the_paper() -> None:
    shares = waste_shares(waste(static_recording([(1, 1), (9, 1)], preallocated=None)))
    assert shares.pool_percent[PADDING] > 0
    assert shares.paper_percent["internal"] == pytest.approx(
        shares.pool_percent[PADDING] + shares.pool_percent[INTERNAL]
    )


def test_where_no_time_passes_the_frames_count_equally() -> None:
    recording = contiguous_recording([(3, 3, 4)], unusable=False)
    stopped = np.zeros(len(recording.steps))
    recording = replace(recording, steps=replace(recording.steps, start_s=stopped, end_s=stopped))
    assert waste_shares(waste(recording)).pool_percent[TOKEN] == pytest.approx(100 * (3 + 4 + 5 + 0) / 4 / 23)


def with_times(recording: Recording, **times: Sequence[float]) -> Recording:
    columns: dict[str, Any] = {name: np.array(column) for name, column in times.items()}
    return replace(recording, requests=replace(recording.requests, **columns))


def test_latencies_of_finished_requests_only() -> None:
    recording = with_times(
        contiguous_recording([(3, 3, 0), (3, 1, 0), (3, 3, 0)], unusable=False),
        arrival_s=[1.0, 2.0, 0.0],
        first_scheduled_s=[1.5, 4.0, 0.0],
        first_token_s=[2.0, 5.0, 0.0],
        finished_s=[6.0, 5.0, 9.0],
        status=[RequestStatus.FINISHED, RequestStatus.FINISHED, RequestStatus.ABORTED],
    )
    times = latencies(recording)
    assert times.request.tolist() == [0, 1]
    assert times.ttft_s.tolist() == [1.0, 3.0]
    assert times.tpot_s[0] == 2.0
    assert np.isnan(times.tpot_s[1]), "one token has no time between tokens"
    assert times.e2e_s.tolist() == [5.0, 3.0]
    assert times.wait_s.tolist() == [0.5, 2.0]


def test_a_distribution_skips_what_is_not_known() -> None:
    got = Distribution.of(np.array([np.nan, *range(101)]))
    assert asdict(got) == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert all(np.isnan(value) for value in asdict(Distribution.of(np.array([np.nan]))).values())


def test_a_summary_by_hand() -> None:
    recording = contiguous_recording([(3, 3, 4), (2, 2, 4)], unusable=False)
    summary = summarize(recording)
    assert (summary.num_finished, summary.num_unfinished, summary.num_refused, summary.num_aborted) == (2, 0, 0, 0)
    assert summary.num_steps == 3
    assert summary.duration_s == 3.0
    assert summary.output_tokens == 5
    assert summary.output_tokens_per_s == pytest.approx(5 / 3)
    assert summary.requests_per_s == pytest.approx(2 / 3)
    assert summary.peak_batch == 1
    assert summary.peak_occupancy == pytest.approx(24 / 31)
    assert summary.mean_occupancy == pytest.approx((16 + 24 + 24) / 3 / 31)
    assert summary.ttft_s.mean == pytest.approx(3.0)


def test_a_summary_counts_every_way_to_end() -> None:
    recording = with_times(contiguous_recording([(3, 3, 0)] * 4, unusable=False), status=[0, 1, 2, 3])
    summary = summarize(recording)
    assert (summary.num_unfinished, summary.num_finished, summary.num_aborted, summary.num_refused) == (1, 1, 1, 1)


def test_the_summary_of_a_real_recording_is_plausible() -> None:
    summary = summarize(read(find("vllm-h200-llama-3-8b-sharegpt-pressure")))
    assert summary.num_finished == 400
    assert summary.num_preemptions == 685
    assert summary.peak_occupancy == 1.0
    assert 0 < summary.mean_occupancy < 1
    assert summary.mean_batch < summary.peak_batch == 107
    assert summary.ttft_s.p50 < summary.ttft_s.p99 < summary.e2e_s.p99


def test_a_summary_of_nothing_is_not_a_number_and_is_valid_json() -> None:
    summary = summarize(nothing_recorded())
    assert summary.num_refused == 1
    assert np.isnan(summary.mean_batch)
    plain = json.loads(json.dumps(summary.as_dict(), allow_nan=False))
    assert plain["mean_batch"] is None
    assert plain["ttft_s"]["p99"] is None
    assert plain["waste"]["pool_percent"]["token"] is None


def test_a_summary_is_valid_json_with_the_states_by_name() -> None:
    plain = json.loads(
        json.dumps(summarize(contiguous_recording([(3, 3, 4)], unusable=True)).as_dict(), allow_nan=False)
    )
    assert list(plain["waste"]["pool_percent"]) == [state.name.lower() for state in SlotState]
    assert plain["tpot_s"].keys() == {"mean", "p50", "p90", "p99"}


def test_metrics_load_no_heavy_library() -> None:
    code = "import sys, kvsim.metrics; print(sys.modules.keys() & {'matplotlib', 'pyarrow', 'simpy', 'textual'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
