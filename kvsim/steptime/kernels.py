"""Kernels that a process of `generate()` has used, because the first batch of each shape is slow.

On chips for which PyTorch prefers cuDNN's attention, a dynamic cache needs a cuDNN plan for every new pair of batch
size and length. Some plans need a kernel that has not been built, which takes ten times as long. The kernel depends on
whether the length fills the kernel's tiles, on the alignment of the length if there is a mask, and on how the heads
share the GPU's processors. With a static cache, the decode step is compiled twice: for the first cache length as a
constant, and for the second with a variable length.

Observed with transformers 5.17 and PyTorch 2.11 on H200s. These rules explain every stall in the recordings. Lengths
beyond those of the recordings were tried in sixteen further processes. They shared built kernels, so they show where a
kernel was new, but not where none was. `docs/accuracy.md` has the errors.

Not modelled: CUDA keeps built kernels on disk, so a later process on the same machine need not build them.
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
"""Time of the first compilation (constant length) and of the second (variable length), relative to the first.

Measured: 16.8 and 25.4 s in one process, 21.5 and 31.8 s in another.
"""
_TINY_KEYS, _SHORT_KEYS, _LONG_KEYS = 32, 128, 512
"""Largest numbers of keys with which a decode step uses the kernels `_TINY`, `_SHORT` and `_LONG`.

The number of heads, over all rows, changes two of these limits. If there are no more heads than processors, `_SHORT` is
used for up to 256 keys. Only if there are at most half as many heads as processors, steps with more than 512 keys use
`_SHARED`, which divides the keys among processors. Otherwise `_LONG` has no limit.
"""
_TINY, _SHORT, _LONG, _SHARED, _PREFILL = range(5)
_TILE_KEYS = np.array([32, 64, 128, 128, 128])
"""Number of keys in a tile of attention, by kernel (`_TINY` to `_PREFILL`)."""
_NO_LENGTHS = np.zeros(0, np.int64)
_LARGEST_ALIGNMENT = 8
"""Largest alignment with a kernel of its own. The alignment of a length is the largest power of two that divides it."""
_NUM_ALIGNMENTS = _LARGEST_ALIGNMENT + 1
"""Number of values that an alignment can have in the index of a kernel: 0 (no mask) to `_LARGEST_ALIGNMENT`."""
_PLANNED = ("Hopper GH100", "Blackwell GB100")
"""Chips on which PyTorch prefers cuDNN's attention, which makes plans (compute capability 9.0 and 10.0).

Other chips use PyTorch's own kernels (`check_prefer_cudnn_attention` in ATen's `sdp_utils.cpp`).
"""
_PLAN = {"prefill": 1.4, "decode": 1.0}
"""Time to choose kernels for a step, relative to a decode step.

A prefill also has matrix products of a new size. It took 1.3 to 1.5 in recordings on the host of the fitted profiles.
"""
_KERNEL = {("prefill", "even"): 1.4, ("prefill", "odd"): 2.1, ("decode", "even"): 1.0, ("decode", "odd"): 1.3}
"""Time to build an attention kernel, by kind of step and parity of length, relative to a decode step of even length.

The values are means of 61 stalls in seven processes. Five of six stalls differ from the mean by at most a tenth.
"""
_MASKLESS_PLAN, _MASKLESS_KERNEL = 0.86, 0.67
"""Factors on the times to choose and to build kernels if no prompt is padded, because attention then has no mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Batch of one call of `generate()`.

    Raises:
        UsageError: it has no row, no prompt token or no new token.
    """

    rows: int
    prompt_width: int
    """Number of tokens in the longest prompt. Shorter prompts are padded to it."""
    new_tokens: int
    """Number of tokens that every row generates: the length of the longest answer."""
    padded: bool = True
    """True if a prompt is shorter than the longest one, so that attention needs a mask."""
    preallocated: bool = False
    """True if the cache is static, so that decode steps are compiled."""

    def __post_init__(self) -> None:
        if min(self.rows, self.prompt_width, self.new_tokens) < 1:
            raise UsageError(f"a batch needs at least one row, one prompt token and one new token; this is {self}.")


class FirstUses(NamedTuple):
    """Additional time in each step of a batch in which kernels are used for the first time."""

    choose_times: FloatArray
    """Time of each step to choose or compile kernels, in multiples of `Roofline.new_shape_s`; 0 if none is new."""
    build_times: FloatArray
    """Time of each step to build or load kernels, in multiples of `Roofline.new_kernel_s`; 0 if none is new."""


class KernelsSeen:
    """Attention kernels that one process has built, and the plans that it has made."""

    def __init__(self, gpu: Gpu, model: Model, earlier: Sequence[Batch] = ()) -> None:
        """Begin with the kernels that the batches `earlier` of `model` needed on `gpu`."""
        self._lone_rows = gpu.num_processors // model.num_attention_heads
        """Largest number of rows for which every head of a decode has a processor of its own."""
        self._plans = gpu.architecture in _PLANNED
        self._seen: set[tuple[object, ...]] = set()
        self._built = np.zeros(len(_TILE_KEYS) * _NUM_ALIGNMENTS * 2, bool)
        """Entry i: True if the attention kernel with index i (see `_kernels`) has been built."""
        self._planned: dict[tuple[int, bool], bytearray] = {}
        """Bytes by (number of rows, whether padded). Byte n is 1 if such a batch has decoded at length n."""
        self._num_compilations = 0
        for batch in earlier:
            self.run(batch)

    def run(self, batch: Batch, *, stride: int | None = None) -> FirstUses:
        """Return the additional times of first uses in each step of `batch`, and store its kernels as used.

        `stride` is the number of slots per row of a static cache. None means as many as the batch needs.
        """
        uses = FirstUses(np.zeros(batch.new_tokens), np.zeros(batch.new_tokens))
        width, end = batch.prompt_width, batch.prompt_width + batch.new_tokens
        if batch.preallocated:  # attention reads the whole static cache in every step, so all decode steps are alike
            length = end - 1 if stride is None else stride
            uses.build_times[0] = self._static_prefill(batch, length)
            if batch.new_tokens > 1:
                uses.choose_times[1] = self._static_decode(batch, length)
        elif not self._plans:
            if self._is_first("plan", batch.rows, width, batch.padded):
                uses.choose_times[0] = _PLAN["prefill"] - _PLAN["decode"]  # matrix products alone
                uses.build_times[0] = self._is_first("products")
        else:
            if self._is_first("plan", batch.rows, width, batch.padded):
                self._choose(batch, np.array([width]), uses, prefill=True)
            if len(lengths := self._not_planned(batch, width + 1, end)):
                self._choose(batch, lengths, uses, prefill=False)
        return uses

    def _static_prefill(self, batch: Batch, length: int) -> float:
        """Return the time to load the compiler before a prefill with a static cache, and mark its kernel as built.

        The time is in multiples of `Roofline.new_kernel_s`; 0 if the compiler is loaded. The prefill itself is not
        compiled, so later batches with a dynamic cache can use its attention kernel.
        """
        self._built[self._kernels(batch, np.array([length]), prefill=True)] = True
        return float(self._is_first("compiler"))

    def _static_decode(self, batch: Batch, length: int) -> float:
        """Return the time to compile a static decode step, relative to the first compilation.

        It is 0 if code for this number of rows and this `length` is compiled already, or if all compilations in
        `_COMPILATIONS` are over.
        """
        if self._num_compilations == len(_COMPILATIONS) or not self._is_first("compiled", batch.rows, length):
            return 0.0
        self._num_compilations += 1
        return _COMPILATIONS[self._num_compilations - 1]

    def _not_planned(self, batch: Batch, begin: int, end: int) -> IntArray:
        """Return the lengths from `begin` up to `end` for which the process has made no plan, and mark them as planned.

        Batches with equal numbers of rows share plans if both or neither are padded.
        """
        planned = self._planned.setdefault((batch.rows, batch.padded), bytearray())
        planned.extend(bytes(max(end - len(planned), 0)))
        if planned.find(0, begin, end) < 0:  # all are planned, as usual in a long run
            return _NO_LENGTHS
        lengths: IntArray = begin + np.flatnonzero(np.frombuffer(planned[begin:end], np.uint8) == 0)
        planned[begin:end] = bytes([True]) * (end - begin)
        return lengths

    def _choose(self, batch: Batch, lengths: IntArray, uses: FirstUses, *, prefill: bool) -> None:
        kind = "prefill" if prefill else "decode"
        steps = lengths - batch.prompt_width
        uses.choose_times[steps] = _PLAN[kind] * (1.0 if batch.padded else _MASKLESS_PLAN)
        kernels = self._kernels(batch, lengths, prefill=prefill)
        while (unbuilt := ~self._built[kernels]).any():
            nth = unbuilt.argmax()  # the first unbuilt kernel
            self._built[kernels[nth]] = True
            parity = "odd" if lengths[nth] % 2 and batch.padded else "even"
            build = _KERNEL[kind, parity] * (1.0 if batch.padded else _MASKLESS_KERNEL)
            uses.build_times[steps[nth]] = build + self._is_first("products")

    def _kernels(self, batch: Batch, lengths: IntArray, *, prefill: bool) -> IntArray:
        """Return the index of the attention kernel for a step at each of `lengths`.

        The index counts through kinds of kernels, alignments of the length, and whether the length fills tiles.
        """
        kernel = np.full(len(lengths), _PREFILL) if prefill else self._decode_kernels(batch.rows, lengths)
        # `lengths & -lengths` is the largest power of two that divides a length.
        alignment = np.minimum(lengths & -lengths, _LARGEST_ALIGNMENT) if batch.padded else np.zeros_like(lengths)
        fills_tiles = lengths % _TILE_KEYS[kernel] == 0
        indices: IntArray = (kernel * _NUM_ALIGNMENTS + alignment) * 2 + fills_tiles
        return indices

    def _decode_kernels(self, rows: int, lengths: IntArray) -> IntArray:
        """Return the kind of kernel (`_TINY` to `_SHARED`) that decodes `rows` rows, for each number of keys."""
        short = _SHORT_KEYS * (2 if rows <= self._lone_rows else 1)
        beyond = _SHARED if 2 * rows <= self._lone_rows else _LONG
        kernels = np.array([_TINY, _SHORT, _LONG, beyond])
        return kernels[np.searchsorted([_TINY_KEYS, short, _LONG_KEYS], lengths)]

    def _is_first(self, *key: object) -> bool:
        """Tell whether `key` is used for the first time in the process, and mark it as used."""
        first = key not in self._seen
        self._seen.add(key)
        return first
