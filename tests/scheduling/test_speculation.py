"""Speculative decoding, which is modelled: tokens are conserved, slots add up, and the rate means what it says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cli.run import command
from kvsim.errors import UsageError
from kvsim.memory.blocks import BlockPool
from kvsim.memory.waste import Breakdown, SlotState
from kvsim.metrics import waste
from kvsim.policies import Paged
from kvsim.recording import Recording, RecordingBuilder, RequestStatus, read
from kvsim.scheduling.continuous import ContinuousScheduler
from kvsim.scheduling.journal import NoJournal
from kvsim.scheduling.paged import PagedManager
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import ContinuousSettings, PagedSettings
from kvsim.scheduling.speculation import Speculation
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Poisson, Workload, generate

MakeMachine = Callable[[int], Machine]
MakeWorkload = Callable[..., Workload]
MAX_LEN = 64


def speculative(num_tokens: int, rate: float, *, block_size: int = 4, seed: int = 0, **others: object) -> Paged:
    scheduler = {"max_model_len": MAX_LEN, "async_scheduling": False}
    cache = PagedSettings(
        block_size=block_size,
        num_speculative_tokens=num_tokens,
        acceptance_rate=rate,
        acceptance_seed=seed,
        enable_prefix_caching=bool(others.pop("caching", True)),
        swap_gib=float(others.pop("swap_gib", 0.0)),  # type: ignore[arg-type]
    )
    return Paged(scheduler=ContinuousSettings(**scheduler | others), cache=cache)  # type: ignore[arg-type]


def busy(seed: int = 0) -> Workload:
    """Thirty requests, more than the memory of the tests holds at once."""
    return generate(
        30,
        arrivals=Poisson(rate_per_s=2000.0),
        prompt=LogNormal(mean_tokens=8, sigma=0.7, maximum=20),
        output=LogNormal(mean_tokens=10, sigma=0.7, maximum=24),
        seed=seed,
    )


def by_hand(num_blocks: int, num_tokens: int, rate: float, **limits: int) -> ContinuousScheduler:
    """A scheduler over blocks of four tokens, to be stepped by a test."""
    cache = PagedSettings(block_size=4, num_speculative_tokens=num_tokens, acceptance_rate=rate)
    chosen = ContinuousSettings(async_scheduling=False, **limits)  # type: ignore[arg-type]
    memory = PagedManager(BlockPool(num_blocks), cache, NoJournal(), max_model_len=chosen.max_model_len)
    return ContinuousScheduler(chosen, memory, Speculation.of(cache))


def scheduled_tokens(recording: Recording) -> int:
    return int((recording.schedule.tokens.astype(int) * recording.schedule.repeats).sum())


class TestRightAndWrong:
    @pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
    def test_the_rate_is_that_of_guesses_whose_predecessors_were_right(self, rate: float) -> None:
        speculation, num_tokens = Speculation(4, rate, seed=1), 4
        accepted = []
        for row in range(40_000):
            sequence = Sequence(row, 5, 9, 9)
            sequence.drafts = num_tokens
            accepted.append(speculation.num_accepted(sequence))
        reached = np.array([np.sum(np.array(accepted) >= count) for count in range(num_tokens + 1)])
        for before, after in pairwise(reached):
            assert after == pytest.approx(rate * before, abs=0.015 * len(accepted))

    def test_what_is_guessed_does_not_depend_on_how_much_is_verified_at_once(self) -> None:
        speculation, sequence = Speculation(6, 0.6, seed=3), Sequence(7, 5, 9000, 9000)
        first_is_right = 0
        for sequence.num_tokens in range(5, 8000):
            sequence.drafts = 6
            together = speculation.num_accepted(sequence)
            sequence.drafts = 2
            assert speculation.num_accepted(sequence) == min(together, 2)
            first_is_right += together > 0
        assert first_is_right / 7995 == pytest.approx(0.6, abs=0.03)

    def test_a_seed_decides(self) -> None:
        def accepted(seed: int) -> list[int]:
            speculation, sequence = Speculation(3, 0.5, seed), Sequence(0, 1, 99, 99)
            sequence.drafts = 3
            return [speculation.num_accepted(sequence) for sequence.num_tokens in range(1, 60)]

        assert accepted(1) == accepted(1) != accepted(2)

    def test_none_is_none(self) -> None:
        assert Speculation.of(PagedSettings()) is None
        assert Speculation.of(PagedSettings(num_speculative_tokens=2)) is not None


class TestSettings:
    def test_a_step_scheduled_ahead_cannot_know(self, make_workload: MakeWorkload, make_machine: MakeMachine) -> None:
        policy = speculative(2, 0.5, async_scheduling=True)
        with pytest.raises(UsageError, match=r"synchronous scheduling only: .* \(--no-async-scheduling\)"):
            simulate(make_workload((0.0, 4, 4)), policy, make_machine(100))

    @pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
    def test_a_rate_is_a_share(self, rate: float) -> None:
        with pytest.raises(UsageError, match="acceptance_rate should lie between 0 and 1"):
            PagedSettings(acceptance_rate=rate)

    @pytest.mark.parametrize("name", ["num_speculative_tokens", "acceptance_seed"])
    def test_nothing_is_negative(self, name: str) -> None:
        with pytest.raises(UsageError, match=f"{name} should be 0 or more, not -1"):
            PagedSettings(**{name: -1})  # type: ignore[arg-type]


class TestFlags:
    ARGUMENTS = ("--no-async-scheduling", "--speculative-tokens", "3", "--acceptance-rate", "0.25", "--seed", "5")

    def test_they_arrive(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(command, [*self.ARGUMENTS, "--json", "-o", str(tmp_path / "out")])
        assert result.exit_code == 0, result.output
        told = read(tmp_path / "out").meta.policy
        assert (told["num_speculative_tokens"], told["acceptance_rate"], told["acceptance_seed"]) == (3, 0.25, 5)

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--speculative-tokens", "3"], "synchronous scheduling only"),
            (["--acceptance-rate", "0.3"], "--acceptance-rate says nothing without --speculative-tokens; give both"),
            (["--no-async-scheduling", "--speculative-tokens", "-3"], "num_speculative_tokens should be 0 or more"),
        ],
    )
    def test_what_cannot_be_right_is_said(self, arguments: list[str], complaint: str) -> None:
        result = CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, UsageError)
        assert complaint in str(result.exception)


class TestOneRequest:
    @pytest.mark.parametrize("num_tokens", [1, 2, 3, 5])
    @pytest.mark.parametrize("outputs", [1, 2, 13, 20])
    def test_accepting_everything_divides_the_decode_steps(
        self, num_tokens: int, outputs: int, make_workload: MakeWorkload, make_machine: MakeMachine
    ) -> None:
        recording = simulate(
            make_workload((0.0, 9, outputs)), speculative(num_tokens, 1.0), make_machine(200), check=True
        )
        # The prompt's own step yields the first output.
        assert len(recording.steps) == 1 + -(-(outputs - 1) // (num_tokens + 1))
        assert recording.requests.output_tokens.tolist() == [outputs]

    def test_accepting_nothing_takes_as_many_steps_and_more_slots(
        self, make_workload: MakeWorkload, make_machine: MakeMachine
    ) -> None:
        workload = make_workload((0.0, 9, 12))
        off, on = (
            simulate(workload, speculative(num_tokens, 0.0), make_machine(200), check=True) for num_tokens in (0, 3)
        )
        assert len(on.steps) == len(off.steps)
        assert on.steps.decode_tokens[1:].tolist() == [4] * 11
        assert off.steps.decode_tokens[1:].tolist() == [1] * 11
        # Nine tokens and three drafted after them fill three blocks; then four are computed and three follow.
        assert (off.steps.free_units - on.steps.free_units)[:2].tolist() == [0, 1]
        assert (on.steps.free_units <= off.steps.free_units).all()
        assert waste(on).held.max() == (9 + 11 + 3 + 3 + 3) // 4 * 4

    def test_drafts_stop_at_the_longest_sequence(self, make_workload: MakeWorkload, make_machine: MakeMachine) -> None:
        recording = simulate(
            make_workload((0.0, MAX_LEN - 4, 40)), speculative(7, 1.0), make_machine(MAX_LEN + 4), check=True
        )
        assert recording.requests.output_tokens.tolist() == [4]
        schedule = recording.schedule
        assert (schedule.computed_before + schedule.tokens * schedule.repeats).max() <= MAX_LEN - 1

    def test_what_was_rejected_is_written_again_in_the_same_blocks(self) -> None:
        scheduler, sequence = by_hand(20, 3, 0.0), Sequence(0, 8, 6, 6)
        scheduler.add(sequence)
        scheduler.update(scheduler.schedule())
        assert (sequence.computed, sequence.num_tokens, sequence.drafts, sequence.blocks) == (8, 9, 3, [1, 2, 3])
        batch = scheduler.schedule()
        assert (batch.tokens[sequence], sequence.computed, sequence.blocks) == (4, 12, [1, 2, 3, 4])
        assert sequence.num_registered == 2, "a block of drafts is nothing that others may hit"
        scheduler.update(batch)
        assert (sequence.computed, sequence.num_tokens, sequence.blocks) == (9, 10, [1, 2, 3, 4])

    def test_no_more_is_accepted_than_was_verified(self) -> None:
        scheduler, sequence = by_hand(20, 5, 1.0, max_num_batched_tokens=3), Sequence(0, 2, 20, 20)
        scheduler.add(sequence)
        scheduler.update(scheduler.schedule())
        batch = scheduler.schedule()
        assert (batch.tokens[sequence], sequence.drafts) == (3, 2)
        scheduler.update(batch)
        assert (sequence.num_outputs, sequence.drafts) == (4, 5)

    def test_an_answer_may_be_longer_than_the_longest_sequence(self) -> None:
        scheduler, sequence = by_hand(20, 5, 1.0, max_model_len=16), Sequence(0, 8, 20, 20)
        scheduler.add(sequence)
        while sequence.status is not Status.FINISHED:
            scheduler.update(scheduler.schedule())
        assert sequence.num_tokens == 16

    def test_who_is_preempted_loses_the_drafts(self) -> None:
        scheduler, rows = by_hand(7, 3, 0.0), [Sequence(row, 5, 9, 9) for row in range(2)]
        for sequence in rows:
            scheduler.add(sequence)
        while rows[1].status is not Status.PREEMPTED:
            scheduler.update(scheduler.schedule())
        assert (rows[0].drafts, rows[1].drafts) == (3, 0)


class TestMany:
    @settings(max_examples=40, deadline=None)
    @given(
        num_tokens=st.integers(0, 5),
        rate=st.sampled_from([0.0, 0.4, 0.8, 1.0]),
        block_size=st.sampled_from([1, 4, 16]),
        capacity=st.integers(120, 300),
        seed=st.integers(0, 50),
        others=st.fixed_dictionaries(
            {
                "caching": st.booleans(),
                "max_num_batched_tokens": st.sampled_from([9, 64, 16384]),
                "long_prefill_token_threshold": st.sampled_from([0, 2]),
                "swap_gib": st.sampled_from([0.0, 0.02]),
            }
        ),
    )
    def test_everybody_gets_their_tokens_and_slots_add_up(
        self,
        num_tokens: int,
        rate: float,
        block_size: int,
        capacity: int,
        seed: int,
        others: dict[str, object],
        make_machine: MakeMachine,
    ) -> None:
        workload = busy(seed)
        policy = speculative(num_tokens, rate, block_size=block_size, seed=seed, **others)
        recording = simulate(workload, policy, make_machine(capacity), check=True)
        requests = recording.requests
        assert (requests.status == RequestStatus.FINISHED).all()
        np.testing.assert_array_equal(requests.output_tokens, workload.output_tokens)
        assert recording.num_preemptions == requests.preemptions.sum()
        slots = waste(recording).slots
        assert (slots >= 0).all()
        assert (slots.sum(axis=1) == recording.meta.pool.capacity_slots).all()
        steps = recording.steps
        assert steps.prefill_tokens.sum() + steps.decode_tokens.sum() == scheduled_tokens(recording)

    def test_the_books_agree_with_the_recording(
        self, make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A recording knows which drafts will be written beyond an answer's end; the policy does not."""
        live: list[npt.NDArray[np.int64]] = []
        monkeypatch.setattr(Breakdown, "check", lambda self, _: live.append(self.slots))
        recording = simulate(busy(), speculative(3, 0.6), make_machine(140), check=True)
        assert recording.num_preemptions > 0
        holding = np.array([slots for slots in live if slots[: SlotState.CACHED].any()])
        difference = holding - waste(recording).slots[:-1]
        reserved, internal = SlotState.RESERVED, SlotState.INTERNAL
        others = [state for state in SlotState if state not in (reserved, internal)]
        assert not difference[:, others].any()
        assert (difference[:, reserved] + difference[:, internal] == 0).all()
        assert (difference[:, reserved] <= 0).all()

    def test_more_is_accepted_faster_done(self, make_machine: MakeMachine) -> None:
        durations = [
            simulate(busy(), speculative(3, rate), make_machine(100_000)).duration_s for rate in (0.0, 0.5, 0.9)
        ]
        assert durations == sorted(durations, reverse=True)
        assert len(set(durations)) == 3

    def test_requests_accept_the_same_in_any_company(
        self, make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def outputs_per_step(capacity: int) -> dict[int, list[int]]:
            counts: dict[int, list[int]] = {}
            emitted = RecordingBuilder.emitted

            def listen(builder: RecordingBuilder, request: int, time_s: float, count: int = 1) -> None:
                counts.setdefault(request, []).append(count)
                emitted(builder, request, time_s, count)

            with monkeypatch.context() as patch:
                patch.setattr(RecordingBuilder, "emitted", listen)
                recording = simulate(busy(), speculative(3, 0.6, swap_gib=0.02), make_machine(capacity))
            assert (recording.num_preemptions > 0) == (capacity < 1000)
            return counts

        roomy = outputs_per_step(100_000)
        assert max(max(counts) for counts in roomy.values()) == 4
        # A preempted request loses its drafts once; the first token after that comes alone.
        pressed = outputs_per_step(140)
        equal = [roomy[request] == pressed[request] for request in roomy]
        assert sum(equal) >= len(equal) // 2
        assert all(sum(roomy[request]) == sum(pressed[request]) for request in roomy)
