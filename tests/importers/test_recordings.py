"""The requests of a recording, served again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import WorkloadError
from kvsim.importers import workload_of
from kvsim.policies import Contiguous, Paged, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, RequestStatus, find, read, shipped_names, write
from kvsim.simulation import Machine, simulate
from kvsim.workload import Ragged, Workload

MakeMachine = Callable[[int], Machine]
POLICY = Paged(scheduler=ContinuousSettings(max_model_len=64), cache=PagedSettings(block_size=4))


def test_a_simulated_workload_comes_back(make_machine: MakeMachine) -> None:
    workload = Workload(
        arrival_s=[1.5, 2.0, 4.0],
        prompt_tokens=[9, 9, 5],
        output_tokens=[3, 4, 1],
        max_tokens=[3, 9, 1],
        priority=[2, 0, 1],
        prompt_hashes=Ragged.from_rows([[1, 2], [1, 3], []], np.int64),
        hash_unit_tokens=4,
        ids=["a", "b", "c"],
        name="w",
    )
    again = workload_of(simulate(workload, POLICY, make_machine(80)))
    assert again.arrival_s.tolist() == [0.0, 0.5, 2.5], "time begins with the first of them"
    for column in ("prompt_tokens", "output_tokens", "max_tokens", "priority"):
        assert getattr(again, column).tolist() == getattr(workload, column).tolist()
    assert tuple(again.ids) == ("a", "b", "c")
    assert again.hash_unit_tokens == 4
    first, second, third = (again.prompt_hashes[row].tolist() for row in range(3))
    assert (len(first), len(second), len(third)) == (2, 2, 0)
    assert first[0] == second[0], "an equal prefix keeps an equal hash"
    assert len({first[0], first[1], second[1]}) == 3
    assert again.name == "paged-w"
    assert again.description == "the 3 requests of the recording paged-w"


@pytest.mark.parametrize("policy", [Contiguous(), Static()], ids=lambda policy: policy.name)
def test_prefixes_survive_a_policy_that_has_no_use_for_them(
    policy: Contiguous | Static, make_machine: MakeMachine, tmp_path: Path
) -> None:
    """One hash per unit of the trace, not one per slot: a long prompt has a hundred thousand slots."""
    hashes = Ragged.from_rows([[1, 2], [1, 3], []], np.int64)
    workload = Workload(
        arrival_s=[0.0, 1.0, 2.0], prompt_tokens=[9, 9, 5], output_tokens=[3, 4, 1],
        prompt_hashes=hashes, hash_unit_tokens=4,
    )  # fmt: skip
    recording = simulate(workload, policy, make_machine(200_000))
    assert recording.requests.prompt_hashes.lengths.tolist() == [2, 2, 0]
    write(recording, tmp_path / "run")
    again = workload_of(read(tmp_path / "run"))
    assert again.hash_unit_tokens == 4
    first, second = again.prompt_hashes[0].tolist(), again.prompt_hashes[1].tolist()
    assert first[0] == second[0]
    assert first[1] != second[1]
    hit, direct = (simulate(served, POLICY, make_machine(80)).requests.cached_tokens for served in (again, workload))
    assert hit.tolist() == direct.tolist() == [0, 4, 0]


def test_requests_that_put_out_nothing_are_left_out_and_counted(make_machine: MakeMachine) -> None:
    workload = Workload(arrival_s=[0.0, 1.0], prompt_tokens=[90, 5], output_tokens=[3, 4], ids=["long", "b"])
    recording = simulate(workload, POLICY, make_machine(80), refuse_misfits=True)
    assert recording.requests.status[0] == RequestStatus.REFUSED
    again = workload_of(recording)
    assert tuple(again.ids) == ("b",)
    assert again.arrival_s.tolist() == [0.0]
    assert again.description.endswith(", without 1 that put out nothing")


def test_a_recording_in_which_nobody_answers_is_refused(make_machine: MakeMachine) -> None:
    workload = Workload(arrival_s=[0.0], prompt_tokens=[90], output_tokens=[3])
    recording = simulate(workload, POLICY, make_machine(80), refuse_misfits=True)
    with pytest.raises(WorkloadError, match="recording 'paged-workload' has no request with any output"):
        workload_of(recording)


def test_an_answer_longer_than_its_limit_raises_the_limit(pressure: Recording) -> None:
    """An engine may count limits otherwise; a workload in which an answer passes its limit cannot be."""
    requests = replace(pressure.requests, max_tokens=np.ones(len(pressure.requests), np.int32))
    workload = workload_of(replace(pressure, requests=requests))
    assert workload.max_tokens.tolist() == workload.output_tokens.tolist()


@lru_cache(maxsize=2)
def shipped(name: str) -> Recording:
    """One of the recordings that come along; tests of it follow one another."""
    return read(find(name))


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (number % 10 != 0))
        for number, case in enumerate(product(shipped_names(), (Paged(), Contiguous(), Static())))
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_shipped_requests_can_be_served_by_every_policy(
    name: str, policy: Paged | Contiguous | Static, make_machine: MakeMachine
) -> None:
    recording = shipped(name)
    workload = workload_of(recording)
    assert len(workload) == np.count_nonzero(recording.requests.output_tokens)
    assert workload.output_tokens.sum() == recording.requests.output_tokens.sum()
    served = simulate(workload.head(4), policy, make_machine(40_000))
    assert (served.requests.status == RequestStatus.FINISHED).all()


def test_requests_of_a_simulation_give_the_same_simulation_again(make_machine: MakeMachine) -> None:
    workload = Workload(
        arrival_s=np.arange(20) * 0.01, prompt_tokens=[9] * 20, output_tokens=[7] * 20, max_tokens=[9] * 20
    )
    first = simulate(workload, POLICY, make_machine(80))
    second = simulate(workload_of(first), POLICY, make_machine(80))
    np.testing.assert_array_equal(first.steps.end_s, second.steps.end_s)
    np.testing.assert_array_equal(first.memory.address, second.memory.address)
