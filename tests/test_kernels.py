"""Which steps of `generate()` are the first of their kind."""

from __future__ import annotations

import pytest

from kvsim.kernels import BatchRun, FirstUses, KernelsSeen

NOTHING = FirstUses(0, 0)


def slow_steps(seen: KernelsSeen, batch: BatchRun) -> dict[int, int]:
    """The lengths at which `batch` needs kernels that the process has not built, and how many."""
    uses = seen.run(batch)
    return {batch.width + step: use.kernels for step, use in enumerate(uses) if use.kernels}


def test_every_length_is_planned_once_and_a_kernel_is_built_once_for_every_alignment() -> None:
    seen = KernelsSeen(preallocated=False)
    batch = BatchRun(rows=24, width=256, steps=20, padded=True)
    assert all(use.shapes for use in seen.run(batch))
    assert seen.run(batch) == [NOTHING] * 20
    other_rows = seen.run(batch._replace(rows=12))
    assert all(use == FirstUses(1, 0) for use in other_rows), "planned anew, but built of the same kernels"


def test_which_lengths_are_slow_is_what_was_recorded() -> None:
    """The batches of the recordings `hf-h200-llama-2-7b-heldout-batch32` and its like, and where their stalls were."""
    seen = KernelsSeen(preallocated=False)
    assert slow_steps(seen, BatchRun(24, 256, 4, padded=True)) == {256: 3, 257: 1, 258: 1}
    assert slow_steps(seen, BatchRun(24, 384, 4, padded=True)) == {}
    assert slow_steps(seen, BatchRun(48, 500, 4, padded=True)) == {500: 2}
    batch32 = slow_steps(seen, BatchRun(32, 110, 64, padded=True))
    assert list(batch32) == [110, 111, 112, 114, 116, 128, 132, 136]
    assert list(slow_steps(seen, BatchRun(8, 295, 300, padded=True))) == [295, 384]
    assert list(slow_steps(seen, BatchRun(8, 152, 300, padded=True))) == [152]


def test_without_padding_alignment_does_not_matter() -> None:
    seen = KernelsSeen(preallocated=False)
    assert slow_steps(seen, BatchRun(1, 42, 60, padded=False)) == {42: 3, 43: 1, 64: 1}


@pytest.mark.parametrize("padded", [True, False])
def test_a_static_cache_is_compiled_for_two_lengths(padded: bool) -> None:
    seen = KernelsSeen(preallocated=True)
    first = seen.run(BatchRun(32, 106, 80, padded))
    assert first[:3] == [FirstUses(0, 1), FirstUses(1, 0), NOTHING], "the compiler is loaded in the first prefill"
    second, third = seen.run(BatchRun(32, 156, 80, padded)), seen.run(BatchRun(32, 140, 80, padded))
    assert [use.shapes for use in second].index(1) == 1
    assert third == [NOTHING] * 80


def test_what_ran_earlier_in_the_process_is_there() -> None:
    batch = BatchRun(16, 300, 10, padded=True)
    fresh, warm = KernelsSeen(preallocated=False), KernelsSeen(preallocated=False, earlier=(batch,))
    assert sum(use.kernels for use in fresh.run(batch)) > 4
    assert warm.run(batch) == [NOTHING] * 10
