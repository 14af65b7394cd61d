"""Choosing requests and giving them new arrivals, described; and what an imported prefix is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers import LengthLimits, arriving, first, read_workload, within
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import Machine, simulate
from kvsim.workload import Constant, Image, Images, ImageSize, Poisson, Ragged, Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def workload() -> Workload:
    """Prompts of 2 to 2000 tokens."""
    return Workload(
        arrival_s=[0.0, 1.0, 2.0, 3.0],
        prompt_tokens=[2, 100, 900, 2000],
        output_tokens=[50, 50, 1500, 50],
        prompt_hashes=Ragged.from_rows([[], [1], [2, 3], [4]], np.int64),
        ids=["a", "b", "c", "d"],
        description="four",
    )


def test_limits_keep_what_lies_within_and_count_the_rest(workload: Workload) -> None:
    kept = within(workload, LengthLimits(min_tokens=4, max_prompt_tokens=1024, max_total_tokens=2048))
    assert tuple(kept.ids) == ("b",)
    assert kept.prompt_hashes[0].tolist() == [1]
    assert kept.description == (
        "four, without 3 outside these limits "
        "(prompts and answers of at least 4 tokens, prompts of at most 1,024, both together at most 2,048)"
    )


def test_limits_keep_the_images_of_the_requests_that_are_left() -> None:
    images = Images.from_rows([[Image(n, 0, ImageSize.parse("640x480"))] for n in (1, 2, 3)])
    work = Workload(arrival_s=[0, 1, 2], prompt_tokens=[10, 900, 20], output_tokens=[1, 1, 1], images=images)
    kept = within(work, LengthLimits(max_prompt_tokens=100))
    assert [(each.id, [image.content for image in each.images]) for each in kept] == [("r0", [1]), ("r2", [3])]


def test_limits_include_both_ends(workload: Workload) -> None:
    assert within(workload, LengthLimits(min_tokens=2, max_prompt_tokens=2000, max_total_tokens=2400)) is workload


def test_limits_that_nothing_keeps(workload: Workload) -> None:
    with pytest.raises(
        WorkloadError, match="no request of 'workload' keeps these limits: prompts and answers of at least"
    ):
        within(workload, LengthLimits(min_tokens=5000))


def test_the_first_few(workload: Workload) -> None:
    assert tuple(first(workload, 2).ids) == ("a", "b")
    assert first(workload, 2).description == "four, the first 2"
    assert first(workload, 9) is workload


def test_new_arrivals_keep_the_requests_and_follow_the_seed(workload: Workload) -> None:
    again = arriving(workload, Constant(rate_per_s=2.0), seed=0)
    assert np.diff(again.arrival_s).tolist() == [0.5] * 3
    assert again.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    drawn = [arriving(workload, Poisson(rate_per_s=2.0), seed).arrival_s.tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(UsageError, match="the seed is -1"):
        arriving(workload, Poisson(rate_per_s=2.0), -1)


@pytest.mark.parametrize(("block_size", "hit_tokens"), [(16, 1024), (64, 1024), (512, 1024), (1024, 1024)])
def test_hashes_of_512_tokens_are_hits_at_every_block_size(
    tmp_path: Path, make_machine: Callable[[int], Machine], block_size: int, hit_tokens: int
) -> None:
    trace = tmp_path / "mooncake.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 1600, "output_length": 2, "hash_ids": [1, 2, 3, 4]}\n'
        '{"timestamp": 60000, "input_length": 1700, "output_length": 2, "hash_ids": [1, 2, 5, 6]}\n'
    )
    policy = Paged(
        scheduler=ContinuousSettings(max_model_len=4096, max_num_batched_tokens=4096),
        cache=PagedSettings(block_size=block_size),
    )
    served = simulate(read_workload(trace), policy, make_machine(8192))
    assert served.requests.cached_tokens.tolist() == [0, hit_tokens]
