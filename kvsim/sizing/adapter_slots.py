"""Memory of the slots for adapters (LoRA), which vLLM allocates with the model, used or not.

For each projection of a layer, a slot has two matrices: A of rank x inputs, and B of outputs x rank. With tensor
parallelism, a projection that divides its outputs divides B, and every GPU has the whole of A. A projection that
divides its inputs divides A, and every GPU has the whole of B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.models import Model


def slot_bytes(model: Model, max_lora_rank: int) -> int:
    """Return the bytes of one slot on each GPU."""
    if model.num_experts or model.kv_lora_rank is not None or model.recurrent_layers:
        raise UsageError(
            f"kvsim knows the slots of adapters for decoders of plain attention without experts, and {model.name} is "
            "none; leave --enable-lora out."
        )
    size, hidden, inner = model.tensor_parallel_size, model.hidden_size, model.intermediate_size
    heads, kv = model.num_attention_heads * model.head_dim, max(model.num_kv_heads // size, 1) * model.head_dim
    by_outputs = (hidden + heads // size) + 2 * (hidden + kv) + 2 * (hidden + inner // size)  # q, k and v, gate and up
    by_inputs = (heads // size + hidden) + (inner // size + hidden)  # o, down
    return model.num_layers * max_lora_rank * (by_outputs + by_inputs) * model.dtype_bytes
