"""Measure matrix products: the time of x[m, k] @ w[n, k].T by m, for weights as large as those of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from kvsim.measure.timing import seconds_per_call
from kvsim.steptime.card import Products

SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), 640, 1024, 2048, 4096, 8192, 16384)
"""Numbers of rows: the sizes that vLLM captures, and some others."""
FEW_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
_CACHE_BYTES = 160 << 20
"""Bytes of weights that are used in turn: several times the size of a GPU's cache."""
_WEIGHTS_BYTES = 2 << 30
_MOST_CALLS = 24


def measure_products(shapes: Sequence[tuple[int, int]], sizes: Sequence[int] = SIZES, *, fp8: bool = False) -> Products:
    """Measure products with weights of `shapes` (n, k) for each number of rows in `sizes`."""
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    itemsize = dtype.itemsize
    room = max(_WEIGHTS_BYTES, itemsize * max(n * k for n, k in shapes))
    weights = torch.randn(room // 2, device="cuda", dtype=torch.bfloat16).view(torch.uint8)
    if fp8:  # random bits would be NaNs now and then
        weights = weights.view(torch.bfloat16)[: room // 2].to(dtype).view(torch.uint8)
    most_k = max(k for _, k in shapes)
    rows = torch.randn(max(sizes) * most_k, device="cuda", dtype=torch.bfloat16).to(dtype)
    seconds = []
    for n, k in shapes:
        num = min(max(_CACHE_BYTES // (n * k * itemsize), 4), _MOST_CALLS, len(weights) // (n * k * itemsize))
        several = [
            weights[index * n * k * itemsize : (index + 1) * n * k * itemsize].view(dtype).view(n, k)
            for index in range(num)
        ]
        seconds.append([_product_s(rows[: m * k].view(m, k), several, fp8=fp8) for m in sizes])
    return Products(sizes=tuple(sizes), shapes=tuple(shapes), seconds=tuple(map(tuple, seconds)))


def _product_s(x: Any, weights: Sequence[Any], *, fp8: bool) -> float:
    out = torch.empty(len(x), len(weights[0]), device="cuda", dtype=torch.bfloat16)
    return seconds_per_call(list(_calls(x, weights, out, fp8=fp8)))


def _calls(x: Any, weights: Sequence[Any], out: Any, *, fp8: bool) -> Iterator[Callable[[], Any]]:
    if not fp8:
        yield from (partial(torch.mm, x, w.t(), out=out) for w in weights)
        return
    if len(x) % 16:  # the fp8 kernels take rows by sixteen
        x = torch.cat([x, x.new_empty(-len(x) % 16, x.shape[1])])
    one = torch.ones((), device="cuda")
    for w in weights:
        yield partial(torch._scaled_mm, x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
