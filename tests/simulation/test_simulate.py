"""What must hold for every simulation, whatever the policy, the settings and the requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvsim.calibration.prior import vllm_prior
from kvsim.engine.driver import Driver
from kvsim.errors import BudgetError, StalledError, WorkloadError
from kvsim.hardware import find_gpu
from kvsim.memory.waste import Breakdown, SlotState
from kvsim.metrics import waste
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import (
    ContiguousSettings,
    ContinuousSettings,
    Order,
    PagedSettings,
    Reserve,
    StaticSettings,
)
from kvsim.recording import Recording, RequestStatus, read, write
from kvsim.simulation import Machine, simulate
from kvsim.simulation.step_check import Checks
from kvsim.steptime import StepShape, StepTime
from kvsim.workload import AllAtOnce, LogNormal, Poisson, Ragged, SharedPrefixes, Workload, generate

if TYPE_CHECKING:
    from pathlib import Path

MakeMachine = Callable[[int], Machine]
MakeWorkload = Callable[..., Workload]
MAX_LEN = 48


class Metronome:
    """Every step takes the same time, whatever it holds."""

    label, calibrated = "a metronome", True

    def __init__(self, launch_s: float, gpu_s: float) -> None:
        self._time = StepTime(prepare_s=0.0, launch_s=launch_s, gpu_s=gpu_s, turnaround_s=0.0)

    def step_time(self, shape: StepShape) -> StepTime:  # noqa: ARG002
        return self._time

    def entry_s(self, prompt_tokens: int) -> float:  # noqa: ARG002
        return 0.0


def machine_of(num_tokens: int, *, launch_s: float = 0.25, gpu_s: float = 1.0) -> Machine:
    """A machine with room for so many tokens, on which every step takes a second unless told otherwise."""
    model = find_model("Meta-Llama-3-8B")
    return Machine(
        gpu=find_gpu("H200"),
        model=model,
        kv_bytes=num_tokens * model.kv_bytes_per_token,
        step_time=Metronome(launch_s, gpu_s),
    )


def paged(*, block_size: int = 4, caching: bool = True, watermark: float = 0.0, **scheduler: object) -> Paged:
    return Paged(
        scheduler=ContinuousSettings(max_model_len=MAX_LEN, **scheduler),  # type: ignore[arg-type]
        cache=PagedSettings(block_size=block_size, enable_prefix_caching=caching, watermark=watermark),
    )


def contiguous(reserve: Reserve = Reserve.MAX, fit: str = "first", **scheduler: object) -> Contiguous:
    return Contiguous(
        scheduler=ContinuousSettings(max_model_len=MAX_LEN, **scheduler),  # type: ignore[arg-type]
        cache=ContiguousSettings(reserve=reserve, fit=fit),
    )


def static(batch_size: int = 3, *, preallocated: bool = False) -> Static:
    return Static(scheduler=StaticSettings(batch_size=batch_size, preallocated=preallocated, max_model_len=MAX_LEN))


POLICIES: dict[str, Policy] = {
    "paged": paged(),
    "paged, sync": paged(async_scheduling=False),
    "paged, no prefix cache": paged(caching=False),
    "paged, priority, watermark": paged(order=Order.PRIORITY, watermark=0.1, max_num_seqs=5),
    "paged, small steps": paged(max_num_batched_tokens=7, long_prefill_token_threshold=5),
    "contiguous": contiguous(),
    "contiguous, oracle, best": contiguous(Reserve.ORACLE, "best"),
    "contiguous, pow2, buddy": contiguous(Reserve.POW2, "buddy", async_scheduling=False),
    "contiguous, limit, next": contiguous(Reserve.LIMIT, "next", max_num_seqs=3),
    "static": static(),
    "static, preallocated": static(preallocated=True),
    "static, one by one": static(1),
}


@pytest.fixture(params=POLICIES, ids=str)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]


def busy_workload(*, seed: int = 0, surprises: bool = True) -> Workload:
    """Forty requests under memory pressure, some of which stop before their limit."""
    workload = generate(
        40,
        arrivals=Poisson(rate_per_s=2.0),
        prompt=LogNormal(mean_tokens=8, sigma=0.7, maximum=20),
        output=LogNormal(mean_tokens=8, sigma=0.7, maximum=16),
        prefixes=SharedPrefixes(num_groups=3, tokens=9),
        seed=seed,
    )
    limits = np.where(np.arange(40) % 3 == 0, workload.output_tokens + 5, workload.output_tokens)
    return Workload(
        arrival_s=workload.arrival_s,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        max_tokens=limits if surprises else None,
        priority=np.arange(40) % 4,
        prefix_group=workload.prefix_group,
        prefix_tokens=workload.prefix_tokens,
        prefix_names=workload.prefix_names,
        name="busy",
    )


def assert_conserved(recording: Recording, workload: Workload) -> None:
    """Nobody is lost, nothing runs backwards, and the same number of tokens comes out as went in."""
    requests, steps = recording.requests, recording.steps
    assert len(requests) == len(workload)
    done = requests.status == RequestStatus.FINISHED
    assert (done | (requests.status == RequestStatus.REFUSED)).all()
    room = recording.meta.policy["max_model_len"] - workload.prompt_tokens
    assert (requests.output_tokens[done] == np.minimum(workload.output_tokens, room)[done]).all()
    assert (requests.output_tokens[~done] == 0).all()
    np.testing.assert_array_equal(requests.arrival_s, workload.arrival_s)
    times = np.stack([requests.arrival_s, requests.first_scheduled_s, requests.first_token_s, requests.finished_s])
    assert (np.diff(times[:, done], axis=0) >= 0).all()
    assert np.isnan(times[1:, ~done]).all()
    assert (steps.end_s >= steps.start_s).all()
    assert (np.diff(steps.start_s) >= 0).all()
    assert (np.diff(steps.end_s) >= 0).all()
    assert steps.step.tolist() == list(range(len(steps)))
    assert (np.diff(steps.schedule_seq) > 0).all()
    assert (np.diff(steps.output_seq) > 0).all()
    assert int(steps.preempted.sum()) == int(requests.preemptions.sum())
    per_step = steps.prefill_tokens.sum() + steps.decode_tokens.sum()
    assert per_step == (recording.schedule.tokens.astype(int) * recording.schedule.repeats).sum()
    if recording.meta.policy_name != "static":
        computed = np.bincount(
            recording.schedule.request,
            recording.schedule.tokens * recording.schedule.repeats.astype(float),
            minlength=len(requests),
        )
        least = requests.prompt_tokens + requests.output_tokens - 1 - requests.cached_tokens
        assert (computed[done] >= least[done]).all()
    assert recording.duration_s == (steps.end_s.max() if len(steps) else 0)


def test_everybody_is_served_and_nothing_is_lost(policy: Policy, make_machine: MakeMachine) -> None:
    workload = busy_workload()
    for machine in (make_machine(140), machine_of(140)):
        recording = simulate(workload, policy, machine, check=True)
        assert_conserved(recording, workload)
        assert (recording.requests.status == RequestStatus.FINISHED).all()


def test_the_same_requests_give_the_same_bytes(policy: Policy, make_machine: MakeMachine, tmp_path: Path) -> None:
    folders = []
    for run in ("one", "two"):
        recording = simulate(busy_workload(seed=7), policy, make_machine(140))
        folders.append(write(recording, tmp_path / run))
    names = sorted(file.name for file in folders[0].iterdir())
    assert names == ["memory.parquet", "meta.json", "requests.parquet", "schedule.parquet", "steps.parquet"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_another_seed_gives_other_bytes(make_machine: MakeMachine, tmp_path: Path) -> None:
    written = [
        (write(simulate(busy_workload(seed=seed), paged(), make_machine(140)), tmp_path / str(seed)) / "steps.parquet")
        for seed in (7, 8)
    ]
    assert written[0].read_bytes() != written[1].read_bytes()


def test_checking_changes_nothing(policy: Policy, make_machine: MakeMachine) -> None:
    checked, unchecked = (simulate(busy_workload(), policy, make_machine(140), check=check) for check in (True, False))
    np.testing.assert_array_equal(checked.steps.end_s, unchecked.steps.end_s)


def test_what_was_simulated_can_be_read_again(policy: Policy, make_machine: MakeMachine, tmp_path: Path) -> None:
    recording = simulate(busy_workload(), policy, make_machine(140))
    again = read(write(recording, tmp_path / "rec"))
    np.testing.assert_array_equal(waste(recording).slots, waste(again).slots)


@pytest.mark.parametrize("surprises", [False, True])
def test_the_account_of_the_engine_agrees_with_the_recording_in_every_frame(
    policy: Policy, make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, surprises: bool
) -> None:
    """What is counted sequence by sequence while it runs, and the columns written down, are two accounts of a pool."""
    live: dict[int, npt.NDArray[np.int64]] = {}
    drivers: list[Driver] = []

    step = Checks.step

    def listen(checks: Checks) -> None:
        drivers.append(checks.driver)
        step(checks)

    def keep(account: Breakdown, _: int) -> None:
        live.setdefault(drivers[-1].engine.state.num_steps - 1, account.slots.copy())

    monkeypatch.setattr(Checks, "step", listen)
    monkeypatch.setattr(Breakdown, "check", keep)
    recording = simulate(busy_workload(surprises=surprises), policy, make_machine(140), check=True)
    recorded = waste(recording).slots
    assert (recorded >= 0).all()
    assert sorted(live) == list(range(len(recording.steps)))
    difference = np.array([live[frame] for frame in sorted(live)]) - recorded[:-1]
    # What is free and in pieces too small for the head of the queue is free in the account of the pool.
    unusable = np.minimum(recording.steps.unusable_units, recording.steps.free_units) * recording.meta.pool.unit_tokens
    difference[:, SlotState.EXTERNAL] += unusable
    difference[:, SlotState.FREE] -= unusable
    if surprises and getattr(policy.scheduler, "async_scheduling", False):
        # A recording knows that a token beyond the answer's end is not written after all if its sequence is preempted.
        others = [state for state in SlotState if state not in (SlotState.RESERVED, SlotState.INTERNAL)]
        assert not difference[:, others].any()
        assert (difference[:, SlotState.RESERVED] + difference[:, SlotState.INTERNAL] == 0).all()
        assert (difference[:, SlotState.RESERVED] >= 0).all()
    else:
        assert not difference.any()


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0]),  # gaps: bursts, overlaps and silence
                st.integers(1, 20),
                st.integers(1, 20),
                st.integers(0, 5),
                st.integers(-1, 1),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=10,
        )
    )
    gaps, prompt, output, more, group, priority = (np.array(column) for column in zip(*rows, strict=True))
    return Workload(
        arrival_s=np.cumsum(gaps),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output + more,
        priority=priority,
        prefix_group=group,
        prefix_tokens=np.where(group < 0, 0, np.minimum(prompt, 12)),
        prefix_names=("a", "b"),
    )


SCHEDULERS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(1, 40),
        "async_scheduling": st.booleans(),
        "order": st.sampled_from(Order),
        "long_prefill_token_threshold": st.sampled_from([0, 3]),
    }
)
ANY_POLICY = st.one_of(
    st.builds(
        lambda scheduler, **cache: paged(**scheduler, **cache),
        SCHEDULERS,
        block_size=st.sampled_from([1, 3, 4, 16]),
        caching=st.booleans(),
        watermark=st.sampled_from([0.0, 0.2]),
    ),
    st.builds(
        lambda scheduler, reserve, fit: contiguous(reserve, fit, **scheduler),
        SCHEDULERS,
        st.sampled_from(Reserve),
        st.sampled_from(["first", "best", "next", "buddy"]),
    ),
    st.builds(lambda rows, preallocated: static(rows, preallocated=preallocated), st.integers(1, 4), st.booleans()),
)


@settings(max_examples=100, deadline=None)
@given(workload=workloads(), policy=ANY_POLICY, num_tokens=st.integers(32, 90), gpu_s=st.sampled_from([0.1, 0.3, 1.0]))
def test_any_workload_under_any_policy(workload: Workload, policy: Policy, num_tokens: int, gpu_s: float) -> None:
    recording = simulate(
        workload, policy, machine_of(num_tokens, launch_s=0.2, gpu_s=gpu_s), refuse_misfits=True, check=True
    )
    assert_conserved(recording, workload)
    if len(recording.steps):
        slots = waste(recording).slots
        assert (slots >= 0).all()
        pool = recording.meta.pool
        assert pool.num_units is not None
        assert (slots.sum(axis=1) == pool.num_units * pool.unit_tokens).all()
        # Everything that was taken has been given back.
        assert slots[-1, SlotState.CACHED] + slots[-1, SlotState.FREE] == slots[-1].sum()


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(
        st.floats(0, 2.0) | st.floats(0, 500.0) | st.sampled_from([2.0**-52, 5e-324]), min_size=1, max_size=12
    ),
    start_s=st.sampled_from([0.0, 0.1, 1e3, 1e7]),
    policy=st.sampled_from([paged(), paged(async_scheduling=False), contiguous(), static(2)]),
    gpu_s=st.floats(1e-9, 1.0),
    launch_s=st.floats(1e-9, 1.0),
)
@example(gaps=[0.0, 5.280832345412324], start_s=0.1, policy=static(2), gpu_s=0.5, launch_s=0.5)
def test_no_pair_of_clocks_makes_time_run_backwards(
    gaps: list[float], start_s: float, policy: Policy, gpu_s: float, launch_s: float
) -> None:
    """Arrivals a rounding error apart, steps of every length: nobody is served before arriving."""
    arrival_s = start_s + np.cumsum(gaps)
    workload = Workload(arrival_s=arrival_s, prompt_tokens=[3] * len(gaps), output_tokens=[2] * len(gaps))
    recording = simulate(workload, policy, machine_of(96, launch_s=launch_s, gpu_s=gpu_s))
    assert_conserved(recording, workload)


class TestArrivals:
    def test_an_idle_engine_waits_for_the_next_request(self, policy: Policy, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.5, 4, 2), (100.25, 4, 2))
        recording = simulate(workload, policy, machine_of(140))
        requests, steps = recording.requests, recording.steps
        assert requests.first_scheduled_s.tolist() == [0.5, 100.25]
        assert requests.finished_s[0] < 100
        assert not ((steps.start_s > requests.finished_s[0]) & (steps.start_s < 100.25)).any(), (
            "nothing runs for nobody"
        )

    def test_all_at_once(self, policy: Policy) -> None:
        workload = generate(
            12,
            arrivals=AllAtOnce(),
            prompt=LogNormal(mean_tokens=6, sigma=0.5),
            output=LogNormal(mean_tokens=4, sigma=0.5),
            seed=1,
        )
        recording = simulate(workload, policy, machine_of(140), check=True)
        assert_conserved(recording, workload)
        assert (recording.requests.arrival_s == 0).all()
        assert recording.steps.waiting[0] == 12 - recording.steps.running[0]

    def test_one_request(self, policy: Policy, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 5, 3))
        recording = simulate(workload, policy, machine_of(60), check=True)
        assert_conserved(recording, workload)
        assert len(recording.steps) == 3
        assert recording.requests.first_token_s[0] == recording.steps.end_s[0]

    def test_progress_counts_to_the_end(self, policy: Policy, make_machine: MakeMachine) -> None:
        reports: list[tuple[int, int]] = []
        simulate(busy_workload(), policy, make_machine(140), progress=lambda done, total: reports.append((done, total)))
        assert reports == sorted(reports)
        assert reports[-1] == (40, 40)
        assert {total for _, total in reports} == {40}


class TestWhoCannotBeServed:
    def test_a_prompt_as_long_as_the_longest_sequence(self, policy: Policy, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 4, 2), (1.0, MAX_LEN, 2), ids=["ok", "long"])
        with pytest.raises(
            WorkloadError,
            match=rf"request 'long' \(row 1\) has a prompt of {MAX_LEN} tokens, and .* it may have {MAX_LEN - 1};",
        ):
            simulate(workload, policy, machine_of(140))
        recording = simulate(workload, policy, machine_of(140), refuse_misfits=True)
        assert recording.requests.status.tolist() == [RequestStatus.FINISHED, RequestStatus.REFUSED]
        assert_conserved(recording, workload)

    def test_a_prompt_one_shorter_is_served_and_cut(self, policy: Policy, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, MAX_LEN - 1, 9))
        recording = simulate(workload, policy, machine_of(140), check=True)
        assert recording.requests.output_tokens.tolist() == [1]

    def test_a_request_larger_than_the_pool(self, policy: Policy, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 30, 10), ids=["large"])
        with pytest.raises(BudgetError, match=r"request 'large' \(row 0\) with 30 prompt tokens, 10 of output"):
            simulate(workload, policy, machine_of(32))
        recording = simulate(workload, policy, machine_of(32), refuse_misfits=True)
        assert recording.requests.status.tolist() == [RequestStatus.REFUSED]
        assert len(recording.steps) == 0

    @pytest.mark.parametrize(
        ("policy", "num_tokens"),
        # Block 0 is never allocated, so a paged cache needs one block more; nobody writes the last token.
        [(paged(), 4 * (1 + 3)), (contiguous(Reserve.ORACLE), 11), (contiguous(Reserve.LIMIT), 12), (static(), 11)],
        ids=["paged", "oracle", "limit", "static"],
    )
    def test_a_pool_of_exactly_one_request(self, policy: Policy, num_tokens: int, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 7, 5), (0.0, 7, 5))
        recording = simulate(workload, policy, machine_of(num_tokens), check=True)
        assert_conserved(recording, workload)
        assert recording.steps.num_scheduled.max() == 1
        with pytest.raises(BudgetError):
            simulate(workload, policy, machine_of(num_tokens - 1))

    @pytest.mark.parametrize("num_tokens", [0, 3, 7])
    def test_a_pool_without_a_usable_block(self, num_tokens: int, make_workload: MakeWorkload) -> None:
        with pytest.raises(BudgetError, match="hold no usable unit of 4 tokens of meta-llama/Meta-Llama-3-8B"):
            simulate(make_workload((0.0, 1, 1)), paged(), machine_of(num_tokens))

    def test_a_limit_beyond_the_longest_sequence_reserves_no_more_than_that(self, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 4, 2), max_tokens=[100_000])
        for policy in (static(preallocated=True), contiguous(Reserve.LIMIT)):
            recording = simulate(workload, policy, machine_of(MAX_LEN), check=True)
            assert recording.requests.max_tokens.tolist() == [100_000]
            assert recording.memory.length[0] <= MAX_LEN

    def test_a_prompt_that_no_step_can_hold_stalls(self, make_workload: MakeWorkload) -> None:
        policy = paged(max_num_batched_tokens=8, enable_chunked_prefill=False)
        with pytest.raises(
            StalledError, match=r"row 1 with 9 tokens can never be .*--max-num-batched-tokens, or leave"
        ):
            simulate(make_workload((0.0, 4, 2), (0.0, 9, 2)), policy, machine_of(140))


class TestOrder:
    def test_priority_decides_who_runs(self, make_workload: MakeWorkload) -> None:
        requests = [(0.0, 8, 4)] * 5
        first_come = simulate(
            make_workload(*requests, priority=[3, 1, 2, 0, 1]), paged(max_num_seqs=1), machine_of(140)
        )
        by_priority = simulate(
            make_workload(*requests, priority=[3, 1, 2, 0, 1]),
            paged(max_num_seqs=1, order=Order.PRIORITY),
            machine_of(140),
        )
        assert np.argsort(first_come.requests.first_scheduled_s).tolist() == [0, 1, 2, 3, 4]
        assert np.argsort(by_priority.requests.first_scheduled_s).tolist() == [3, 1, 4, 2, 0]

    def test_the_least_important_is_preempted(self, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 8, 16), (0.0, 8, 16), priority=[1, 0])
        recording = simulate(workload, paged(order=Order.PRIORITY, caching=False), machine_of(4 * 9))
        assert recording.requests.preemptions.tolist()[1] == 0 < recording.requests.preemptions.tolist()[0]


class TestPrefixes:
    def test_shared_prefixes_are_hit(self, make_workload: MakeWorkload) -> None:
        rows = [(float(10 * row), 14, 3) for row in range(3)]
        shared = {"prefix_group": [0, 0, 1], "prefix_tokens": [11, 11, 11], "prefix_names": ("a", "b")}
        hit = simulate(make_workload(*rows, **shared), paged(), machine_of(140))
        assert hit.requests.cached_tokens.tolist() == [0, 8, 0], "two whole blocks of four lie inside the 11 tokens"
        assert hit.steps.prefill_tokens.sum() == 14 * 3 - 8
        off = simulate(make_workload(*rows, **shared), paged(caching=False), machine_of(140))
        assert off.requests.cached_tokens.tolist() == [0, 0, 0]

    def test_hashes_and_token_ids_are_hit_too(self, make_workload: MakeWorkload) -> None:
        rows = [(0.0, 9, 2), (20.0, 9, 2), (40.0, 9, 2)]
        tokens = Ragged.from_rows([range(9), range(9), [9, *range(1, 9)]], np.int32)
        by_tokens = simulate(make_workload(*rows, prompt_token_ids=tokens), paged(), machine_of(140))
        hashes = Ragged.from_rows([[1, 2], [1, 2], [3, 4]], np.int64)
        by_hash = simulate(make_workload(*rows, prompt_hashes=hashes, hash_unit_tokens=4), paged(), machine_of(140))
        assert by_tokens.requests.cached_tokens.tolist() == by_hash.requests.cached_tokens.tolist() == [0, 8, 0]
        keys = [by_hash.requests.prompt_hashes[row].tolist() for row in range(3)]
        assert keys[0] == keys[1], "the recording keeps the keys of its own blocks: equal where the hashes are"
        assert len(keys[2]) == 2
        assert not set(keys[2]) & set(keys[0])

    def test_hashes_that_blocks_straddle_are_refused(self, make_workload: MakeWorkload) -> None:
        hashes = Ragged.from_rows([[1, 2]], np.int64)
        with pytest.raises(WorkloadError, match="block size should divide it or be a multiple of it"):
            simulate(make_workload((0.0, 9, 2), prompt_hashes=hashes, hash_unit_tokens=3), paged(), machine_of(140))


class TestTime:
    def test_a_synchronous_engine_pays_for_every_launch(self, make_workload: MakeWorkload) -> None:
        """Ten steps of a second on the GPU, each launched in a quarter of one."""
        workload = make_workload((0.0, 4, 10))
        ahead, waiting = (
            simulate(workload, paged(async_scheduling=flag), machine_of(140, launch_s=0.25, gpu_s=1.0))
            for flag in (True, False)
        )
        assert ahead.duration_s == pytest.approx(10.0)
        assert waiting.duration_s == pytest.approx(10.0), "kernels start while the launch goes on"
        starts = [recording.steps.start_s for recording in (ahead, waiting)]
        assert (starts[0][1:] < ahead.steps.end_s[:-1]).all(), "the next step is scheduled before this one's output"
        assert (starts[1][1:] >= waiting.steps.end_s[:-1]).all()

    def test_launches_longer_than_kernels_set_the_pace(self, make_workload: MakeWorkload) -> None:
        for flag in (True, False):
            recording = simulate(
                make_workload((0.0, 4, 10)), paged(async_scheduling=flag), machine_of(140, launch_s=2.0, gpu_s=1.0)
            )
            assert recording.duration_s == pytest.approx(20.0)

    def test_asynchronous_scheduling_is_never_slower(self, make_machine: MakeMachine) -> None:
        workload = busy_workload(surprises=False)
        ahead, waiting = (
            simulate(workload, paged(async_scheduling=flag, caching=False), make_machine(1_000))
            for flag in (True, False)
        )
        assert ahead.duration_s <= waiting.duration_s

    def test_static_batches_wait_for_their_slowest_row(self, make_workload: MakeWorkload) -> None:
        workload = make_workload((0.0, 4, 2), (0.0, 4, 9), (0.5, 4, 1))
        recording = simulate(workload, static(2), machine_of(140, launch_s=0.5, gpu_s=1.0))
        requests = recording.requests
        assert requests.finished_s.tolist() == [9.0, 9.0, 10.0]
        assert requests.first_token_s.tolist() == [1.0, 1.0, 10.0]
        assert requests.first_scheduled_s.tolist() == [0.0, 0.0, 9.0]


def test_what_stands_in_the_provenance(make_machine: MakeMachine, make_workload: MakeWorkload) -> None:
    recording = simulate(make_workload((0.0, 4, 2), name="w"), paged(), make_machine(140), command="kvsim run")
    meta = recording.meta
    assert (meta.source, meta.policy_name, meta.gpu, meta.command) == ("simulation", "paged", "H200", "kvsim run")
    assert recording.name == "paged-w"
    assert meta.engine["calibrated"] is False
    assert "uncalibrated" in meta.engine["step_time"]
    assert meta.model["kv_bytes_per_token"] == 131072
    assert (meta.pool.unit_tokens, meta.pool.num_units, meta.pool.first_unit) == (4, 34, 1)
    assert meta.pool.bytes_per_unit == 4 * 131072
    assert meta.prefix_caching
    assert meta.policy["block_size"] == 4


def test_the_measured_run_is_in_the_neighbourhood(pressure: Recording) -> None:
    """Sanity bands, not accuracy: the roofline is uncalibrated, so 10% on the duration and 30% on the preemptions."""
    from kvsim.importers import workload_of
    from kvsim.models import Model

    meta = pressure.meta
    gpu, model = find_gpu(meta.gpu), Model.from_shape(meta.model)
    assert meta.pool.num_units is not None
    machine = Machine(
        gpu=gpu,
        model=model,
        kv_bytes=(meta.pool.num_units + meta.pool.first_unit) * meta.pool.bytes_per_unit,
        step_time=vllm_prior(gpu, model),
    )
    policy = Paged(cache=PagedSettings(enable_prefix_caching=False))
    recording = simulate(workload_of(pressure), policy, machine)
    assert recording.meta.pool.num_units == meta.pool.num_units
    assert recording.requests.output_tokens.sum() == pressure.requests.output_tokens.sum()
    assert recording.duration_s == pytest.approx(pressure.duration_s, rel=0.10)
    assert recording.num_preemptions == pytest.approx(pressure.num_preemptions, rel=0.30)
    simulated, measured = waste(recording), waste(pressure)
    shares = [each.mean_slots()[SlotState.TOKEN] / each.capacity for each in (simulated, measured)]
    assert shares[0] == pytest.approx(shares[1], abs=0.10)
