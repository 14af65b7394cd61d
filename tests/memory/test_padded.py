from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import IntegrityError, UsageError
from kvsim.memory.padded import Rectangle, RectangleSlots, largest_batch

rows_of_lengths = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=6)


def count_slot_by_slot(rectangle: Rectangle, lengths: list[tuple[int, int]], step: int) -> RectangleSlots[int]:
    """Walk over every held slot of the address range and ask what it is for."""
    longest = max(prompt for prompt, _ in lengths)
    states = []
    for row, (prompt, output) in enumerate(lengths):
        finished = step >= output
        for address in range(row * rectangle.stride, row * rectangle.stride + rectangle.width_at(step)):
            column = address - row * rectangle.stride
            is_pad = column < longest - prompt
            is_written = column < longest + step
            is_of_this_row = column < longest + output - 1
            if is_written:
                states.append("padding" if is_pad or finished else "token")
            else:
                states.append("reserved" if is_of_this_row and not finished else "internal")
    return RectangleSlots(**{state: states.count(state) for state in ("token", "padding", "reserved", "internal")})


@settings(max_examples=100)
@given(lengths=rows_of_lengths, unused_tokens=st.integers(0, 4), preallocated=st.booleans())
def test_every_step_equals_a_count_slot_by_slot(
    lengths: list[tuple[int, int]], unused_tokens: int, preallocated: bool
) -> None:
    prompts, outputs = zip(*lengths, strict=True)
    rectangle = Rectangle(prompts, outputs, max(outputs) + unused_tokens, preallocated=preallocated)
    rectangle.check_integrity()
    assert rectangle.num_steps == max(outputs)
    for step in range(rectangle.num_steps):
        counted = count_slot_by_slot(rectangle, lengths, step)
        assert rectangle.slots_at(step) == counted
        assert counted.held == rectangle.by_step.held[step] == len(lengths) * rectangle.width_at(step)


@settings(max_examples=50)
@given(lengths=rows_of_lengths, preallocated=st.booleans())
def test_rows_never_overlap_and_stay_in_the_range(lengths: list[tuple[int, int]], preallocated: bool) -> None:
    prompts, outputs = zip(*lengths, strict=True)
    rectangle = Rectangle(prompts, outputs, max(outputs), preallocated=preallocated)
    widest = rectangle.width_at(rectangle.num_steps - 1)
    ends = [row * rectangle.stride + widest for row in range(rectangle.num_rows)]
    starts = [row * rectangle.stride for row in range(1, rectangle.num_rows)] + [rectangle.num_addresses]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))


def test_a_dynamic_cache_step_by_step() -> None:
    # Two rows: 3 prompt and 1 output tokens, 1 prompt and 3 output tokens.
    rectangle = Rectangle([3, 1], [1, 3], 3, preallocated=False)
    assert rectangle.stride == 5
    assert rectangle.by_step.token.tolist() == [3 + 1, 2, 3]
    assert rectangle.by_step.padding.tolist() == [2, 4 + 2, 5 + 2]
    assert rectangle.by_step.held.tolist() == [6, 8, 10]
    assert not rectangle.by_step.reserved.any()
    assert not rectangle.by_step.internal.any()


def test_a_static_cache_step_by_step() -> None:
    rectangle = Rectangle([3, 1], [1, 3], 10, preallocated=True)
    assert rectangle.stride == 3 + 10 - 1
    assert rectangle.by_step.token.tolist() == [4, 2, 3]
    assert rectangle.by_step.padding.tolist() == [2, 6, 7]
    assert rectangle.by_step.reserved.tolist() == [2, 1, 0]
    assert rectangle.by_step.internal.tolist() == [16, 15, 14]
    assert rectangle.by_step.held.tolist() == [24, 24, 24]


def test_the_last_token_of_a_row_is_never_written() -> None:
    last = Rectangle([100], [28], 28, preallocated=True).slots_at(27)
    assert last == RectangleSlots(token=127, padding=0, reserved=0, internal=0)


@pytest.mark.parametrize(
    ("prompts", "outputs", "what"),
    [
        ([], [], "at least one row"),
        ([1, 2], [1], "one of each for every row"),
        ([1.5], [1], "whole numbers"),
        ([1, 0], [1, 1], "row 1 has 0 prompt"),
        ([1, 1], [1, 0], "row 1 has 1 prompt and 0 output"),
        ([1, 1], [4, 5], "at most 4 of output"),
    ],
)
def test_lengths_that_cannot_be_right_are_refused(prompts: list[int], outputs: list[int], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        Rectangle(prompts, outputs, 4, preallocated=False)


@pytest.mark.parametrize("step", [-1, 3])
def test_a_step_that_is_not_there_is_refused(step: int) -> None:
    rectangle = Rectangle([3, 1], [1, 3], 3, preallocated=False)
    with pytest.raises(UsageError, match="steps 0 to 2"):
        rectangle.slots_at(step)
    with pytest.raises(UsageError, match="steps 0 to 2"):
        rectangle.width_at(step)


@pytest.mark.parametrize(("wrong", "what"), [([4, 2, 4], "10 slots are held at step 2"), ([4, 3, 3], "step 1")])
def test_a_slot_counted_twice_is_found(wrong: list[int], what: str) -> None:
    rectangle = Rectangle([3, 1], [1, 3], 3, preallocated=False)
    rectangle.by_step = replace(rectangle.by_step, token=np.array(wrong))
    with pytest.raises(IntegrityError, match=what):
        rectangle.check_integrity()


def test_a_token_counted_as_padding_is_found() -> None:
    rectangle = Rectangle([3, 1], [1, 3], 3, preallocated=False)
    slots = rectangle.by_step
    rectangle.by_step = replace(slots, token=slots.token - 1, padding=slots.padding + 1)
    with pytest.raises(IntegrityError, match="there are 6 token"):
        rectangle.check_integrity()


@pytest.mark.parametrize("preallocated", [False, True])
def test_a_rectangle_runs_for_as_long_as_it_fits(preallocated: bool) -> None:
    rectangle = Rectangle([3, 5], [4, 2], 6, preallocated=preallocated)
    for capacity in range(2 * rectangle.stride + 2):
        fitting = [step for step in range(rectangle.num_steps) if 2 * rectangle.width_at(step) <= capacity]
        assert rectangle.steps_within(capacity) == len(fitting)


def test_the_largest_batch_runs_to_its_end_and_one_row_more_does_not() -> None:
    rows = largest_batch(1000, 7 + 10)
    for num_rows, fits in ((rows, True), (rows + 1, False)):
        rectangle = Rectangle([7] * num_rows, [10] * num_rows, 10, preallocated=False)
        assert (rectangle.steps_within(1000) == rectangle.num_steps) == fits
    with pytest.raises(UsageError, match="at least 2"):
        largest_batch(1000, 1)
