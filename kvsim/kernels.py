"""For which batches a process of `generate()` has its kernels: the first of a shape is slow, whatever it holds.

With a dynamic cache, kernels are chosen anew for every batch size and length that the process has not seen. With a
static one the decode step is compiled: for the first cache length as it is, for the second with the length left open,
and then no more. Seen in recordings with transformers 5.17 and PyTorch 2.11 on an H200.
"""

from __future__ import annotations

_COMPILATIONS = 2


class KernelsSeen:
    """The memory of one process."""

    def __init__(self, *, preallocated: bool) -> None:
        """Begin with nothing; `preallocated` is a static cache."""
        self._preallocated = preallocated
        self._seen: set[tuple[int, int, bool]] = set()
        self._num_compilations = 0

    def is_new(self, num_rows: int, length: int, *, prefill: bool) -> bool:
        """Whether a step of `num_rows` rows is the first of its shape; from now on it is not.

        `length` is what the step attends to: the tokens in the cache, or all of a static cache.
        """
        kernels = num_rows, length, prefill
        if kernels in self._seen:
            return False
        self._seen.add(kernels)
        if not self._preallocated:
            return True
        if prefill or self._num_compilations == _COMPILATIONS:
            return False
        self._num_compilations += 1
        return True
