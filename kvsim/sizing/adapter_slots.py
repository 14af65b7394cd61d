"""Memory of the slots for adapters (LoRA), which vLLM allocates with the model, used or not.

A slot has, for each projection of a layer, a matrix of rank x inputs and one of outputs x rank. Where outputs are
divided among GPUs the second is, and where inputs are the first is; the other one is whole on each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.models import Model


def slot_bytes(model: Model, max_lora_rank: int) -> int:
    """Return the bytes of one slot on each GPU.

    Raises:
        UsageError: the projections of the model are not known to be those of a plain decoder.
    """
    if model.num_experts or model.kv_lora_rank is not None or model.recurrent_layers:
        raise UsageError(
            f"kvsim knows the slots of adapters for decoders of plain attention without experts, and {model.name} is "
            "none; leave --enable-lora out."
        )
    size, hidden, inner = model.tensor_parallel_size, model.hidden_size, model.intermediate_size
    heads, kv = model.num_attention_heads * model.head_dim, max(model.num_kv_heads // size, 1) * model.head_dim
    by_outputs = (hidden + heads // size) + 2 * (hidden + kv) + 2 * (hidden + inner // size)
    by_inputs = (heads // size + hidden) + (inner // size + hidden)
    return model.num_layers * max_lora_rank * (by_outputs + by_inputs) * model.dtype_bytes
