"""Host memory for what is preempted, a model: nothing is computed twice while it lasts, and copies take time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cli.run import command
from kvsim.conformance import verify_recording
from kvsim.errors import BudgetError, UsageError
from kvsim.hardware import find_gpu
from kvsim.importers import workload_of
from kvsim.memory.blocks import BlockPool
from kvsim.memory.waste import Breakdown, SlotState
from kvsim.metrics import waste
from kvsim.models import Model
from kvsim.policies import Paged
from kvsim.recording import MemoryKind, Recording, RequestStatus, read, write
from kvsim.scheduling.continuous import ContinuousScheduler
from kvsim.scheduling.journal import NoJournal
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import ContinuousSettings, Order, PagedSettings
from kvsim.scheduling.swap import SwappingManager
from kvsim.simulation import Machine, simulate
from kvsim.steptime import Roofline
from kvsim.workload import LogNormal, Poisson, SharedPrefixes, Workload, generate

MakeMachine = Callable[[int], Machine]
MAX_LEN = 64
GIB = 1 << 30


def swapping(swap_gib: float, *, caching: bool = False, block_size: int = 4, **scheduler: object) -> Paged:
    return Paged(
        scheduler=ContinuousSettings(max_model_len=MAX_LEN, **scheduler),  # type: ignore[arg-type]
        cache=PagedSettings(block_size=block_size, enable_prefix_caching=caching, swap_gib=swap_gib),
    )


def busy(seed: int = 0) -> Workload:
    """Forty requests under memory pressure, some of which stop before their limit."""
    workload = generate(
        40,
        arrivals=Poisson(rate_per_s=2000.0),
        prompt=LogNormal(mean_tokens=8, sigma=0.7, maximum=20),
        output=LogNormal(mean_tokens=10, sigma=0.7, maximum=24),
        prefixes=SharedPrefixes(num_groups=3, tokens=9),
        seed=seed,
    )
    limits = np.where(np.arange(40) % 3 == 0, workload.output_tokens + 5, workload.output_tokens)
    return Workload(
        arrival_s=workload.arrival_s,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        max_tokens=limits,
        priority=np.arange(40) % 4,
        prefix_group=workload.prefix_group,
        prefix_tokens=workload.prefix_tokens,
        prefix_names=workload.prefix_names,
    )


def computed_twice(recording: Recording) -> int:
    """Tokens computed although they had been before: each row of a request should begin where the last ended."""
    schedule = recording.schedule
    order = np.lexsort((schedule.step, schedule.request))
    request, before = schedule.request[order], schedule.computed_before[order].astype(int)
    after = before + schedule.tokens[order].astype(int) * schedule.repeats[order]
    again = np.maximum(after[:-1] - before[1:], 0)[request[1:] == request[:-1]]
    return int(again.sum())


def swapped(recording: Recording) -> tuple[int, int]:
    """Blocks copied out and in over a recording."""
    steps = recording.steps
    assert steps.swapped_out_units is not None
    assert steps.swapped_in_units is not None
    return int(steps.swapped_out_units.sum()), int(steps.swapped_in_units.sum())


class TestByHand:
    """Two sequences in a pool for one and a half."""

    @staticmethod
    def engine(
        num_host_blocks: int, *, caching: bool = False
    ) -> tuple[ContinuousScheduler, SwappingManager, Sequence, Sequence]:
        cache = PagedSettings(
            block_size=4, enable_prefix_caching=caching, swap_gib=num_host_blocks / GIB * 100, swap_gb_per_s=1e-6
        )
        memory = SwappingManager(BlockPool(7), cache, NoJournal(), max_model_len=64, block_bytes=100)
        scheduler = ContinuousScheduler(ContinuousSettings(async_scheduling=False), memory)
        first, second = Sequence(0, 8, 10, 10), Sequence(1, 7, 10, 10)
        scheduler.add(first)
        scheduler.add(second)
        while second.status is not Status.PREEMPTED:
            memory.take_transfers()
            scheduler.update(scheduler.schedule())
        return scheduler, memory, first, second

    def test_out_and_in(self) -> None:
        scheduler, memory, first, second = self.engine(num_host_blocks=4)
        assert (first.status, len(first.blocks), second.blocks) == (Status.RUNNING, 4, [])
        held = second.num_tokens - 1
        assert list(memory.take_transfers()) == [3, 0, pytest.approx(3 * 100 / 1e3)]
        assert memory.num_free_host_blocks == 1
        while second.status is not Status.RUNNING:
            assert memory.take_transfers().num_blocks_in == 0
            batch = scheduler.schedule()
            scheduler.update(batch)
        assert batch.tokens[second] == 1
        assert second.computed == held + 1
        assert list(memory.take_transfers()) == [0, 3, pytest.approx(3 * 100 / 1e3)]
        assert memory.num_free_host_blocks == 4

    def test_what_has_no_room_on_the_host_is_recomputed(self) -> None:
        scheduler, memory, _, second = self.engine(num_host_blocks=2)
        assert memory.take_transfers() == (0, 0, 0.0)
        while second.status is not Status.RUNNING:
            batch = scheduler.schedule()
            scheduler.update(batch)
        assert batch.tokens[second] == second.num_tokens - 1 > 1

    def test_what_the_pool_still_holds_does_not_come_over_the_link(self) -> None:
        scheduler, memory, first, second = self.engine(num_host_blocks=4, caching=True)
        assert memory.take_transfers().num_blocks_out == 3
        computed = second.num_tokens - 1
        scheduler.abort(first)
        batch = scheduler.schedule()
        assert batch.tokens[second] == 1
        assert second.computed == computed + 1
        assert memory.num_hit_tokens == 8, "two whole blocks of the three"
        assert memory.take_transfers().num_blocks_in == 1

    def test_an_aborted_request_leaves_the_host(self) -> None:
        scheduler, memory, _, second = self.engine(num_host_blocks=4)
        scheduler.abort(second)
        assert memory.num_free_host_blocks == memory.num_host_blocks == 4

    def test_a_host_that_holds_no_block(self) -> None:
        with pytest.raises(BudgetError, match="1e-09 GiB of host memory hold no block of 100 bytes"):
            SwappingManager(BlockPool(7), PagedSettings(swap_gib=1e-9), NoJournal(), max_model_len=64, block_bytes=100)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_sizes_and_speeds_are_positive(value: float) -> None:
    with pytest.raises(UsageError, match="swap_gib should be a size in GiB"):
        PagedSettings(swap_gib=value)
    with pytest.raises(UsageError, match="swap_gb_per_s should be a positive speed"):
        PagedSettings(swap_gb_per_s=value)


class TestFlags:
    def test_they_arrive(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(command, ["--swap-gib", "2", "--swap-gb-per-s", "20", "-o", str(tmp_path / "out")])
        assert result.exit_code == 0, result.output
        recording = read(tmp_path / "out")
        assert (recording.meta.policy["swap_gib"], recording.meta.policy["swap_gb_per_s"]) == (2, 20)
        assert swapped(recording)[0] > 0

    def test_a_link_to_nowhere(self) -> None:
        result = CliRunner().invoke(command, ["--swap-gb-per-s", "20"])
        assert isinstance(result.exception, UsageError)
        assert str(result.exception) == "--swap-gb-per-s says nothing without --swap-gib; give both."


class TestMany:
    @settings(max_examples=40, deadline=None)
    @given(
        swap_gib=st.sampled_from([0.001, 0.005, 1.0]),
        caching=st.booleans(),
        block_size=st.sampled_from([1, 4, 8]),
        capacity=st.integers(80, 200),
        seed=st.integers(0, 50),
        scheduler=st.fixed_dictionaries(
            {
                "async_scheduling": st.booleans(),
                "order": st.sampled_from(Order),
                "max_num_batched_tokens": st.sampled_from([9, 16384]),
                "reserve_full_prompt": st.booleans(),
            }
        ),
    )
    def test_everybody_is_served_and_slots_add_up(
        self,
        swap_gib: float,
        caching: bool,
        block_size: int,
        capacity: int,
        seed: int,
        scheduler: dict[str, object],
        make_machine: MakeMachine,
    ) -> None:
        workload = busy(seed)
        policy = swapping(swap_gib, caching=caching, block_size=block_size, **scheduler)
        recording = simulate(workload, policy, make_machine(capacity), check=True)
        assert (recording.requests.status == RequestStatus.FINISHED).all()
        np.testing.assert_array_equal(recording.requests.output_tokens, workload.output_tokens)
        slots = waste(recording).slots
        assert (slots >= 0).all()
        assert (slots.sum(axis=1) == recording.meta.pool.capacity_slots).all()
        out, back = swapped(recording)
        assert back <= out
        if swap_gib == 1.0:
            assert computed_twice(recording) == 0

    @pytest.mark.parametrize("async_scheduling", [False, True])
    def test_nothing_is_computed_twice_while_the_host_has_room(
        self, async_scheduling: bool, make_machine: MakeMachine
    ) -> None:
        recomputed, kept = (
            simulate(busy(), swapping(gib, async_scheduling=async_scheduling), make_machine(140), check=True)
            for gib in (0.0, 1.0)
        )
        assert recomputed.num_preemptions > 0 < kept.num_preemptions
        assert computed_twice(recomputed) > 0 == computed_twice(kept)
        assert recomputed.steps.swapped_out_units is None
        assert swapped(kept)[0] > 0

    def test_the_books_agree_with_the_recording(
        self, make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live: list[npt.NDArray[np.int64]] = []
        monkeypatch.setattr(Breakdown, "check", lambda self, _: live.append(self.slots))
        policy = swapping(0.01, caching=True, async_scheduling=False)
        recording = simulate(busy(), policy, make_machine(140), check=True)
        assert swapped(recording)[1] > 0
        recorded = waste(recording).slots[:-1]
        live = [slots for slots in live if slots[: SlotState.CACHED].any()]
        np.testing.assert_array_equal(live, recorded)

    def test_copies_take_time(self, make_machine: MakeMachine) -> None:
        policy = swapping(1.0)
        fast, slow = (
            simulate(busy(), Paged(scheduler=policy.scheduler, cache=cache), make_machine(140))
            for cache in (policy.cache, replace(policy.cache, swap_gb_per_s=0.001))
        )
        assert slow.duration_s > fast.duration_s
        lengthened = slow.steps.end_s - slow.steps.start_s
        copying = (slow.steps.swapped_out_units > 0) | (slow.steps.swapped_in_units > 0)  # type: ignore[operator]
        assert lengthened[copying].min() >= 4 * 131072 / 1e6, "one block of four tokens, over 0.001 GB/s"

    def test_columns_survive_the_disk(self, make_machine: MakeMachine, tmp_path: Path) -> None:
        recording = simulate(busy(), swapping(1.0), make_machine(140))
        again = read(write(recording, tmp_path / "swapped"))
        assert swapped(again) == swapped(recording)


def served_again(pressure: Recording, cache: PagedSettings) -> Recording:
    """The requests of the recording under memory pressure, served again with another cache of the same size."""
    meta = pressure.meta
    gpu, model = find_gpu(meta.gpu), Model.from_shape(meta.model)
    assert meta.pool.num_units is not None
    machine = Machine(
        gpu=gpu,
        model=model,
        kv_bytes=(meta.pool.num_units + meta.pool.first_unit) * meta.pool.bytes_per_unit,
        step_time=Roofline.for_gpu(gpu, model),
    )
    return simulate(workload_of(pressure), Paged(cache=cache), machine)


def left_on_the_host(recording: Recording) -> int:
    """Blocks of those who were preempted while their last output was under way, and never came back."""
    requests, memory = recording.requests, recording.memory
    releases = np.bincount(memory.request[memory.kind == MemoryKind.RELEASE], minlength=len(requests))
    ended_there = releases == requests.preemptions
    computed = requests.prompt_tokens + requests.output_tokens - 1
    return int((-(-computed // recording.meta.pool.unit_tokens))[ended_there].sum())


def test_swap_against_recompute_on_sharegpt(pressure: Recording) -> None:
    """A link of 50 GB/s beats computing again; one that is a hundred times slower is worse than nothing."""
    recompute, swap, slow = (
        served_again(pressure, PagedSettings(enable_prefix_caching=False, swap_gib=gib, swap_gb_per_s=speed))
        for gib, speed in ((0.0, 50.0), (64.0, 50.0), (64.0, 0.5))
    )
    assert computed_twice(swap) == computed_twice(slow) == 0
    assert computed_twice(recompute) > 50_000
    out, back = swapped(swap)
    assert out - back == left_on_the_host(swap)
    assert back > 1_000
    assert swap.duration_s < recompute.duration_s < slow.duration_s
    outputs = [int(run.requests.output_tokens.sum()) for run in (recompute, swap, slow)]
    assert len(set(outputs)) == 1


@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("caching", [False, True])
def test_larger_blocks_leave_more_unwritten(block_size: int, caching: bool, pressure: Recording) -> None:
    """Not swapped at all: these sizes take the same decisions as 16 does, and can be verified like it."""
    runs = [
        served_again(pressure, PagedSettings(block_size=size, enable_prefix_caching=caching))
        for size in (16, block_size)
    ]
    verdict = verify_recording(runs[1])
    assert verdict.equal
    assert verdict.num_preemptions > 100
    internal = [waste(run).mean_slots()[SlotState.INTERNAL] for run in runs]
    assert internal[1] > 2 * internal[0]
