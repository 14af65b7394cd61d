"""The ladder: one change on every rung, and gains that split into memory and time without a rest."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.errors import RecordingError
from kvsim.experiments.rungs import KEY, RungResult, at_once, climb, rung_recordings, rungs, with_ample_memory
from kvsim.plots.ladder_gains import ladder
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings
from kvsim.simulation import measure
from kvsim.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.simulation import Machine

LIMITS = ContinuousSettings(max_model_len=256, max_num_seqs=32, max_num_batched_tokens=8192)


@pytest.fixture(scope="module")
def workload() -> Workload:
    generator = np.random.default_rng(5)
    return Workload(
        arrival_s=np.arange(40) / 10,
        prompt_tokens=generator.integers(40, 100, 40),
        output_tokens=generator.integers(5, 80, 40),
        prefix_group=np.zeros(40, np.int32),
        prefix_tokens=np.full(40, 32),
        prefix_names=("instructions",),
    )


def _settings(climbed: object) -> dict[str, object]:
    policy = climbed.policy  # type: ignore[attr-defined]
    settings: dict[str, object] = {"kind": type(policy).__name__, "captured": climbed.captured}  # type: ignore[attr-defined]
    for part in asdict(policy).values():
        settings |= part
    return settings


def test_each_rung_changes_one_thing() -> None:
    found = rungs(LIMITS)
    assert len(found) == 8
    for below, above in pairwise(found):
        before, after = _settings(below), _settings(above)
        if before["kind"] == after["kind"]:
            assert sum(before[key] != after[key] for key in before) == 1
    assert [rung.captured for rung in found] == [False] * 6 + [True] * 2


def test_memory_for_everything_is_what_the_workload_needs(
    workload: Workload, make_machine: Callable[[int], Machine]
) -> None:
    """Forty reservations of the longest sequence would be more slots than a pool may have."""
    scheduler = ContinuousSettings(max_model_len=1 << 20, max_num_seqs=64, long_prefill_token_threshold=512)
    policy = Contiguous(scheduler=scheduler, cache=ContiguousSettings())
    machine, short = with_ample_memory(make_machine(400), policy, workload)
    assert short.max_model_len == 512
    assert measure(at_once(workload), short, machine, engine="interpreted").summary.peak_batch == 40


def test_gains_multiply_and_split_into_memory_and_time(
    workload: Workload, make_machine: Callable[[int], Machine]
) -> None:
    machine = make_machine(1_500)
    found = climb(at_once(workload), machine, rungs(LIMITS), lambda _: machine.step_time)
    assert found[0].mean_batch == pytest.approx(1)
    for rung in found:
        assert rung.tokens_per_s <= rung.ample_tokens_per_s * (1 + 1e-12)
        assert rung.gain == pytest.approx(rung.memory_gain * rung.time_gain)
    assert np.prod([rung.gain for rung in found]) == pytest.approx(found[-1].tokens_per_s / found[0].tokens_per_s)
    reservations, pages = found[2], found[3]
    # The same schedule: what pages gain over reservations is memory and nothing else.
    assert pages.memory_gain > 1.5
    assert pages.time_gain == pytest.approx(1, abs=0.02)
    assert pages.mean_batch > reservations.mean_batch


def test_with_memory_for_everything_no_gain_is_memory(
    workload: Workload, make_machine: Callable[[int], Machine]
) -> None:
    machine = make_machine(200_000)
    found = climb(at_once(workload), machine, rungs(LIMITS), lambda _: machine.step_time)
    assert [rung.memory_gain for rung in found] == pytest.approx([1] * 8, abs=0.02)


def test_a_figure_of_the_rungs(workload: Workload, make_machine: Callable[[int], Machine]) -> None:
    machine = make_machine(1_500)
    found = rungs(LIMITS)
    climbed = climb(at_once(workload), machine, found, lambda _: machine.step_time)
    recordings = rung_recordings(at_once(workload), machine, found, lambda _: machine.step_time, climbed)
    assert [recording.meta.extra[KEY]["name"] for recording in recordings] == [rung.name for rung in found]
    picture = ladder(*reversed(recordings))
    labels = [text.get_text() for text in picture.axes[0].get_yticklabels()]
    assert labels == [rung.name for rung in found]
    widths = [bar.get_width() for bar in picture.axes[0].patches[8:]]
    assert widths == pytest.approx([rung.tokens_per_s for rung in climbed])


def test_other_recordings_are_no_ladder(workload: Workload, make_machine: Callable[[int], Machine]) -> None:
    import kvsim

    with pytest.raises(RecordingError, match="compare --ladder"):
        ladder(kvsim.simulate(workload, kvsim.Paged(), make_machine(20_000)))


def test_a_rung_as_a_document_says_both_factors() -> None:
    rung = RungResult(
        name="pages", change="", tokens_per_s=10, ample_tokens_per_s=20, mean_batch=2, duration_s=1, preemptions=0,
        gain=6, memory_gain=3,
    )  # fmt: skip
    assert rung.as_dict()["time_gain"] == 2
