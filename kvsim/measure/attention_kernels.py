"""Measure attention over a paged cache for a machine card: decodes, prompts, and both in one launch.

Decodes show how fast the cache is read, and prompts how fast attention computes. Launches with both show how much one
slows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from kvsim.measure.timing import seconds_per_call
from kvsim.steptime.card import Attention

HEADS = ((32, 8, 128), (32, 32, 128), (16, 4, 128), (8, 4, 256), (12, 4, 64))
"""Heads that are measured: numbers of query heads and KV heads on one GPU, and the size of a head."""
DECODES = tuple((seqs, context) for seqs in (1, 8, 32, 128, 256) for context in (128, 512, 2048, 8192))
"""Decodes that are measured: number of sequences, and the context of each in tokens."""
PREFILLS = ((256, 0), (1024, 0), (4096, 0), (8192, 0), (1024, 8192))
"""Prompts that are measured: number of queries, and number of tokens computed before."""
MIXES = ((32, 512, 512), (128, 512, 512), (128, 1024, 2048), (32, 2048, 2048), (256, 512, 256))
"""Launches that are measured with both: decoding sequences, the context of each, and queries of one prompt."""
_BLOCK = 16
"""Number of tokens in a block of the paged cache."""
_MOST_BYTES = 16 << 30
"""Largest number of bytes of keys and values in a measured batch. A larger batch might not fit into the GPU."""
_CACHE_BYTES = 160 << 20
"""Bytes of keys and values that calls read in turn: too many to stay in a GPU's cache until the next turn."""
_MOST_COPIES = 16
_KV_ELEMENT_BYTES = 4
"""Bytes of one element of a key and one element of a value together, in bfloat16."""


def measure_attention(heads: Sequence[tuple[int, int, int]] = HEADS) -> tuple[str, tuple[Attention, ...]]:
    """Measure attention with each entry of `heads` in the launches of `DECODES`, `PREFILLS` and `MIXES`.

    An entry of `heads` has the number of query heads and of KV heads on one GPU, and the size of a head. Launches with
    more than `_MOST_BYTES` of keys and values are left out. Return the kernels' name, and one result per launch.
    """
    name, attend = _paged_attention()
    rows = []
    for queries, keys, width in heads:
        for batch in (
            *(((context, 1),) * seqs for seqs, context in DECODES),
            *(((before + tokens, tokens),) for tokens, before in PREFILLS),
            *((((context, 1),) * seqs + ((tokens, tokens),)) for seqs, context, tokens in MIXES),
        ):
            slots = sum(context for context, _ in batch)
            if slots * keys * width * _KV_ELEMENT_BYTES > _MOST_BYTES:
                continue
            seconds = attend(batch, queries, keys, width)
            num_prompts = sum(tokens > 1 for _, tokens in batch)
            rows.append(
                Attention(
                    num_heads=queries,
                    num_kv_heads=keys,
                    head_dim=width,
                    num_decodes=len(batch) - num_prompts,
                    decode_context=batch[0][0] if batch[0][1] == 1 else 0,
                    prompt_tokens=batch[-1][1] if num_prompts else 0,
                    prompt_context=batch[-1][0] if num_prompts else 0,
                    seconds=seconds,
                )
            )
    return name, tuple(rows)


def _paged_attention() -> tuple[str, Any]:
    """Return the name of the attention kernels, and a function that measures the seconds of a batch.

    The function is called with the batch, the numbers of query heads and of KV heads, and the size of a head. A batch
    is a sequence of pairs (context, queries) in tokens.
    """
    try:
        from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func  # noqa: PLC0415
    except ImportError:
        return "PyTorch", _torch_attention
    version = 3 if torch.cuda.get_device_capability()[0] == 9 else 2  # FlashAttention 3 is for Hopper
    return f"vLLM's FlashAttention {version}", partial(_vllm_attention, flash_attn_varlen_func, version)


def _vllm_attention(
    function: Any, version: int, batch: Sequence[tuple[int, int]], heads: int, kv_heads: int, width: int
) -> float:
    """Return the seconds that vLLM's attention takes for a batch, with blocks in random order. `batch` has the context
    and the number of queries of each sequence, in tokens; `width` is the size of a head.
    """
    contexts, tokens = [context for context, _ in batch], [count for _, count in batch]
    per_seq = -(-max(contexts) // _BLOCK)
    num_blocks = sum(-(-context // _BLOCK) for context in contexts)
    block_bytes = _KV_ELEMENT_BYTES * _BLOCK * kv_heads * width
    copies = min(max(_CACHE_BYTES // (num_blocks * block_bytes), 1), _MOST_COPIES)
    cache = torch.randn(2, copies * num_blocks, _BLOCK, kv_heads, width, device="cuda", dtype=torch.bfloat16)
    query = torch.randn(sum(tokens), heads, width, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(query)
    starts = torch.tensor([0, *tokens], device="cuda", dtype=torch.int32).cumsum(0, dtype=torch.int32)
    used = torch.tensor(contexts, device="cuda", dtype=torch.int32)
    calls = []
    for copy in range(copies):
        order = torch.randperm(num_blocks, device="cuda", dtype=torch.int32) + copy * num_blocks
        table = torch.zeros(len(batch), per_seq, device="cuda", dtype=torch.int32)
        begin = 0
        for row, context in enumerate(contexts):
            length = -(-context // _BLOCK)
            table[row, :length] = order[begin : begin + length]
            begin += length
        calls.append(
            partial(
                function,
                q=query, k=cache[0], v=cache[1], out=out, cu_seqlens_q=starts, max_seqlen_q=max(tokens),
                seqused_k=used, max_seqlen_k=max(contexts), causal=True, block_table=table, fa_version=version,
            )
        )  # fmt: skip
    return seconds_per_call(calls)


def _torch_attention(batch: Sequence[tuple[int, int]], heads: int, kv_heads: int, width: int) -> float:
    """Return the seconds of PyTorch's attention without a paged cache: one call for all decodes, one per prompt.

    `batch` has the context and the number of queries of each sequence, in tokens; `width` is the size of a head.
    """
    attend = torch.nn.functional.scaled_dot_product_attention
    decodes = [context for context, tokens in batch if tokens == 1]
    seconds = 0.0
    if decodes:
        shape = (len(decodes), kv_heads, decodes[0], width)
        copies = min(
            max(_CACHE_BYTES // (_KV_ELEMENT_BYTES * len(decodes) * kv_heads * decodes[0] * width), 1), _MOST_COPIES
        )
        query = torch.randn(len(decodes), heads, 1, width, device="cuda", dtype=torch.bfloat16)
        pairs = [torch.randn(2, *shape, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        seconds += seconds_per_call([partial(attend, query, *pair, enable_gqa=heads != kv_heads) for pair in pairs])
    for context, tokens in batch:
        if tokens > 1:
            query = torch.randn(1, heads, tokens, width, device="cuda", dtype=torch.bfloat16)
            keys = torch.randn(2, 1, kv_heads, context, width, device="cuda", dtype=torch.bfloat16)
            causal = context == tokens
            seconds += seconds_per_call([partial(attend, query, *keys, is_causal=causal, enable_gqa=heads != kv_heads)])
    return seconds
