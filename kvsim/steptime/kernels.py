"""Which kernels a process of `generate()` has used: the first batch of a shape is slow, whatever it holds.

With a dynamic cache, attention asks cuDNN for a plan for every batch size and length that the process has not seen;
and now and then the plan needs a kernel that has not been built yet, which takes ten times as long. Which one depends
on whether the length fills its tiles, how it is aligned where a mask is involved, and how the heads share out the
processors. With a static cache the decode step is compiled: for the first cache length as it is, for the second with
the length left open, and then no more.

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
from typing import NamedTuple

from kvsim.errors import UsageError
from kvsim.hardware import Gpu
from kvsim.models import Model

_COMPILATIONS = (1.0, 1.5)
"""Costs of compiling for the first time, and for the second, with the length left open: 16.8 and 25.4 s, 21.5 and 31.8
s.
"""
_TINY_KEYS, _SHORT_KEYS, _LONG_KEYS = 32, 128, 512
"""The most keys that a decode step takes in tiles of 32, of 64 (twice as many where heads are few), and without
sharing them out among processors (which only the fewest heads do beyond that).
"""
_LARGEST_ALIGNMENT = 8
"""Tokens: a length that is a multiple of more has no kernel of its own for that."""
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
    """What a step is the first of its process to need."""

    shapes: float
    """Cost of kernels that have to be chosen, or compiled, for its size and length, in those of a usual decode step;
    else 0.
    """
    kernels: float
    """Kernels that have to be built or loaded, in those of a usual decode step."""


NOTHING_NEW = FirstUses(0.0, 0.0)
"""A step like one before."""


class KernelsSeen:
    """The memory of one process."""

    def __init__(self, gpu: Gpu, model: Model, earlier: Sequence[Batch] = ()) -> None:
        """Begin with what `earlier` batches of `model` needed on `gpu`."""
        self._lone_rows = gpu.num_processors // model.num_attention_heads
        """The most rows with a processor for every head; with half as many there are two."""
        self._seen: set[tuple[object, ...]] = set()
        self._planned: dict[tuple[int, bool], bytearray] = {}
        """Whether so many rows, padded or not, have decoded at each length."""
        self._num_compilations = 0
        for batch in earlier:
            self.run(batch)

    def run(self, batch: Batch) -> list[FirstUses]:
        """What each step of `batch` needs for the first time; from now on the process has it."""
        uses = [NOTHING_NEW] * batch.new_tokens
        for step, use in self.new_in(batch).items():
            uses[step] = use
        return uses

    def new_in(self, batch: Batch, *, stride: int | None = None) -> dict[int, FirstUses]:
        """What steps of `batch` need for the first time, by step, where it is anything.

        A static cache has room for `stride` tokens of every row, if not just for those of the batch.
        """
        width, end = batch.prompt_width, batch.prompt_width + batch.new_tokens
        if batch.preallocated:  # attention goes over all of it from the first step on, and all but one step are alike
            length = end - 1 if stride is None else stride
            return {
                step: self._static_step(batch, length, prefill=not step) for step in range(min(batch.new_tokens, 2))
            }
        uses = {0: self._dynamic_step(batch, width, prefill=True)}
        planned = self._planned.setdefault((batch.rows, batch.padded), bytearray())
        planned.extend(bytes(max(end - len(planned), 0)))
        length = planned.find(0, width + 1, end)  # most lengths of a long run have been met before
        while length >= 0:
            planned[length] = True
            uses[length - width] = self._dynamic_step(batch, length, prefill=False)
            length = planned.find(0, length + 1, end)
        return uses

    def _static_step(self, batch: Batch, length: int, *, prefill: bool) -> FirstUses:
        if prefill:
            self._is_first(*self._kernel(batch, length, prefill=True))  # not compiled: dynamic batches use it too
            return FirstUses(0.0, float(self._is_first("compiler")))
        if self._num_compilations == len(_COMPILATIONS) or not self._is_first("compiled", batch.rows, length):
            return NOTHING_NEW
        self._num_compilations += 1
        return FirstUses(_COMPILATIONS[self._num_compilations - 1], 0.0)

    def _dynamic_step(self, batch: Batch, length: int, *, prefill: bool) -> FirstUses:
        if prefill and not self._is_first("plan", batch.rows, length, batch.padded):
            return NOTHING_NEW
        kind = "prefill" if prefill else "decode"
        plan = _PLAN[kind] * (1.0 if batch.padded else _MASKLESS_PLAN)
        if not self._is_first(*self._kernel(batch, length, prefill=prefill)):
            return FirstUses(plan, 0.0)
        parity = "odd" if length % 2 and batch.padded else "even"
        build = _KERNEL[kind, parity] * (1.0 if batch.padded else _MASKLESS_KERNEL)
        return FirstUses(plan, build + self._is_first("products"))

    def _kernel(self, batch: Batch, length: int, *, prefill: bool) -> tuple[object, ...]:
        """What tells attention's kernels apart."""
        name, tile = ("prefill", 128) if prefill else self._decode_kernel(batch.rows, length)
        alignment = min(length & -length, _LARGEST_ALIGNMENT) if batch.padded else None
        return name, alignment, length % tile == 0

    def _decode_kernel(self, rows: int, length: int) -> tuple[str, int]:
        """The kernel's name here, and the keys that it takes at a time."""
        if length <= _TINY_KEYS:
            return "tiny", 32
        if length <= _SHORT_KEYS * (2 if rows <= self._lone_rows else 1):
            return "short", 64
        return "shared" if length > _LONG_KEYS and 2 * rows <= self._lone_rows else "long", 128

    def _is_first(self, *key: object) -> bool:
        first = key not in self._seen
        self._seen.add(key)
        return first
