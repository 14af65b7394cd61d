"""Published figures: each has a source and a band, ours are inside, and they need not be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.errors import UnknownNameError
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, Reserve
from kvsim.published import REPRODUCTIONS, ROWS, Figure, PublishedRow, find_row, paper_lengths, reproduce
from kvsim.published.servers import SERVERS, machine, saturated_shares
from kvsim.simulation import simulate
from kvsim.workload import AllAtOnce, Workload

SLOW = {"fig13", "shared-prefix", "block-size", "watermark"}
"""Half a minute or more together: these run once, in the test of the command."""


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in REPRODUCTIONS if row.name not in SLOW], ids=lambda row: row.name)
def test_our_figure_is_inside_the_band(row: PublishedRow) -> None:
    outcome = reproduce(row)
    assert outcome.passed, outcome.as_dict()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_says_where_it_is_from_and_what_would_be_wrong(row: PublishedRow) -> None:
    assert row.title
    assert row.source
    assert row.band
    assert row.figures
    for figure in row.figures:
        assert figure.low <= figure.published <= figure.high
        assert figure.high < np.inf


def test_names_are_unique_and_found() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert find_row("fig2") in ROWS
    with pytest.raises(UnknownNameError, match="did you mean fig13 or fig2"):
        find_row("fig3")


@pytest.mark.parametrize(("ours", "holds"), [(9.0, True), (11.0, True), (8.9, False), (11.1, False), (np.nan, False)])
def test_a_figure_holds_inside_its_band_only(ours: float, holds: bool) -> None:
    assert Figure.of("", 10, {"within": 1}).holds(ours) == holds
    assert Figure.of("", 10, {"near": 0.1}).holds(ours) == holds


def test_one_figure_outside_its_band_fails_the_row() -> None:
    row = replace(find_row("kv-per-token"), reproduce=lambda progress: [64, 128, 241])  # noqa: ARG005
    outcome = reproduce(row)
    assert not outcome.passed
    assert [figure["passed"] for figure in outcome.as_dict()["figures"]] == [True, True, False]


def saturating(num_requests: int, seed: int = 0) -> Workload:
    return paper_lengths("sharegpt").workload(num_requests, arrivals=AllAtOnce(), seed=seed)


def test_figure_2_does_not_come_out_without_buddies() -> None:
    """Two thirds of what the paper calls external is the rounding of its allocator."""
    policy = SERVERS["Orca (Oracle)"]
    assert isinstance(policy, Contiguous)
    first_fit = replace(policy, cache=ContiguousSettings(reserve=Reserve.ORACLE, fit="first"))
    shares = saturated_shares(simulate(saturating(400), first_fit, machine(first_fit))).paper_percent
    assert shares["external and others"] < 36.6 - 2


@pytest.mark.parametrize("name", ["sharegpt", "alpaca"])
def test_lengths_have_the_same_means_whatever_the_seed(name: str) -> None:
    samples = [paper_lengths(name).sample(2000, np.random.default_rng(seed)) for seed in range(3)]
    prompts, outputs = ([sample[column].mean() for sample in samples] for column in (0, 1))
    assert np.ptp(prompts) == 0
    assert np.ptp(outputs) < 0.01 * outputs[0], "only where an answer is cut at the longest sequence"
    for prompt, output in samples:
        assert prompt.min() >= 1
        assert output.min() >= 1
        assert (prompt + output).max() <= 2048
    assert not np.array_equal(samples[0][0], samples[1][0])


def test_a_workload_is_reproducible_and_says_what_it_is() -> None:
    assert np.array_equal(saturating(50).output_tokens, saturating(50).output_tokens)
    assert not np.array_equal(saturating(50).output_tokens, saturating(50, seed=1).output_tokens)
    assert "ShareGPT" not in saturating(5).description
    assert "161.31" in saturating(5).description
