"""Measure matrix products x[m, k] @ w[n, k].T for a machine card, with weights as large as those of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from kvsim.measure.timing import seconds_per_call
from kvsim.steptime.card import Products

SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), 640, 1024, 2048, 4096, 8192, 16384)
"""Numbers of rows that are measured: the sizes that vLLM captures, and some larger ones."""
FEW_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
"""Numbers of rows that are measured with weights in fp8: fewer, to save time."""
_CACHE_BYTES = 160 << 20
"""Bytes of weights that calls read in turn: too many to stay in a GPU's cache until the next turn."""
_WEIGHTS_BYTES = 2 << 30
"""Bytes of the buffer from which all weights are taken."""
_FEWEST_CALLS, _MOST_CALLS = 4, 24
"""Smallest and largest number of products in one captured graph."""


def measure_products(shapes: Sequence[tuple[int, int]], sizes: Sequence[int] = SIZES, *, fp8: bool = False) -> Products:
    """Measure products with weights of each shape (n, k), in fp8 or bfloat16, for each number of rows in `sizes`.
    Return the seconds of one product for each.
    """
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    itemsize = dtype.itemsize
    num_bytes = max(_WEIGHTS_BYTES, itemsize * max(n * k for n, k in shapes))
    # Values are converted to fp8, because some random bits would be NaNs.
    weights = torch.randn(num_bytes // 2, device="cuda", dtype=torch.bfloat16).to(dtype).view(torch.uint8)
    most_k = max(k for _, k in shapes)
    rows = torch.randn(max(sizes) * most_k, device="cuda", dtype=torch.bfloat16).to(dtype)
    seconds = []
    for n, k in shapes:
        one_bytes = n * k * itemsize
        num_calls = min(max(_CACHE_BYTES // one_bytes, _FEWEST_CALLS), _MOST_CALLS, len(weights) // one_bytes)
        different_weights = [
            weights[index * one_bytes : (index + 1) * one_bytes].view(dtype).view(n, k) for index in range(num_calls)
        ]
        seconds.append([_product_s(rows[: m * k].view(m, k), different_weights, fp8=fp8) for m in sizes])
    return Products(sizes=tuple(sizes), shapes=tuple(shapes), seconds=tuple(map(tuple, seconds)))


def _product_s(x: Any, weights: Sequence[Any], *, fp8: bool) -> float:
    out = torch.empty(len(x), len(weights[0]), device="cuda", dtype=torch.bfloat16)
    return seconds_per_call(list(_calls(x, weights, out, fp8=fp8)))


def _calls(x: Any, weights: Sequence[Any], out: Any, *, fp8: bool) -> Iterator[Callable[[], Any]]:
    if not fp8:
        yield from (partial(torch.mm, x, w.t(), out=out) for w in weights)
        return
    if len(x) % 16:  # fp8 kernels need a multiple of 16 rows
        x = torch.cat([x, x.new_empty(-len(x) % 16, x.shape[1])])
    scale = torch.ones((), device="cuda")
    for w in weights:
        yield partial(torch._scaled_mm, x, w.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
