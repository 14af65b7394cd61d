"""Compute the GPU memory of calls of `generate()`, by simulating their allocations in PyTorch's allocator step by step.

    batches = [Batch(rows=16, prompt_width=405, new_tokens=898)]
    memory = generate_memory(find_model("llama-2-7b"), batches, capacity_bytes=gpu.memory_bytes)
    print(memory.peak_allocated_bytes[-1], memory.reserved_bytes.max())

The order of allocations is that of transformers 5.17 with PyTorch 2.11 on CUDA. It was checked tensor by tensor against
allocation histories of an H200. Scalars and tensors of a few bytes per row are left out, because they fit into gaps of
the small pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.hf_memory.forward import FLOAT32_BYTES, INT64_BYTES, Forward
from kvsim.memory.caching import MIB, CachingAllocator
from kvsim.recording.tables import IntArray
from kvsim.steptime.kernels import Batch

if TYPE_CHECKING:
    from kvsim.models import Model

WORKSPACE_BYTES = 32 * MIB
"""Size of cuBLAS's workspace on Hopper. A process allocates it at its first matrix product, and keeps it."""

_COLUMNS = (
    "allocated_bytes",
    "reserved_bytes",
    "inactive_split_bytes",
    "requested_bytes",
    "segments",
    "peak_allocated_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateMemory:
    """Counters of the allocator. Arrays have a value after each step of all batches, named as a recording's columns."""

    baseline_allocated_bytes: int
    """Bytes allocated before the first batch: weights, the workspace if it exists, and the process's other tensors."""
    baseline_reserved_bytes: int
    """Bytes reserved before the first batch, including memory of earlier batches that is still cached."""
    allocated_bytes: IntArray
    reserved_bytes: IntArray
    inactive_split_bytes: IntArray
    requested_bytes: IntArray
    segments: IntArray
    peak_allocated_bytes: IntArray
    """Largest number of allocated bytes up to each step."""
    num_retries: int
    """Number of times that the GPU was full, so that all cached memory was returned to the driver."""


def generate_memory(
    model: Model,
    batches: Sequence[Batch],
    *,
    earlier: Sequence[Batch] = (),
    given_back_before: Collection[int] = (),
    has_min_new_tokens: bool = False,
    capacity_bytes: int | None = None,
    workspace_bytes: int = WORKSPACE_BYTES,
    has_workspace: bool = True,
    other_bytes: int = 0,
    private_bytes: int = 0,
) -> GenerateMemory:
    """Run `batches` through `generate()`, one after the other, in one process.

    Args:
        model: a decoder with gated feed-forward networks; its weights are allocated layer by layer.
        batches: the batches to generate. The decoding steps of a preallocated cache are compiled; the memory of their
            captured graphs is `private_bytes`.
        earlier: batches that the process generated before; their memory is still cached.
        given_back_before: indices of batches before which all cached memory is returned to the driver.
        has_min_new_tokens: True if `min_new_tokens` was set; its logits processors copy all logits.
        capacity_bytes: memory that the driver can give to PyTorch; None for no limit.
        workspace_bytes: size of cuBLAS's workspace.
        has_workspace: True if the workspace is allocated before the first batch; False if the first batch allocates it.
        other_bytes: bytes of other tensors in the same process.
        private_bytes: bytes that PyTorch reserves for captured CUDA graphs, in memory pools of their own.

    Raises:
        BudgetError: the GPU is too small.
    """
    allocator = CachingAllocator(None if capacity_bytes is None else capacity_bytes - private_bytes)
    baseline = _prepare(model, allocator, workspace_bytes, other_bytes, has_workspace=has_workspace)
    for batch in earlier:
        for _ in _steps(model, batch, allocator, has_min_new_tokens=has_min_new_tokens):
            pass
    baseline_reserved = allocator.reserved_bytes + private_bytes
    allocator.reset_peaks()
    rows: list[tuple[int, ...]] = []
    for number, batch in enumerate(batches):
        if number in given_back_before:
            allocator.empty_cache()
        rows += _counters(model, batch, allocator, private_bytes, has_min_new_tokens=has_min_new_tokens)
    columns = dict(zip(_COLUMNS, np.array(rows, np.int64).reshape(-1, len(_COLUMNS)).T, strict=True))
    return GenerateMemory(
        baseline_allocated_bytes=baseline,
        baseline_reserved_bytes=baseline_reserved,
        num_retries=allocator.num_retries,
        **columns,
    )


def _prepare(
    model: Model, allocator: CachingAllocator, workspace_bytes: int, other_bytes: int, *, has_workspace: bool
) -> int:
    """Allocate other tensors, weights and workspace. Return their bytes; the workspace only if `has_workspace`."""
    if other_bytes:
        allocator.allocate(other_bytes)
    _load(model, allocator)
    if has_workspace:
        allocator.allocate(workspace_bytes)
    allocator.empty_cache()
    baseline = allocator.allocated_bytes
    if not has_workspace:
        allocator.allocate(workspace_bytes)
    return baseline


def _counters(
    model: Model, batch: Batch, allocator: CachingAllocator, private_bytes: int, *, has_min_new_tokens: bool
) -> Iterator[tuple[int, ...]]:
    for _ in _steps(model, batch, allocator, has_min_new_tokens=has_min_new_tokens):
        now = allocator.counters
        reserved = now.reserved_bytes + private_bytes
        held = (now.allocated_bytes, reserved, now.inactive_split_bytes, now.requested_bytes, now.segments)
        yield (*held, allocator.peak_allocated_bytes)


def _steps(model: Model, batch: Batch, allocator: CachingAllocator, *, has_min_new_tokens: bool) -> Iterator[None]:
    call = _Call(model, batch, allocator, has_min_new_tokens=has_min_new_tokens)
    for _ in range(batch.new_tokens):
        call.step()
        yield
    call.end()


def weights_bytes(model: Model) -> int:
    """Return the GPU memory of the weights in bytes, rounded as the allocator rounds."""
    allocator = CachingAllocator()
    _load(model, allocator)
    return allocator.allocated_bytes


def _load(model: Model, allocator: CachingAllocator) -> None:
    """Allocate the weights in the order in which PyTorch creates the modules."""
    hidden, table = model.hidden_size, model.vocab_size * model.hidden_size * model.dtype_bytes
    queries, keys = (heads * model.head_dim * hidden for heads in (model.num_attention_heads, model.num_kv_heads))
    feed_forward = hidden * model.intermediate_size
    layer = (queries, keys, keys, queries, feed_forward, feed_forward, feed_forward, hidden, hidden)
    allocator.allocate(table)
    for elements in (*layer * model.num_layers, hidden):
        allocator.allocate(elements * model.dtype_bytes)
    for _ in range(2):  # the rotary frequencies, twice
        allocator.allocate(model.head_dim // 2 * FLOAT32_BYTES)
    output = allocator.allocate(table)
    if model.tie_word_embeddings:
        allocator.free(output)


class _Call:
    """Tensors of one call of `generate()`. Attributes such as `_ids` and `_mask` are the addresses of live tensors."""

    def __init__(self, model: Model, batch: Batch, allocator: CachingAllocator, *, has_min_new_tokens: bool) -> None:
        self._model = model
        self._batch = batch
        self._take = allocator.allocate
        self._give = allocator.free
        self._has_min_new_tokens = has_min_new_tokens
        self._forward = Forward(model, allocator, rows=batch.rows, masked=batch.padded)
        self._width = batch.prompt_width
        """Number of tokens of each row so far: prompt with padding, and generated tokens."""
        prompts = [self._take(batch.rows * self._width * INT64_BYTES) for _ in range(5)]
        *self._arguments, self._positions, self._mask, self._ids = prompts
        self._scores: list[int] = []
        """Addresses of the scores by which the last token was chosen. They live until the next step."""
        self._logits: int | None = None

    def step(self) -> None:
        """Run one forward pass and choose one token for every row. The logits stay alive until the next step."""
        self._drop_logits()
        self._logits = self._pass()
        self._width += 1
        self._positions, self._mask = self._grown(self._positions), self._grown(self._mask)
        self._choose()
        self._ids = self._grown(self._ids)

    def end(self) -> None:
        """Free all tensors. Keys and values are freed from the last layer to the first."""
        self._drop_logits()
        cache = [address for pair in reversed(self._forward.cache) for address in pair]
        for address in (self._positions, self._mask, *self._scores, *cache, self._ids, *self._arguments):
            self._give(address)

    def _drop_logits(self) -> None:
        if self._logits is not None:
            self._give(self._logits)
            self._logits = None

    def _pass(self) -> int:
        batch, first = self._batch, self._width == self._batch.prompt_width
        if not batch.preallocated:
            return self._forward.run(self._width if first else 1, self._width)
        if first:
            return self._forward.run(self._width, batch.prompt_width + batch.new_tokens, keep_cache=True)
        return self._take(batch.rows * self._model.vocab_size * self._model.dtype_bytes)

    def _choose(self) -> None:
        """Allocate the logits in single precision, and two tensors for each logits processor: a copy and the result.
        The scores of the step before are freed one after the other, when the variables that hold them get new values.
        """
        take, give = self._take, self._give
        size = self._batch.rows * self._model.vocab_size * FLOAT32_BYTES
        old, processed = self._scores, take(size)
        self._scores = [processed]
        for address in old[:1]:
            give(address)
        for number in range(2 if self._has_min_new_tokens else 0):
            copy, before = take(size), processed
            processed = take(size)
            give(copy)
            if number:
                give(before)
        if self._has_min_new_tokens:
            self._scores.append(processed)
        for address in old[1:]:
            give(address)

    def _grown(self, tensor: int) -> int:
        """Replace the tensor of integers at address `tensor` by one for the new `_width`. Return the new address."""
        wider = self._take(self._batch.rows * self._width * INT64_BYTES)
        self._give(tensor)
        return wider
