"""GPU memory, term by term, down to the pool of KV blocks: how vLLM 0.25.1 arrives at its number of blocks, and why.

A share of the card is taken; weights, activations, whatever lives outside PyTorch and the captured graphs come off it,
and what is left is cut into blocks. vLLM measures activations and overheads by running the model once. Here they are
estimated from the shape, and their terms say so: expect the pool to be right within a few percent, not to the block. To
have a known pool exactly, state it (`kv_memory_bytes`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import BudgetError, UsageError
from kvsim.hardware import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.hardware import Gpu
    from kvsim.models import Model

NON_TORCH_BYTES = 150 << 20
"""Estimate of what libraries take outside PyTorch's allocator once a model has run: workspaces and loaded kernels."""

GRAPH_BYTES = 3 << 20
"""Estimate of what the driver keeps for one captured graph, beside the activations that all graphs share."""

NUM_CAPTURED_SIZES = 51
"""Batch sizes that vLLM captures by default: 1, 2, 4, 8 to 248 in steps of 8, 256 to 512 in steps of 16."""


@dataclass(frozen=True, slots=True)
class BudgetTerm:
    """One line of the explanation."""

    label: str
    size_bytes: int
    """Positive where memory comes in, negative where it goes."""
    why: str
    """Where the figure comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The KV pool of one GPU, and the terms that led to it."""

    gpu: Gpu
    model: Model
    block_size: int
    """Tokens per block."""
    num_blocks: int
    """vLLM's N. Block 0 is its null block, so one block fewer can be given to requests."""
    bytes_per_block: int
    """Bytes of one block in all layers, on this GPU."""
    terms: tuple[BudgetTerm, ...]
    """In the order of the account; they add up to `kv_bytes`."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole pool, null block included."""
        return self.num_blocks * self.bytes_per_block

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can be given to requests."""
        return self.num_blocks - 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the usable blocks hold: one block fewer than the "GPU KV cache size" that vLLM logs."""
        return self.num_usable_blocks * self.block_size

    def max_sequences(self, tokens: int) -> int:
        """How many sequences of `tokens` tokens the pool holds at once, each rounded up to whole blocks.

        A recurrent state is counted as blocks too, since engines keep it in the same pool.

        Raises:
            UsageError: if `tokens` is not positive.
        """
        _check_count("tokens", tokens)
        state_blocks = -(-self.model.state_bytes_per_sequence // self.bytes_per_block)
        return self.num_usable_blocks // (-(-tokens // self.block_size) + state_blocks)


def blocks_for(kv_memory_bytes: int, model: Model, block_size: int, *, tensor_parallel_size: int = 1) -> int:
    """How many blocks of `block_size` tokens fit into `kv_memory_bytes` on each GPU; vLLM's N, null block included.

    Raises:
        UsageError: if a setting is not positive.
    """
    _check_count("kv_memory_bytes", kv_memory_bytes)
    return kv_memory_bytes // _bytes_per_block(model, block_size, tensor_parallel_size)


def plan_budget(
    gpu: Gpu,
    model: Model,
    *,
    gpu_memory_utilization: float = 0.92,
    block_size: int = 16,
    max_num_batched_tokens: int = 16384,
    max_num_seqs: int = 1024,
    kv_memory_bytes: int | None = None,
    tensor_parallel_size: int = 1,
) -> Budget:
    """The KV pool that vLLM would set up on `gpu` for `model`; the defaults are its `LLM` class's on a large GPU.

    Args:
        gpu: One GPU; with tensor parallelism, each of several of the same kind.
        model: What is served.
        gpu_memory_utilization: Share of the GPU's memory that may be used, in (0, 1].
        block_size: Tokens per block.
        max_num_batched_tokens: Tokens of the largest step, which sets the activations' peak.
        max_num_seqs: Sequences of the largest step, which sets the size of the logits.
        kv_memory_bytes: Bytes of the pool; replaces the account above it, and rounding remains.
        tensor_parallel_size: GPUs among which weights and heads are dealt out.

    Raises:
        BudgetError: if the weights do not fit, or no block is left for a request.
        UsageError: if a setting cannot be right.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise UsageError(f"gpu_memory_utilization is {gpu_memory_utilization}; it must be above 0 and at most 1.")
    _check_count("max_num_batched_tokens", max_num_batched_tokens)
    _check_count("max_num_seqs", max_num_seqs)
    bytes_per_block = _bytes_per_block(model, block_size, tensor_parallel_size)
    weights = _weights(model, tensor_parallel_size)
    account: tuple[BudgetTerm, ...]
    if kv_memory_bytes is None:
        allowance = _allowance(gpu, gpu_memory_utilization)
        _check_weights_fit(gpu, model, weights, sum(term.size_bytes for term in allowance), "gpu_memory_utilization")
        activations = _activations(model, max_num_batched_tokens, max_num_seqs, tensor_parallel_size)
        account = (*allowance, weights, activations, *_overheads())
    else:
        _check_count("kv_memory_bytes", kv_memory_bytes)
        _check_weights_fit(gpu, model, weights, gpu.memory_bytes - kv_memory_bytes, "kv_memory_bytes")
        account = (BudgetTerm("KV memory", kv_memory_bytes, "as stated; nothing is estimated"),)
    available = sum(term.size_bytes for term in account)
    num_blocks = available // bytes_per_block
    if num_blocks < 2:
        raise BudgetError(_nothing_left(gpu, model, account, bytes_per_block))
    rounding = BudgetTerm("rounding", num_blocks * bytes_per_block - available, f"blocks of {_size(bytes_per_block)}")
    return Budget(
        gpu=gpu,
        model=model,
        block_size=block_size,
        num_blocks=num_blocks,
        bytes_per_block=bytes_per_block,
        terms=(*account, rounding),
    )


def _allowance(gpu: Gpu, utilization: float) -> tuple[BudgetTerm, BudgetTerm]:
    requested = math.ceil(gpu.memory_bytes * utilization)
    return (
        BudgetTerm("GPU memory", gpu.memory_bytes, f"what the driver reports for {gpu.name}"),
        BudgetTerm("left to others", requested - gpu.memory_bytes, f"gpu_memory_utilization is {utilization:g}"),
    )


def _weights(model: Model, tensor_parallel_size: int) -> BudgetTerm:
    why = f"{model.num_parameters:,} parameters, {model.weight_bytes / model.num_parameters:.3g} bytes each"
    if tensor_parallel_size > 1:
        why += f", dealt out among {tensor_parallel_size} GPUs"
    return BudgetTerm("weights", -math.ceil(model.weight_bytes / tensor_parallel_size), why)


def _activations(model: Model, num_tokens: int, num_seqs: int, tensor_parallel_size: int) -> BudgetTerm:
    """The larger of two peaks that do not coincide: inside a layer, and the logits with their copy in float32."""
    heads = 2 * model.num_attention_heads + 2 * model.num_kv_heads
    attention = heads * model.head_dim / tensor_parallel_size
    feed_forward = 3 * model.intermediate_size / tensor_parallel_size
    width = 2 * model.hidden_size + max(attention, feed_forward)
    layer = math.ceil(num_tokens * width * model.dtype_bytes)
    num_seqs = min(num_seqs, num_tokens)
    logits = num_seqs * model.vocab_size * (model.dtype_bytes + 4)
    if logits > layer:
        why = f"logits of {num_seqs:,} sequences over {model.vocab_size:,} tokens, and a float32 copy"
    else:
        why = f"one layer over {num_tokens:,} tokens, {width:,.0f} elements each"
    return BudgetTerm("activations", -max(layer, logits), f"estimate: {why}")


def _overheads() -> tuple[BudgetTerm, BudgetTerm]:
    graphs = f"estimate: {NUM_CAPTURED_SIZES} batch sizes of {_size(GRAPH_BYTES)}"
    return (
        BudgetTerm("outside PyTorch", -NON_TORCH_BYTES, "estimate: workspaces and kernels that libraries load"),
        BudgetTerm("captured graphs", -NUM_CAPTURED_SIZES * GRAPH_BYTES, graphs),
    )


def _bytes_per_block(model: Model, block_size: int, tensor_parallel_size: int) -> int:
    # vLLM divides by the page of one layer and then by the layers; for whole numbers that is one division.
    _check_count("block_size", block_size)
    _check_count("tensor_parallel_size", tensor_parallel_size)
    if model.num_attention_heads % tensor_parallel_size:
        raise UsageError(
            f"tensor_parallel_size is {tensor_parallel_size}; it must divide the {model.num_attention_heads} attention "
            f"heads of {model.name}."
        )
    return block_size * model.served(tensor_parallel_size=tensor_parallel_size).kv_bytes_per_token


def _check_weights_fit(gpu: Gpu, model: Model, weights: BudgetTerm, room_bytes: int, setting: str) -> None:
    if -weights.size_bytes > room_bytes:
        raise BudgetError(
            f"the weights of {model.name} take {_size(-weights.size_bytes)} on each {gpu.name}, and {setting} leaves "
            f"{_size(max(0, room_bytes))} of its {_size(gpu.memory_bytes)} for them; a larger GPU, a higher "
            f"tensor_parallel_size, a smaller model or another {setting} would help."
        )


def _nothing_left(gpu: Gpu, model: Model, account: Sequence[BudgetTerm], bytes_per_block: int) -> str:
    terms = ", ".join(f"{term.label} {_size(term.size_bytes)}" for term in account)
    left = _size(sum(term.size_bytes for term in account))
    return (
        f"too little memory is left on {gpu.name} for the KV cache of {model.name}: {terms} make {left}, and two "
        f"blocks take {_size(2 * bytes_per_block)}; a larger GPU, a higher gpu_memory_utilization or "
        "tensor_parallel_size, or a smaller max_num_batched_tokens or max_num_seqs would help."
    )


def _check_count(name: str, value: float) -> None:
    if not (1 <= value < math.inf and value == int(value)):
        raise UsageError(f"{name} is {value}; it must be a whole number of at least 1.")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.2f} GiB" if abs(num_bytes) >= GIB // 10 else f"{num_bytes / 2**20:,.2f} MiB"
