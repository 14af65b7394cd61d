"""Which steps of `generate()` are the first of their kind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.steptime.kernels import Batch, KernelsSeen

H200 = find_gpu("H200")


class Use(NamedTuple):
    """What one step is the first to need."""

    shapes: float
    kernels: float


NOTHING = Use(0, 0)


def process(model: str, *earlier: Batch) -> KernelsSeen:
    return KernelsSeen(H200, find_model(model), earlier)


def batch(rows: int, width: int, steps: int, *, padded: bool = True, preallocated: bool = False) -> Batch:
    return Batch(rows=rows, prompt_width=width, new_tokens=steps, padded=padded, preallocated=preallocated)


def uses(seen: KernelsSeen, what: Batch) -> list[Use]:
    """Step by step, what `what` is the first to need."""
    return [Use(*step) for step in np.transpose(seen.run(what)).tolist()]


def slow_lengths(seen: KernelsSeen, what: Batch) -> list[int]:
    """The lengths at which `what` needs kernels that the process has not built."""
    return [what.prompt_width + step for step, use in enumerate(uses(seen, what)) if use.kernels]


FIRST_PREFILLS = (batch(24, 256, 4), batch(24, 384, 4), batch(12, 384, 4), batch(48, 512, 4), batch(48, 500, 4))
"""Of `hf-h200-...-first-prefills`, with which the processes of the held-out recordings began."""


def test_every_length_is_planned_once_and_a_kernel_is_built_once_for_every_alignment() -> None:
    seen, what = process("llama-2-7b"), batch(24, 256, 20)
    first = uses(seen, what)
    assert first[0].shapes > 1, "a prefill plans its matrix products too"
    assert all(use.shapes == 1 for use in first[1:])
    assert uses(seen, what) == [NOTHING] * 20
    other_rows = uses(seen, batch(12, 256, 20))
    assert all(use.shapes and not use.kernels for use in other_rows), "planned anew, but built of the same kernels"


@pytest.mark.parametrize(
    ("name", "plans"), [("H100", True), ("B200", True), ("A4000", False), ("T4", False), ("L40S", False)]
)
def test_attention_is_planned_where_pytorch_prefers_cudnn(name: str, plans: bool) -> None:
    """Elsewhere a process chooses matrix products once, and for a prompt of a new size."""
    seen, what = KernelsSeen(find_gpu(name), find_model("llama-2-7b")), batch(24, 256, 20)
    first = uses(seen, what)
    assert [use.shapes > 0 for use in first] == [True] + 19 * [plans]
    assert first[0].kernels
    assert any(use.kernels for use in first[1:]) is plans
    assert uses(seen, what) == [NOTHING] * 20
    if not plans:
        assert not any(use.kernels for use in uses(seen, batch(12, 300, 5)))


def test_which_lengths_were_slow_in_llama() -> None:
    """`hf-h200-llama-2-7b-first-prefills` and the held-out recordings after it."""
    seen = process("llama-2-7b")
    slow = [slow_lengths(seen, what) for what in FIRST_PREFILLS]
    assert slow == [[256, 257, 258], [], [], [], [500]]
    assert slow_lengths(seen, batch(32, 110, 64)) == [110, 111, 112, 114, 116, 128, 132, 136]
    assert slow_lengths(seen, batch(8, 295, 339)) == [295, 384]
    assert slow_lengths(seen, batch(8, 152, 344)) == [152]


def test_which_lengths_were_slow_in_granite_whose_eight_rows_leave_every_head_a_processor() -> None:
    """`hf-h200-granite-350m-heldout-batch32` and `-sharegpt-batch8`, whose kernels are others up to 256 keys."""
    seen = process("granite-4.0-350m", *FIRST_PREFILLS)
    assert slow_lengths(seen, batch(32, 137, 96)) == [137, 140, 144]
    assert slow_lengths(seen, batch(32, 188, 96)) == [256]
    assert slow_lengths(seen, batch(8, 265, 476)) == []
    assert slow_lengths(seen, batch(8, 164, 310)) == [165, 166, 168, 172, 192]


def test_which_lengths_were_slow_after_a_small_warm_up_and_after_one_with_the_same_rows() -> None:
    """`hf-h200-granite-350m-batch500`, and the sample recording of the same batch."""
    small = process("granite-4.0-350m", batch(8, 116, 16))
    assert slow_lengths(small, batch(500, 187, 128)) == [187, 188, 189, 190, 192, 256]
    assert slow_lengths(small, batch(64, 121, 128)) == []
    same = process("granite-4.0-350m", batch(500, 187, 4))
    assert slow_lengths(same, batch(500, 187, 128)) == [192, 256]


def test_which_lengths_were_slow_without_padding() -> None:
    """`hf-h200-granite-350m-one-by-one`."""
    seen = process("granite-4.0-350m", batch(8, 116, 16))
    assert slow_lengths(seen, batch(1, 42, 128, padded=False)) == [42, 43, 64]
    assert slow_lengths(seen, batch(1, 65, 128, padded=False)) == []
    assert slow_lengths(seen, batch(1, 28, 128, padded=False)) == [29, 32]


class Probed(NamedTuple):
    """A batch of a process that was watched for stalls, of a single layer."""

    rows: int
    width: int
    steps: int
    slow: set[int] = set()  # noqa: RUF012  (never changed)
    """The lengths at which decoding stalled; prefills are left out, since each is slow."""
    padded: bool = True

    @property
    def batch(self) -> Batch:
        return batch(self.rows, self.width, self.steps, padded=self.padded)


PREFILLED = (116, 187, 121, 248, 256, 530, 100, 90, 64, 33, 128, 24)
GRANITE_PROBED = (
    (Probed(64, 121, 4, {122, 123, 124}), Probed(64, 121, 180, {128, 129, 130, 132, 136})),
    (Probed(64, 90, 240, {91, 92, 96}),),
    (Probed(9, 90, 240, {91, 92, 96, 136, 256}),),
    (Probed(8, 50, 500, {51, 52, 56}),),
    (Probed(4, 50, 500, {51, 52, 56, 513, 514, 516, 520}),),
    (Probed(2, 50, 500),),
    (Probed(8, 100, 60), Probed(64, 100, 60), Probed(8, 190, 90), Probed(64, 190, 90)),
    (Probed(64, 100, 60), Probed(8, 100, 60), Probed(64, 190, 90), Probed(8, 190, 90)),
    (Probed(1, 20, 560, {21, 32, 257, 384, 513}, False),),
    (
        Probed(1, 42, 4, {43}, False),
        Probed(1, 42, 128, {64}, False),
        Probed(1, 28, 128, set(), False),
        Probed(1, 130, 200, {257}, False),
    ),
    (Probed(16, 20, 300, set(), False),),
    (*(Probed(16, width, 2) for width in PREFILLED[:-1]), Probed(16, PREFILLED[-1], 2, {25})),
)
LLAMA_PROBED = (
    (Probed(4, 50, 500, {51, 52, 54, 56, 64}),),
    (Probed(16, 90, 240, {129, 130, 132, 136, 256}),),
    (Probed(4, 50, 300),),
    (Probed(1, 20, 300, {21, 32, 33, 64, 257}, False),),
)
"""Heads of 64 and of 128 elements; the first batch of all has too few steps to tell which of them were slow.

Five processes at a time ran on one machine, and had kernels from one another: later ones stalled nowhere. So a length
that was not slow says nothing if another process was slow at one like it.
"""


def decoded(seen: KernelsSeen, probed: Probed) -> set[int]:
    return set(slow_lengths(seen, probed.batch)) - {probed.width}


@pytest.mark.parametrize(("model", "cases"), [("granite-4.0-350m", GRANITE_PROBED), ("llama-2-7b", LLAMA_PROBED)])
def test_lengths_that_a_probe_found_slow_need_new_kernels(model: str, cases: tuple[tuple[Probed, ...], ...]) -> None:
    for case in cases:
        seen = process(model)
        for probed in case:
            assert probed.slow <= decoded(seen, probed)


@pytest.mark.parametrize(("model", "cases"), [("granite-4.0-350m", GRANITE_PROBED), ("llama-2-7b", LLAMA_PROBED)])
def test_where_a_probe_was_not_slow_another_had_been(model: str, cases: tuple[tuple[Probed, ...], ...]) -> None:
    """A process that has the kernels at whose lengths the others stalled needs only those at which it did."""
    for case in cases:
        stalls = [
            batch(probed.rows, length - 1, 2, padded=probed.padded)
            for other in cases
            if other is not case
            for probed in other
            for length in sorted(probed.slow)
        ]
        seen = process(model, *stalls)
        for probed in case:
            assert decoded(seen, probed) <= probed.slow


def test_a_prefill_has_no_kernels_of_its_own_for_few_keys() -> None:
    """Of the probe: 16 rows of twelve widths, of which those were slow that no other process had had."""
    seen = process("granite-4.0-350m", batch(9, 90, 1), batch(64, 121, 1), batch(64, 100, 1))
    assert [width for width in PREFILLED if uses(seen, batch(16, width, 1))[0].kernels] == [248, 256]


def test_a_static_prefill_is_not_compiled_and_leaves_its_kernel_to_dynamic_batches() -> None:
    """`hf-h200-granite-350m-sharegpt-batch16`: a width of 688 was fast after a static cache of 248 tokens."""
    seen = process("granite-4.0-350m", batch(8, 116, 16), batch(500, 187, 128))
    assert uses(seen, batch(64, 121, 128, preallocated=True))[1].shapes
    after_static, without = uses(seen, batch(16, 688, 2)), process("granite-4.0-350m", batch(8, 116, 16))
    assert after_static[0].kernels == 0
    assert uses(without, batch(16, 688, 2))[0].kernels > 0


def test_what_a_kernel_takes() -> None:
    seen = process("llama-2-7b", batch(1, 1, 1, padded=False))
    padded = uses(seen, batch(16, 405, 8))
    assert padded[0].kernels > padded[2].kernels > padded[1].kernels == padded[3].kernels == 1
    alone = uses(process("llama-2-7b", batch(16, 405, 8)), batch(1, 405, 2, padded=False))
    assert alone[1].kernels < 1
    assert alone[1].shapes < 1
    fresh = uses(process("llama-2-7b"), batch(16, 405, 1))
    assert fresh[0].kernels == padded[0].kernels + 1, "the first matrix products of a process"


@pytest.mark.parametrize("padded", [True, False])
def test_a_static_cache_is_compiled_for_two_lengths(padded: bool) -> None:
    seen = process("granite-4.0-350m")
    first = uses(seen, batch(32, 106, 80, padded=padded, preallocated=True))
    assert first[:3] == [Use(0, 1), Use(1, 0), NOTHING], "the compiler is loaded in the first prefill"
    second = uses(seen, batch(32, 156, 80, padded=padded, preallocated=True))
    assert second[:3] == [NOTHING, Use(1.5, 0), NOTHING], "with the length left open it takes longer"
    assert uses(seen, batch(32, 140, 80, padded=padded, preallocated=True)) == [NOTHING] * 80


def test_a_warm_up_of_another_length_leaves_the_second_compilation_to_the_first_batch() -> None:
    seen = process("granite-4.0-350m", batch(64, 121, 4, preallocated=True))
    assert uses(seen, batch(64, 121, 128, preallocated=True))[:3] == [NOTHING, Use(1.5, 0), NOTHING]
    assert uses(seen, batch(64, 124, 128, preallocated=True)) == [NOTHING] * 128


def test_what_ran_earlier_in_the_process_is_there() -> None:
    what = batch(16, 300, 10)
    assert sum(use.kernels for use in uses(process("llama-2-7b"), what)) > 4
    assert uses(process("llama-2-7b", what), what) == [NOTHING] * 10


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one row"):
        batch(0, 1, 1)
