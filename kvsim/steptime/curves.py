"""Interpolate a machine card: the time of a product, of attention and of a sum, between and beyond measured points."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.steptime.card import Attention, Card, Experts, Products
    from kvsim.steptime.work import AttentionKind

_NEAREST = 4
"""Number of measured weights that are averaged for weights in between."""
_CAPTURED = 512
"""Largest size to which a step is padded, in tokens; kernels differ from one measured size to the next."""


def product_curve(products: Products, n: int, k: int) -> Callable[[int], float]:
    """Return a function from m to the seconds of x[m, k] @ w[n, k].T.

    Time per weight is taken from the nearest shapes. It is linear between two sizes, and proportional to m beyond the
    largest.
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
        if m <= _CAPTURED:  # a size that was not measured runs as the next larger one
            return float(seconds[np.searchsorted(sizes, m)])
        return float(np.interp(m, sizes, seconds))

    return at


def reduce_s(all_reduce: Sequence[tuple[int, float]], num_bytes: float) -> float:
    """Return the seconds of a sum over GPUs of `num_bytes` each, interpolated linearly in logarithms."""
    sizes, seconds = np.log(np.array(all_reduce)).T
    if num_bytes > all_reduce[-1][0]:
        return float(all_reduce[-1][1] * num_bytes / all_reduce[-1][0])
    return float(np.exp(np.interp(np.log(num_bytes), sizes, seconds)))


def experts_s(experts: Experts, m: int, num_experts: int, per_token: int) -> float:
    """Return the seconds of a layer's experts for `m` tokens, each of which chooses `per_token` at random.

    Measured tokens spread evenly and reach more experts than a few random tokens do. Random tokens read as much as
    fewer evenly spread tokens, and compute as much as all.
    """
    sizes = np.array(experts.sizes, float)
    seconds = np.minimum.accumulate(np.array(experts.seconds)[::-1])[::-1]  # more tokens never take less time

    def even_s(tokens: float) -> float:
        return float(np.interp(tokens, sizes, seconds)) * float(max(tokens / sizes[-1], 1.0))

    all_reached = num_experts / per_token
    reading: float = all_reached * (1 - (1 - per_token / num_experts) ** m)
    return even_s(reading) + even_s(max(m, all_reached)) - even_s(all_reached)


class AttentionCost(NamedTuple):
    """Costs of one layer's attention, in seconds."""

    step_s: float
    sequence_s: float
    """Cost per sequence, without its reads."""
    byte_s: float
    """Cost per byte of the cache, if it is read for many sequences."""
    lone_share: float
    """Additional share of the reading time for few sequences."""
    flop_s: float
    """Cost per operation of a prompt's queries on its keys."""
    mixed_share: float
    """Additional share of the reading time if a prompt is in the same launch."""


_LONE_SHARES = np.linspace(0.0, 0.5, 11)


def attention_cost(card: Card, reading: AttentionKind, num_processors: int) -> AttentionCost:
    """Return the attention costs for the heads of `reading`, from the most similar measured heads."""
    rows = _nearest(card.attention, reading)
    kv_bytes = (2 if card.has_fp8_attention else 4) * rows[0].num_kv_heads * rows[0].head_dim
    decodes = [row for row in rows if not row.prompt_tokens]
    seqs = np.array([row.num_decodes for row in decodes], float)
    read = kv_bytes * seqs * np.array([row.decode_context for row in decodes], float)
    seconds = np.array([row.seconds for row in decodes])
    lone = np.clip(2 - seqs * rows[0].num_kv_heads / num_processors, 0, 1)
    fits = [_fit(seqs, read * (1 + share * lone), seconds) for share in _LONE_SHARES]
    best = min(range(len(fits)), key=lambda index: fits[index][1])
    step_s, sequence_s, byte_s = fits[best][0]
    prompts = [row for row in rows if row.prompt_tokens and not row.num_decodes]
    flop_s = min(row.seconds / (4 * row.num_heads * row.head_dim * _pairs(row)) for row in prompts)
    mixed = [_mixed_share(row, decodes, prompts, step_s) for row in rows if row.prompt_tokens and row.num_decodes]
    return AttentionCost(
        step_s, sequence_s, byte_s, float(_LONE_SHARES[best]), flop_s, max(float(np.median(mixed or [0.0])), 0.0)
    )


def _nearest(rows: Sequence[Attention], reading: AttentionKind) -> list[Attention]:
    def distance(row: Attention) -> float:
        heads = abs(np.log2(row.num_kv_heads / reading.num_kv_heads))
        group = abs(np.log2(row.num_heads / row.num_kv_heads * reading.num_kv_heads / reading.num_heads))
        return float(2 * abs(np.log2(row.head_dim / reading.head_dim)) + heads + group / 2)

    nearest = min(rows, key=distance)
    heads = (nearest.num_heads, nearest.num_kv_heads, nearest.head_dim)
    return [row for row in rows if (row.num_heads, row.num_kv_heads, row.head_dim) == heads]


def _fit(seqs: np.ndarray, read: np.ndarray, seconds: np.ndarray) -> tuple[tuple[float, ...], float]:
    """Fit seconds per step, sequence and byte, none negative, with small relative errors; return them and the error."""
    features = np.stack([np.ones_like(seqs), seqs, read], axis=1) / seconds[:, None]
    kept = [0, 1, 2]
    found = np.zeros(3)
    while kept:
        found[:] = 0.0
        found[kept] = np.linalg.lstsq(features[:, kept], np.ones(len(seqs)), rcond=None)[0]
        if found.min() >= 0:
            break
        kept.remove(int(found.argmin()))
    return tuple(found.tolist()), float(((features @ found - 1) ** 2).sum())


def _pairs(row: Attention) -> float:
    before = row.prompt_context - row.prompt_tokens
    return row.prompt_tokens * before + row.prompt_tokens * (row.prompt_tokens + 1) / 2


def _mixed_share(row: Attention, decodes: Sequence[Attention], prompts: Sequence[Attention], step_s: float) -> float:
    """Return how much longer reading takes in the mixed launch `row` than alone. Two launches became one, which saves
    one `step_s`."""
    alone = [item for item in decodes if item.num_decodes == row.num_decodes]
    contexts = [item.decode_context for item in alone]
    reading_s = float(np.interp(row.decode_context, contexts, [item.seconds for item in alone])) - step_s
    fresh = [item for item in prompts if item.prompt_tokens == item.prompt_context]
    prompt_s = float(np.interp(_pairs(row), [_pairs(item) for item in fresh], [item.seconds for item in fresh]))
    return (row.seconds - prompt_s) / reading_s - 1
