"""Which kernels a process of `generate()` has used: the first batch of a shape is slow, whatever it holds.

With a dynamic cache, attention asks cuDNN for a plan for every batch size and length that the process has not seen;
and now and then the plan needs a kernel that has not been built yet, which takes ten times as long. Which one depends
on how the length is aligned where a mask is involved. With a static cache the decode step is compiled: for the first
cache length as it is, for the second with the length left open, and then no more. Seen in recordings with
transformers 5.17 and PyTorch 2.11 on an H200; `docs/accuracy.md` says how well it explains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_COMPILATIONS = 2
_PREFILL_KERNELS = 2
"""A prefill waits about twice as long for its kernel as a decode step does."""
_TILE = 128
"""Keys that attention takes at a time: shorter lengths, and whole multiples, have kernels of their own."""


class BatchRun(NamedTuple):
    """A call of `generate()` that a process has behind it."""

    rows: int
    width: int
    """Tokens of the longest prompt."""
    steps: int
    """New tokens of every row."""
    padded: bool
    """Whether any prompt was shorter."""


class FirstUses(NamedTuple):
    """What a step is the first of its process to need."""

    shapes: int
    """1 if a kernel has to be chosen, or compiled, for its size and length."""
    kernels: int
    """Kernels that have to be built or loaded, in those of a decode step."""


NOTHING_NEW = FirstUses(0, 0)
"""A step like one before."""
ONLY_A_SHAPE = FirstUses(1, 0)
"""A step of another size or length, with the kernels of one before."""


class KernelsSeen:
    """The memory of one process."""

    def __init__(self, *, preallocated: bool, earlier: tuple[BatchRun, ...] = ()) -> None:
        """Begin with what `earlier` batches of the same kind of cache needed; `preallocated` is a static one."""
        self._preallocated = preallocated
        self._seen: set[tuple[object, ...]] = set()
        self._num_compilations = 0
        for batch in earlier:
            self.run(batch)

    def run(self, batch: BatchRun, *, stride: int | None = None) -> list[FirstUses]:
        """All steps of a batch; a static cache has room for `stride` tokens, if not just for those of the batch."""
        lengths: Sequence[int] = range(batch.width, batch.width + batch.steps)
        if self._preallocated:
            lengths = [lengths[-1] if stride is None else stride] * batch.steps
        return [
            self.step(batch.rows, length, prefill=number == 0, padded=batch.padded)
            for number, length in enumerate(lengths)
        ]

    def step(self, num_rows: int, length: int, *, prefill: bool, padded: bool) -> FirstUses:
        """What a step of `num_rows` rows needs for the first time; from now on it has it.

        `length` is what the step attends to: the tokens in the cache, or all of a static cache.
        """
        if self._preallocated:
            compiles = self._is_first(num_rows, length) if not prefill and self._num_compilations < _COMPILATIONS else 0
            self._num_compilations += compiles
            return FirstUses(compiles, self._is_first("compiler"))
        seen, shape = self._seen, (num_rows, length, prefill, padded)
        if shape in seen:
            return NOTHING_NEW
        seen.add(shape)
        kernel = (prefill, padded, *_variant(length, prefill, padded))
        if kernel in seen:
            return ONLY_A_SHAPE
        seen.add(kernel)
        return FirstUses(1, (_PREFILL_KERNELS if prefill else 1) + self._is_first("products"))

    def _is_first(self, *key: object) -> int:
        first = key not in self._seen
        self._seen.add(key)
        return int(first)


def _variant(length: int, prefill: bool, padded: bool) -> tuple[object, ...]:
    """What tells attention's kernels apart, beside what they compute."""
    if not padded:
        return (length % (_TILE // 2) == 0,)
    alignment = length & -length
    return min(alignment, 8), length % _TILE == 0, not prefill and length <= _TILE
