"""The rectangle of a static batch: every row as wide as the widest, and held until the last one ends.

This is what Hugging Face's `generate()` keeps. Prompts are padded on the left to the longest, `P`. Step 0 is the
prefill: it writes `P` columns and yields every row's first token. Each decode step feeds the newest tokens, so it
writes one column more and yields the next ones; the KV of a row's last token is never written. Step `t` therefore
leaves `P + t` written columns, and a row of `p` prompt and `o` output tokens is live in steps 0 to `o - 1` and grows to
`p + o - 1` tokens.

A dynamic cache is as wide as what is written; a static one has room for `max_new_tokens` from the start, again without
the last (`generate()` asks for `max_length - 1` columns). Which requests share a batch is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

IntArray: TypeAlias = NDArray[np.int64]
Count = TypeVar("Count", int, IntArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class RectangleSlots(Generic[Count]):
    """Where the slots of a rectangle go: at one step (int) or at several (int64, one entry per step)."""

    token: Count
    """The KV of a live row's tokens."""
    padding: Count
    """Written, but pad tokens or in a row that has finished."""
    reserved: Count
    """Preallocated, and a live row will write it before it ends."""
    internal: Count
    """Preallocated, and no live row will ever write it."""

    @property
    def held(self) -> Count:
        """All of them together."""
        return self.token + self.padding + self.reserved + self.internal


class Rectangle:
    """One static batch, from its prefill to the step in which its last row ends.

    Args:
        prompt_tokens: prompt length of each row.
        output_tokens: output length of each row, where it really ends.
        max_new_tokens: the most that any row may put out.
        preallocated: True for a static cache, False for a dynamic one.

    Raises:
        UsageError: there is no row, the two columns differ in length, a length is below 1, or an output above
            `max_new_tokens`.
    """

    def __init__(
        self, prompt_tokens: ArrayLike, output_tokens: ArrayLike, max_new_tokens: int, *, preallocated: bool
    ) -> None:
        prompt, output = np.asarray(prompt_tokens), np.asarray(output_tokens)
        _check_lengths(prompt, output, max_new_tokens)
        self._prompt_tokens, self._output_tokens = prompt.astype(np.int64), output.astype(np.int64)
        self.num_rows = prompt.size
        self.prompt_width = int(prompt.max())
        """Columns that the prefill writes."""
        self.is_padded = bool((prompt < self.prompt_width).any())
        """Whether any row is shorter than the longest."""
        self.num_steps = int(output.max())
        """The prefill and all decode steps."""
        self.preallocated = preallocated
        self.stride = self.prompt_width + (max_new_tokens if preallocated else self.num_steps) - 1
        """Slots from where one row begins to where the next does: the row's width at the end, or as preallocated."""
        self.by_step = self._count_slots()
        """Slots by state right after each step, rows that end in it being live still: int64[num_steps] each."""

    @property
    def num_addresses(self) -> int:
        """Slots in the rectangle's address range, which a dynamic cache fills only in its last step."""
        return self.num_rows * self.stride

    def width_at(self, step: int) -> int:
        """Columns that every row holds after a step, 0 being the prefill."""
        step = self._checked(step)
        return self.stride if self.preallocated else self.prompt_width + step

    def steps_within(self, capacity_slots: int) -> int:
        """Steps after which the rectangle still fits into so many slots: all of them, or fewer if it runs out."""
        if self.preallocated:
            return self.num_steps if self.num_addresses <= capacity_slots else 0
        return max(0, min(self.num_steps, capacity_slots // self.num_rows - self.prompt_width + 1))

    def slots_at(self, step: int) -> RectangleSlots[int]:
        """One step of `by_step`, 0 being the prefill."""
        step = self._checked(step)
        return RectangleSlots(
            token=int(self.by_step.token[step]),
            padding=int(self.by_step.padding[step]),
            reserved=int(self.by_step.reserved[step]),
            internal=int(self.by_step.internal[step]),
        )

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every held slot is counted once and the rows' tokens are all counted."""
        slots = self.by_step
        for step in range(self.num_steps):
            now = self.slots_at(step)
            held = self.num_rows * self.width_at(step)
            if now.held != held or min(now.token, now.padding, now.reserved, now.internal) < 0:
                raise IntegrityError(f"{held} slots are held at step {step}, but {now} has {now.held}.")
        ends = self._output_tokens - 1
        lived = int((self._output_tokens * self._prompt_tokens + self._output_tokens * ends // 2).sum())
        awaited = int((self._output_tokens * ends // 2).sum()) if self.preallocated else 0
        if (slots.token.sum(), slots.reserved.sum()) != (lived, awaited):
            raise IntegrityError(
                f"over all steps there are {slots.token.sum()} token and {slots.reserved.sum()} reserved slots; "
                f"by rows there are {lived} and {awaited}."
            )

    def _count_slots(self) -> RectangleSlots[IntArray]:
        prompt, output, step = self._prompt_tokens, self._output_tokens, np.arange(self.num_steps)
        live = _sums_over_live(output, np.ones_like(output))
        finished = self.num_rows - live
        prompts = _sums_over_live(output, prompt)
        outputs = _sums_over_live(output, output)
        unwritten = self.stride - self.prompt_width - step if self.preallocated else np.zeros_like(step)
        reserved = outputs - live * (step + 1) if self.preallocated else np.zeros_like(step)
        return RectangleSlots(
            token=prompts + live * step,
            padding=live * self.prompt_width - prompts + finished * (self.prompt_width + step),
            reserved=reserved,
            internal=self.num_rows * unwritten - reserved,
        )

    def _checked(self, step: int) -> int:
        if not 0 <= step < self.num_steps:
            raise UsageError(f"there is no step {step}; the batch has steps 0 to {self.num_steps - 1}.")
        return step


def largest_batch(capacity_slots: int, tokens: int) -> int:
    """Return the largest number of rows that fit to the end, at `tokens` of prompt and output each; 0 if none fits."""
    if tokens < 2:
        raise UsageError(f"rows of {tokens} tokens were asked for; a prompt and an answer have at least 2.")
    return capacity_slots // (tokens - 1)


def _sums_over_live(output: IntArray, values: IntArray) -> IntArray:
    """Sums of `values` over the rows that are live in each step, those with more outputs than its number."""
    ending = np.zeros(output.max() + 1, np.int64)
    np.add.at(ending, output, values)
    return np.cumsum(ending[::-1])[:-1][::-1]


def _check_lengths(prompt: NDArray[Any], output: NDArray[Any], max_new_tokens: int) -> None:
    if prompt.ndim != 1 or prompt.shape != output.shape or prompt.size == 0:
        raise UsageError(
            f"prompt lengths of shape {prompt.shape} and output lengths of shape {output.shape} were given; "
            "a rectangle needs one of each for every row, and at least one row."
        )
    if not (np.issubdtype(prompt.dtype, np.integer) and np.issubdtype(output.dtype, np.integer)):
        raise UsageError(f"lengths of type {prompt.dtype} and {output.dtype} were given; they must be whole numbers.")
    bad = (prompt < 1) | (output < 1) | (output > max_new_tokens)
    if bad.any():
        row = int(bad.argmax())
        raise UsageError(
            f"row {row} has {prompt[row]} prompt and {output[row]} output tokens; "
            f"it must have at least 1 of each and at most {max_new_tokens} of output."
        )
