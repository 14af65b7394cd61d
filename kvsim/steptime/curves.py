"""Kernel times for sizes that were not measured, estimated from the times on a machine card.

The kernels are matrix products, attention, all-reduces and experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.steptime.card import Attention, Card, Experts, Products
    from kvsim.steptime.work import AttentionKind

_NEAREST = 4
"""Number of measured shapes from which the time of another shape is averaged."""
_CAPTURED = 512
"""Largest captured size in tokens. Up to it, steps are padded to a measured size, and nothing is interpolated."""
_LONE_SHARES = np.linspace(0.0, 0.5, 11)
"""Values of `AttentionCost.lone_share` that are tried. The one with the smallest error of the fit is used."""


def product_curve(products: Products, n: int, k: int) -> Callable[[int], float]:
    """Return a function from the number of rows m to the seconds of the product x[m, k] @ w[n, k].T.

    The time per weight is an average over the measured shapes nearest to (n, k). Up to `_CAPTURED` rows, the product
    takes the time of the next larger measured size. With more rows, times are interpolated linearly. Beyond the largest
    measured size, they are proportional to m.
    """
    sizes, shapes = np.array(products.sizes), np.array(products.shapes, float)
    distance = ((np.log2(shapes) - np.log2([n, k])) ** 2).sum(axis=1)
    nearest = np.argsort(distance)[:_NEAREST]
    share = 1 / (distance[nearest] + 1e-9)
    per_weight = np.log(np.array(products.seconds)[nearest] / shapes[nearest].prod(axis=1, keepdims=True))
    seconds = n * k * np.exp((share / share.sum()) @ per_weight)

    def at(m: int) -> float:
        if m > sizes[-1]:
            return float(seconds[-1] * m / sizes[-1])
        if m <= _CAPTURED:  # a step of another size is padded to the next larger one
            return float(seconds[np.searchsorted(sizes, m)])
        return float(np.interp(m, sizes, seconds))

    return at


def reduce_s(all_reduce: Sequence[tuple[int, float]], num_bytes: float) -> float:
    """Return the seconds of an all-reduce of `num_bytes` on each GPU, from measured (bytes, seconds) in `all_reduce`.

    The logarithms of bytes and seconds are interpolated. Beyond the largest measured size, the time is proportional to
    the size. Below the smallest, it is constant.
    """
    sizes, seconds = np.log(np.array(all_reduce)).T
    if num_bytes > all_reduce[-1][0]:
        return float(all_reduce[-1][1] * num_bytes / all_reduce[-1][0])
    return float(np.exp(np.interp(np.log(num_bytes), sizes, seconds)))


def experts_s(experts: Experts, m: int, num_experts: int, per_token: int) -> float:
    """Return the seconds of the experts in one layer for `m` tokens, each of which goes to `per_token` random experts.

    The times in `experts` were measured with evenly spread tokens. The same number of random tokens reaches fewer
    experts, so fewer weights are read. Reading is therefore timed as for fewer tokens: as many evenly spread tokens as
    reach the same number of experts. Tokens beyond those that reach every expert add the time of their arithmetic.
    """
    sizes = np.array(experts.sizes, float)
    seconds = np.minimum.accumulate(np.array(experts.seconds)[::-1])[::-1]  # more tokens never take less time

    def even_s(tokens: float) -> float:
        return float(np.interp(tokens, sizes, seconds)) * float(max(tokens / sizes[-1], 1.0))

    tokens_for_all = num_experts / per_token  # evenly spread tokens that reach every expert once
    tokens_for_reached: float = tokens_for_all * (1 - (1 - per_token / num_experts) ** m)
    return even_s(tokens_for_reached) + even_s(max(m, tokens_for_all)) - even_s(tokens_for_all)


class AttentionCost(NamedTuple):
    """Coefficients for the time of the attention in one layer."""

    step_s: float
    """Seconds per step, independent of its size."""
    sequence_s: float
    """Seconds per sequence, in addition to reading its keys and values."""
    byte_s: float
    """Seconds per byte of the cache that is read, in steps with many sequences."""
    lone_share: float
    """Additional reading time in steps with few sequences, relative to steps with many: 0.5 means 1.5 times as long."""
    flop_s: float
    """Seconds per floating-point operation of the attention in prompts."""
    mixed_share: float
    """Additional reading time of decodes in a launch that also has a prompt: 0.5 means 1.5 times as long."""


def attention_cost(card: Card, reading: AttentionKind, num_processors: int) -> AttentionCost:
    """Return the coefficients of attention with the heads of `reading`, from the most similar measured heads.

    `num_processors` is the number of streaming multiprocessors of the GPU.
    """
    rows = _nearest(card.attention, reading)
    # A key and a value have one byte per element in fp8, two in bfloat16.
    kv_bytes = (2 if card.has_fp8_attention else 4) * rows[0].num_kv_heads * rows[0].head_dim
    decodes = [row for row in rows if not row.prompt_tokens]
    seqs = np.array([row.num_decodes for row in decodes], float)
    read = kv_bytes * seqs * np.array([row.decode_context for row in decodes], float)
    seconds = np.array([row.seconds for row in decodes])
    # 1 if there is at most one head per processor, 0 from two heads on.
    lone = np.clip(2 - seqs * rows[0].num_kv_heads / num_processors, 0, 1)
    fits = [_fit(seqs, read * (1 + share * lone), seconds) for share in _LONE_SHARES]
    best = min(range(len(fits)), key=lambda index: fits[index][1])
    step_s, sequence_s, byte_s = fits[best][0]
    prompts = [row for row in rows if row.prompt_tokens and not row.num_decodes]
    # A pair takes two FLOPs per element of a head for its score, and two for its weighted value.
    flop_s = min(row.seconds / (4 * row.num_heads * row.head_dim * _pairs(row)) for row in prompts)
    mixed = [_mixed_share(row, decodes, prompts, step_s) for row in rows if row.prompt_tokens and row.num_decodes]
    return AttentionCost(
        step_s, sequence_s, byte_s, float(_LONE_SHARES[best]), flop_s, max(float(np.median(mixed or [0.0])), 0.0)
    )


def _nearest(rows: Sequence[Attention], reading: AttentionKind) -> list[Attention]:
    """Return all measured launches with one kind of heads: the kind most similar to the heads of `reading`."""

    def distance(row: Attention) -> float:
        # The size of a head counts most, the number of query heads per KV head least.
        heads = abs(np.log2(row.num_kv_heads / reading.num_kv_heads))
        group = abs(np.log2(row.num_heads / row.num_kv_heads * reading.num_kv_heads / reading.num_heads))
        return float(2 * abs(np.log2(row.head_dim / reading.head_dim)) + heads + group / 2)

    nearest = min(rows, key=distance)
    heads = (nearest.num_heads, nearest.num_kv_heads, nearest.head_dim)
    return [row for row in rows if (row.num_heads, row.num_kv_heads, row.head_dim) == heads]


def _fit(seqs: np.ndarray, read: np.ndarray, seconds: np.ndarray) -> tuple[tuple[float, ...], float]:
    """Fit seconds per step, per sequence and per byte; return these three, and the sum of squared relative errors.

    No coefficient is negative: one that would be is set to 0, and the others are fitted again. `seqs` (sequences),
    `read` (bytes) and `seconds` have one value per launch.
    """
    # Divided by the measured seconds, every prediction should be 1, so the fit minimizes relative errors.
    features = np.stack([np.ones_like(seqs), seqs, read], axis=1) / seconds[:, None]
    kept = [0, 1, 2]
    costs = np.zeros(3)
    while kept:
        costs[:] = 0.0
        costs[kept] = np.linalg.lstsq(features[:, kept], np.ones(len(seqs)), rcond=None)[0]
        if costs.min() >= 0:
            break
        kept.remove(int(costs.argmin()))
    return tuple(costs.tolist()), float(((features @ costs - 1) ** 2).sum())


def _pairs(row: Attention) -> float:
    """Return the number of pairs of a query of the prompt and a key that this query reads."""
    before = row.prompt_context - row.prompt_tokens
    return row.prompt_tokens * before + row.prompt_tokens * (row.prompt_tokens + 1) / 2


def _mixed_share(row: Attention, decodes: Sequence[Attention], prompts: Sequence[Attention], step_s: float) -> float:
    """Return the additional reading time of the decodes in the mixed launch `row`, relative to decodes without a
    prompt.

    The mixed launch replaces one launch of the decodes and one of the prompt, which saves one `step_s`.
    """
    alone = [item for item in decodes if item.num_decodes == row.num_decodes]
    contexts = [item.decode_context for item in alone]
    reading_s = float(np.interp(row.decode_context, contexts, [item.seconds for item in alone])) - step_s
    fresh = [item for item in prompts if item.prompt_tokens == item.prompt_context]
    prompt_s = float(np.interp(_pairs(row), [_pairs(item) for item in fresh], [item.seconds for item in fresh]))
    return (row.seconds - prompt_s) / reading_s - 1
