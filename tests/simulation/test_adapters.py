"""Adapters (LoRA): few are in use at once, their prompts share nothing, and recordings know them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import IntegrityError, UsageError, WorkloadError
from kvsim.importers import read_workload, workload_of, write_workload
from kvsim.metrics import summarize
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, read, write
from kvsim.simulation import simulate
from kvsim.workload import Workload

from .test_engines import machine_of


def served(workload: Workload, **settings: Any) -> Recording:
    scheduler = ContinuousSettings(max_model_len=200, enable_lora=True, **settings)
    policy = Paged(scheduler=scheduler, cache=PagedSettings(block_size=4))
    return simulate(workload, policy, machine_of(4_000), check=True)


def requests(adapter: list[int], **columns: Any) -> Workload:
    size = len(adapter)
    return Workload(
        arrival_s=np.zeros(size), prompt_tokens=[20] * size, output_tokens=[8] * size, adapter=adapter, **columns
    )


def test_no_step_computes_more_adapters_than_there_are_slots() -> None:
    recording = served(requests([1, 2, 3, 0, 1, 3, 2, 0]), max_loras=2)
    adapter = recording.requests.adapter
    assert adapter is not None
    begun_s = recording.requests.first_scheduled_s
    assert len(np.unique(begun_s[[0, 1, 3, 4, 6, 7]])) == 1, "those of adapters in use, and of none, are not held up"
    assert (begun_s[[2, 5]] > begun_s[0]).all()
    assert summarize(recording).waiting_for.adapters > 0 == summarize(recording).waiting_for.memory


@pytest.mark.parametrize(("adapter", "hits"), [([1, 1], [0, 16]), ([1, 2], [0, 0]), ([0, 1], [0, 0])])
def test_prompts_of_different_adapters_share_nothing(adapter: list[int], hits: list[int]) -> None:
    alike = {"prefix_group": [0, 0], "prefix_tokens": [16, 16], "prefix_names": ("same",)}
    assert served(requests(adapter, **alike), max_loras=2).requests.cached_tokens.tolist() == hits


def test_a_server_without_adapters_refuses_requests_that_name_one() -> None:
    policy = Paged(scheduler=ContinuousSettings(max_model_len=200))
    with pytest.raises(UsageError, match="vLLM refuses without --enable-lora"):
        simulate(requests([0, 1]), policy, machine_of(4_000))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_loras": 4, "max_cpu_loras": 3}, "max_cpu_loras should be at least the 4 of max_loras, not 3"),
        ({"max_lora_rank": 17}, "max_lora_rank should be one of 1, 8, 16, 32"),
    ],
)
def test_what_vllm_does_not_start_with_is_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ContinuousSettings(enable_lora=True, **settings)  # type: ignore[arg-type]


def test_adapters_are_drawn_by_their_popularity() -> None:
    adapter = requests([0] * 20_000).with_adapters(4, 1.0, seed=3).adapter
    shares = np.bincount(adapter, minlength=5)[1:] / len(adapter)
    np.testing.assert_allclose(shares, np.array([12, 6, 4, 3]) / 25, atol=0.01)


def test_adapters_are_written_and_read(tmp_path: Path) -> None:
    workload = requests([2, 0, 1])
    assert read_workload(write_workload(workload, tmp_path / "w.parquet")).adapter.tolist() == [2, 0, 1]
    table = tmp_path / "w.csv"
    table.write_text("arrival_s,prompt_tokens,output_tokens,adapter\n0,20,8,2\n0,20,8,\n")
    assert read_workload(table).adapter.tolist() == [2, 0]
    write(served(workload, max_loras=2), tmp_path / "run")
    assert workload_of(read(tmp_path / "run")).adapter.tolist() == [2, 0, 1]


def test_a_recording_with_too_many_adapters_in_a_step_is_refused(tmp_path: Path) -> None:
    recording = served(requests([1, 1, 1]), max_loras=2)
    changed = replace(recording, requests=replace(recording.requests, adapter=np.array([1, 2, 3], np.int32)))
    with pytest.raises(IntegrityError, match="a step should compute requests of at most 2 adapters"):
        write(changed, tmp_path / "run")


def test_an_adapter_is_a_number_from_1_on() -> None:
    with pytest.raises(WorkloadError, match=r"adapter is -1; it must be 0 \(none\) or a number from 1 on"):
        requests([0, -1])
