"""Which kernels a process of `generate()` has used: the first batch of a shape is slow, whatever it holds.

With a dynamic cache, attention asks cuDNN, on chips for which PyTorch prefers it, for a plan for every batch size and
length that the process has not seen; and now and then the plan needs a kernel that has not been built yet, which
takes ten times as long. Which one depends on whether the length fills its tiles, how it is aligned where a mask is
involved, and how the heads share out the processors. With a static cache the decode step is compiled: for the first
cache length as it is, for the second with the length left open, and then no more.

Seen with transformers 5.17 and PyTorch 2.11 on H200s: in the recordings, all of whose stalls it explains, and, for what
they do not reach (up to 32 keys with a mask, beyond 256 without one, beyond 512 in few rows), in sixteen processes of
a single layer that went through up to 560 lengths each. Those ran five at a time and had kernels from one another, so
they tell where a kernel was new rather than where none was. `docs/accuracy.md` says how well it explains them.

Not in here: CUDA keeps on disk what was built, and a later process on the same machine finds it. A batch of 64 on a new
machine waited five times in its first process, just where this says, and not once in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.errors import UsageError
from kvsim.hardware import Gpu
from kvsim.models import Model

FloatArray: TypeAlias = "npt.NDArray[np.float64]"
IntArray: TypeAlias = "npt.NDArray[np.int64]"

_COMPILATIONS = (1.0, 1.5)
"""Costs of compiling for the first time, and for the second, with the length left open: 16.8 and 25.4 s, 21.5 and 31.8
s.
"""
_TINY_KEYS, _SHORT_KEYS, _LONG_KEYS = 32, 128, 512
"""The most keys that a decode step takes in tiles of 32, of 64 (twice as many where heads are few), and without
sharing them out among processors (which only the fewest heads do beyond that).
"""
_TINY, _SHORT, _LONG, _SHARED, _PREFILL = range(5)
_TILE_KEYS = np.array([32, 64, 128, 128, 128])
"""Keys that attention takes at a time, by kernel."""
_NO_LENGTHS = np.zeros(0, np.int64)
_LARGEST_ALIGNMENT = 8
"""Tokens: a length that is a multiple of more has no kernel of its own for that."""
_NUM_ALIGNMENTS = _LARGEST_ALIGNMENT + 1
"""Alignments by which kernels are numbered; 0 where attention has no mask, and so none matters."""
_PLANNED = ("Hopper GH100", "Blackwell GB100")
"""Chips (compute capability 9.0 and 10.0) on which PyTorch prefers attention by cuDNN, which plans. On all others it
takes kernels of its own, which are there (`check_prefer_cudnn_attention` in ATen's `sdp_utils.cpp`).
"""
_PLAN = {"prefill": 1.4, "decode": 1.0}
"""Cost of choosing kernels, in steps that decode: a prefill has matrix products of a new size as well. From 1.3 to
1.5 in recordings on the host with the fitted profiles.
"""
_KERNEL = {("prefill", "even"): 1.4, ("prefill", "odd"): 2.1, ("decode", "even"): 1.0, ("decode", "odd"): 1.3}
"""Cost of building attention's kernels, by step and length, in kernels for decoding even lengths: the means of 61
stalls in seven processes, five of six of which are within a tenth of what this says.
"""
_MASKLESS_PLAN, _MASKLESS_KERNEL = 0.86, 0.67
"""Both where no prompt is padded, in what they take with a mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One call of `generate()`."""

    rows: int
    prompt_width: int
    """Tokens of the longest prompt, to which the others are padded."""
    new_tokens: int
    """Tokens that every row generates: those of the longest answer."""
    padded: bool = True
    """Whether any prompt is shorter than the longest: then attention needs a mask."""
    preallocated: bool = False
    """Whether the cache is static: its decode steps are compiled."""

    def __post_init__(self) -> None:
        if min(self.rows, self.prompt_width, self.new_tokens) < 1:
            raise UsageError(f"a batch needs at least one row, one prompt token and one new token; this is {self}.")


class FirstUses(NamedTuple):
    """What the steps of a batch are the first of their process to need: one entry a step."""

    shapes: FloatArray
    """Cost of kernels that have to be chosen, or compiled, for its size and length, in those of a usual decode step;
    else 0.
    """
    kernels: FloatArray
    """Kernels that have to be built or loaded, in those of a usual decode step."""


class KernelsSeen:
    """The memory of one process."""

    def __init__(self, gpu: Gpu, model: Model, earlier: Sequence[Batch] = ()) -> None:
        """Begin with what `earlier` batches of `model` needed on `gpu`."""
        self._lone_rows = gpu.num_processors // model.num_attention_heads
        """The most rows with a processor for every head; with half as many there are two."""
        self._plans = gpu.architecture in _PLANNED
        self._seen: set[tuple[object, ...]] = set()
        self._built = np.zeros(len(_TILE_KEYS) * _NUM_ALIGNMENTS * 2, bool)
        """Kernels of attention that there are, by number."""
        self._planned: dict[tuple[int, bool], bytearray] = {}
        """Whether so many rows, padded or not, have decoded at each length."""
        self._num_compilations = 0
        for batch in earlier:
            self.run(batch)

    def run(self, batch: Batch, *, stride: int | None = None) -> FirstUses:
        """What each step of `batch` needs for the first time; from now on the process has it.

        A static cache has room for `stride` tokens of every row, if not just for those of the batch.
        """
        uses = FirstUses(np.zeros(batch.new_tokens), np.zeros(batch.new_tokens))
        width, end = batch.prompt_width, batch.prompt_width + batch.new_tokens
        if batch.preallocated:  # attention goes over all of it from the first step on, and all but one step are alike
            length = end - 1 if stride is None else stride
            uses.kernels[0] = self._static_prefill(batch, length)
            if batch.new_tokens > 1:
                uses.shapes[1] = self._static_decode(batch, length)
        elif not self._plans:
            if self._is_first("plan", batch.rows, width, batch.padded):
                uses.shapes[0] = _PLAN["prefill"] - _PLAN["decode"]  # matrix products alone
                uses.kernels[0] = self._is_first("products")
        else:
            if self._is_first("plan", batch.rows, width, batch.padded):
                self._choose(batch, np.array([width]), uses, prefill=True)
            if len(lengths := self._not_planned(batch, width + 1, end)):
                self._choose(batch, lengths, uses, prefill=False)
        return uses

    def _static_prefill(self, batch: Batch, length: int) -> float:
        """What has to be loaded: a prefill is not compiled, and leaves its kernel to dynamic batches."""
        self._built[self._kernels(batch, np.array([length]), prefill=True)] = True
        return float(self._is_first("compiler"))

    def _static_decode(self, batch: Batch, length: int) -> float:
        """What compiling costs."""
        if self._num_compilations == len(_COMPILATIONS) or not self._is_first("compiled", batch.rows, length):
            return 0.0
        self._num_compilations += 1
        return _COMPILATIONS[self._num_compilations - 1]

    def _not_planned(self, batch: Batch, begin: int, end: int) -> IntArray:
        """The lengths from `begin` to before `end` at which so many rows have not decoded before; now they have."""
        planned = self._planned.setdefault((batch.rows, batch.padded), bytearray())
        planned.extend(bytes(max(end - len(planned), 0)))
        if planned.find(0, begin, end) < 0:  # most lengths of a long run have been met before
            return _NO_LENGTHS
        lengths: IntArray = begin + np.flatnonzero(np.frombuffer(planned[begin:end], np.uint8) == 0)
        planned[begin:end] = bytes([True]) * (end - begin)
        return lengths

    def _choose(self, batch: Batch, lengths: IntArray, uses: FirstUses, *, prefill: bool) -> None:
        """Write what steps at `lengths`, of which each has kernels to choose, cost for that."""
        kind = "prefill" if prefill else "decode"
        steps = lengths - batch.prompt_width
        uses.shapes[steps] = _PLAN[kind] * (1.0 if batch.padded else _MASKLESS_PLAN)
        kernels = self._kernels(batch, lengths, prefill=prefill)
        while (unbuilt := ~self._built[kernels]).any():
            nth = unbuilt.argmax()  # the first of them
            self._built[kernels[nth]] = True
            parity = "odd" if lengths[nth] % 2 and batch.padded else "even"
            build = _KERNEL[kind, parity] * (1.0 if batch.padded else _MASKLESS_KERNEL)
            uses.kernels[steps[nth]] = build + self._is_first("products")

    def _kernels(self, batch: Batch, lengths: IntArray, *, prefill: bool) -> IntArray:
        """A number for the kernel of attention at each of `lengths`, of all that it is told apart by."""
        kernel = np.full(len(lengths), _PREFILL) if prefill else self._decode_kernels(batch.rows, lengths)
        alignment = np.minimum(lengths & -lengths, _LARGEST_ALIGNMENT) if batch.padded else np.zeros_like(lengths)
        fills_tiles = lengths % _TILE_KEYS[kernel] == 0
        numbers: IntArray = (kernel * _NUM_ALIGNMENTS + alignment) * 2 + fills_tiles
        return numbers

    def _decode_kernels(self, rows: int, lengths: IntArray) -> IntArray:
        """Which of the kernels for decoding works at each of `lengths`."""
        short = _SHORT_KEYS * (2 if rows <= self._lone_rows else 1)
        beyond = _SHARED if 2 * rows <= self._lone_rows else _LONG
        kernels = np.array([_TINY, _SHORT, _LONG, beyond])
        return kernels[np.searchsorted([_TINY_KEYS, short, _LONG_KEYS], lengths)]

    def _is_first(self, *key: object) -> bool:
        first = key not in self._seen
        self._seen.add(key)
        return first
