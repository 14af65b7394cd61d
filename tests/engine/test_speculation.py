"""Speculative decoding: tokens are conserved, slots add up, and the acceptance means what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvsim.cli.answer import failure_notes
from kvsim.engine.driver import Driver
from kvsim.engine.state import FINISHED, PREEMPTED
from kvsim.errors import RecordingError, UsageError, WorkloadError
from kvsim.metrics import waste
from kvsim.policies import Paged
from kvsim.policies.acceptance import rates_of
from kvsim.policies.draft_counts import DraftCounts, draft_counts_of
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import RequestStatus
from kvsim.recording.check import check, check_events
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Poisson, Workload, generate

from ..conformance.modes import in_every_way
from .by_hand import arrived

MakeMachine = Callable[[int], Machine]
MakeWorkload = Callable[..., Workload]
MAX_LEN = 64


def speculative(
    num_tokens: int,
    acceptance: float | str,
    *,
    block_size: int = 4,
    caching: bool = True,
    method: str = "eagle",
    **scheduler: object,
) -> Paged:
    config = {"method": method, "model": "a draft model", "num_speculative_tokens": num_tokens}
    chosen = {"max_model_len": MAX_LEN, "async_scheduling": False, "acceptance": acceptance} | scheduler
    chosen |= {"speculative_config": config} if num_tokens else {}
    return Paged(
        scheduler=ContinuousSettings(**chosen),  # type: ignore[arg-type]
        cache=PagedSettings(block_size=block_size, enable_prefix_caching=caching),
    )


def busy(seed: int = 0) -> Workload:
    """Thirty requests, more than the memory of the tests holds at once."""
    return generate(
        30,
        arrivals=Poisson(rate_per_s=2000.0),
        prompt=LogNormal(mean_tokens=8, sigma=0.7, maximum=20),
        output=LogNormal(mean_tokens=10, sigma=0.7, maximum=24),
        seed=seed,
    )


def step(driver: Driver) -> dict[int, int]:
    driver.schedule()
    batch = driver.batch()
    driver.update()
    return batch


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 1.0])
def test_the_rate_is_that_of_drafts_behind_right_ones(rate: float) -> None:
    shares = rates_of(str(rate), 4)
    assert shares is not None
    right = DraftCounts.draw(shares, 1, range(1)).values
    reached = [np.count_nonzero(right >= count) for count in range(5)]
    for before, after in pairwise(reached):
        assert after == pytest.approx(rate * before, abs=0.01 * len(right))


def test_shares_by_position_are_those_of_all_steps() -> None:
    right = DraftCounts.draw((0.8, 0.6, 0.1), 0, range(1)).values
    assert [np.mean(right >= count) for count in (1, 2, 3, 4)] == pytest.approx([0.8, 0.6, 0.1, 0], abs=0.01)


def test_a_seed_decides() -> None:
    one, again, other = (DraftCounts.draw((0.5,), seed, range(3)).values for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_a_file_says_what_is_right_and_what_is_proposed(tmp_path: Path) -> None:
    file = tmp_path / "accepted.txt"
    file.write_text("# of two requests\n2 0 1\n\n1/3, 0/0\n")
    right, proposed = draft_counts_of(str(file), synthetic_rates=(), num_tokens=3, seed=0, rows=range(3))
    rows = [
        [each.values[each.first[row] :][: each.lengths[row]].tolist() for row in range(3)] for each in (right, proposed)
    ]
    assert rows == [[[2, 0, 1], [1, 0], [2, 0, 1]], [[], [3, 0], []]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 x", "line 1: accepted drafts are whole numbers"),
        ("1/2 1", "or all are right/proposed"),
        ("0\n3/2", "line 2: more drafts are right than are proposed"),
        ("# nothing", "there is no line with accepted drafts"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_by_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "accepted.txt"
    file.write_text(text)
    with pytest.raises(WorkloadError, match=words):
        draft_counts_of(str(file), synthetic_rates=(), num_tokens=3, seed=0, rows=range(1))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("{", "should be a JSON object in quotes"),
        ("[]", "should be a JSON object, not"),
        ({"method": "eagle", "num_speculative_tokens": 2}, "vLLM does not start method 'eagle' without"),
        ({"method": "ngram"}, "should say num_speculative_tokens"),
        (
            {"method": "ngram", "num_speculative_tokens": 2, "tokens": 1},
            "there is no key of --speculative-config 'tokens'",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": "2"},
            "num_speculative_tokens of --speculative-config should be int",
        ),
        ({"method": "dspark", "num_speculative_tokens": 2}, "does not follow drafts of the method 'dspark'"),
        ({"method": "ngram", "num_speculative_tokens": 2, "tensor_parallel_size": 1}, "draft_tensor_parallel_size"),
        (
            {"method": "ngram", "num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": [[2, 4, 1]]},
            "should begin at 1",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.5, 0.2]},
            "are for rejection_sample_method 'synthetic' alone",
        ),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 2,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": [0.5, 0.6],
            },
            "should not rise",
        ),
    ],
)
def test_what_vllm_refuses_is_refused_with_its_reason(told: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ContinuousSettings(speculative_config=told)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vllm": "0.30.0"}, "knows speculative decoding of vLLM 0.25 and 0.33, not of 0.30.0"),
        ({"vllm": "0.25.1", "async_scheduling": True}, "does not schedule ahead with drafts of the method 'ngram'"),
        ({"acceptance": "0.5,0.6"}, "should not rise from position to position"),
        ({"acceptance": "0.5,0.4,0.3"}, "acceptance names 3 positions, and 2 tokens are drafted"),
        ({"acceptance": 1.5}, "acceptance should be shares between 0 and 1"),
    ],
)
def test_settings_beside_drafts_are_checked(settings: dict[str, Any], words: str) -> None:
    drafting = {"method": "ngram", "num_speculative_tokens": 2}
    with pytest.raises(UsageError, match=words):
        ContinuousSettings(speculative_config=drafting, **settings)


def test_a_release_schedules_ahead_where_it_can() -> None:
    def is_ahead(method: str, vllm: str) -> bool:
        told = {"method": method, "model": "x", "num_speculative_tokens": 2}
        return ContinuousSettings(speculative_config=told, vllm=vllm).async_scheduling

    assert [is_ahead(method, "0.33.0") for method in ("eagle", "ngram", "suffix")] == [True, True, False]
    assert [is_ahead(method, "0.25.1") for method in ("eagle", "ngram", "ngram_gpu")] == [True, False, True]


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
@pytest.mark.parametrize("outputs", [1, 2, 13, 20])
def test_accepting_everything_divides_the_decode_steps(
    num_tokens: int, outputs: int, make_workload: MakeWorkload, make_machine: MakeMachine
) -> None:
    recording = simulate(make_workload((0.0, 9, outputs)), speculative(num_tokens, 1.0), make_machine(200), check=True)
    # The prompt's own step yields the first output.
    assert len(recording.steps) == 1 + -(-(outputs - 1) // (num_tokens + 1))
    assert recording.requests.output_tokens.tolist() == [outputs]


def test_accepting_nothing_takes_as_many_steps_and_more_slots(
    make_workload: MakeWorkload, make_machine: MakeMachine
) -> None:
    workload = make_workload((0.0, 9, 12))
    off, on = (simulate(workload, speculative(num, 0.0), make_machine(200), check=True) for num in (0, 3))
    assert len(on.steps) == len(off.steps)
    assert on.steps.decode_tokens[1:].tolist() == [4] * 11
    assert off.steps.decode_tokens[1:].tolist() == [1] * 11
    # Nine tokens and three drafted after them fill three blocks; then four are computed and three follow.
    held = [run.meta.pool.num_units - run.steps.free_units for run in (off, on)]  # a draft layer leaves fewer units
    assert (held[1] - held[0])[:2].tolist() == [0, 1]
    assert waste(on).held.max() == (9 + 11 + 3 + 3 + 3) // 4 * 4


@in_every_way
def test_what_was_rejected_is_written_again_in_the_same_blocks(compiled: bool) -> None:
    driver = arrived(speculative(3, 0.0, max_model_len=8192), 19, (8, 6), compiled=compiled)
    step(driver)
    sequence = driver.sequence(1)
    assert (sequence.computed, sequence.num_tokens, sequence.drafts, driver.blocks(1)) == (8, 9, 3, [1, 2, 3])
    assert step(driver) == {1: 4}
    assert (sequence.computed, sequence.num_tokens, sequence.rejected, driver.blocks(1)) == (9, 10, 3, [1, 2, 3, 4])
    assert driver.engine.tables[sequence.place].num_cached == 2, "a block of drafts is nothing that others may hit"


@in_every_way
def test_no_more_is_accepted_than_was_verified(compiled: bool) -> None:
    driver = arrived(speculative(5, 1.0, max_num_batched_tokens=3), 19, (2, 20), compiled=compiled)
    step(driver)
    assert step(driver) == {1: 3}
    assert (driver.sequence(1).num_tokens - 2, driver.sequence(1).drafts) == (4, 5)


@in_every_way
def test_a_preempted_sequence_loses_its_drafts(compiled: bool) -> None:
    driver = arrived(speculative(3, 0.0), 6, (5, 9), (5, 9), compiled=compiled)
    for _ in range(10):
        driver.schedule()
        if driver.sequence(2).status == PREEMPTED:
            break
        driver.update()
    driver.update()
    assert (driver.sequence(1).drafts, driver.sequence(2).drafts, driver.sequence(2).status) == (3, 0, PREEMPTED)


@in_every_way
def test_an_answer_ends_where_it_should_whatever_was_right(compiled: bool) -> None:
    driver = arrived(speculative(5, 1.0), 30, (8, 6), compiled=compiled)
    step(driver)
    step(driver)
    assert (driver.sequence(1).num_tokens, driver.sequence(1).status) == (14, FINISHED)


@settings(max_examples=25, deadline=None)
@given(
    num_tokens=st.integers(0, 5),
    rate=st.sampled_from([0.0, 0.4, 0.8, 1.0]),
    block_size=st.sampled_from([1, 4, 16]),
    capacity=st.integers(120, 300),
    seed=st.integers(0, 50),
    max_num_batched_tokens=st.sampled_from([9, 64, 16384]),
    long_prefill_token_threshold=st.sampled_from([0, 2]),
)
@example(  # fewer than 0 tokens stay computed: the threshold cuts padding drafts, and all of them are rejected
    num_tokens=5,
    rate=0.0,
    block_size=1,
    capacity=120,
    seed=0,
    max_num_batched_tokens=64,
    long_prefill_token_threshold=2,
)
def test_each_request_gets_its_tokens_and_slots_add_up(
    num_tokens: int, rate: float, block_size: int, capacity: int, seed: int, make_machine: MakeMachine, **others: object
) -> None:
    workload = busy(seed)
    policy = speculative(num_tokens, rate, block_size=block_size, **others)  # type: ignore[arg-type]
    recording = simulate(workload, policy, make_machine(capacity), check=True)
    assert (recording.requests.status == RequestStatus.FINISHED).all()
    np.testing.assert_array_equal(recording.requests.output_tokens, workload.output_tokens)
    slots = waste(recording).slots
    assert (slots >= 0).all()
    assert (slots.sum(axis=1) == recording.meta.pool.capacity_slots).all()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_a_recording_of_padding_drafts_that_were_cut_off_is_accepted(
    threshold: int, ahead: bool, make_machine: MakeMachine
) -> None:
    """All three are rejected, also those that the threshold cut off, so that a row begins earlier than it would."""
    policy = speculative(3, 0.0, vllm="0.25.1", async_scheduling=ahead, long_prefill_token_threshold=threshold)
    recording = simulate(busy(), policy, make_machine(120), check=True)
    schedule = recording.schedule
    assert schedule.known is not None
    rows = np.flatnonzero(schedule.computed_before == schedule.known - 1 - (4 - threshold))
    assert len(rows)
    check(recording, Path())
    check_events(recording, Path())
    before = schedule.computed_before.copy()
    before[rows[-1]] -= 1
    with pytest.raises(RecordingError, match="computed_before should"):
        check(replace(recording, schedule=replace(schedule, computed_before=before)), Path())


@pytest.mark.parametrize(("release", "threshold", "ends"), [("0.33.0", 3, 3), ("0.33.0", 4, 0), ("0.25.1", 3, 0)])
def test_padding_above_the_threshold_of_long_prompts_would_end_the_newest_vllm(
    release: str, threshold: int, ends: int, make_machine: MakeMachine
) -> None:
    """Prompts of which all blocks are hit have one token to compute, and are admitted with three drafts."""
    alike = {"prefix_group": np.zeros(4, int), "prefix_tokens": np.full(4, 17), "prefix_names": ["same"]}
    workload = Workload(
        arrival_s=np.arange(4) / 10, prompt_tokens=np.full(4, 17), output_tokens=np.full(4, 40), **alike
    )
    policy = speculative(3, 0.5, method="ngram", vllm=release, long_prefill_token_threshold=threshold)
    recording = simulate(workload, policy, make_machine(2_000), check=True)
    assert recording.meta.engine.get("vllm_padding_failures", 0) == ends
    assert [f"would have ended {ends} times" in note for note in failure_notes([recording.meta])] == [True] * (ends > 0)
