"""The machine cards that come with kvsim, and cards for other GPUs, made from their data sheets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.hardware import Gpu, find_gpu
from kvsim.steptime import streamed_bytes_per_s
from kvsim.steptime.card import Attention, Card, Products, load_card

_FOLDER = Path(__file__).parent / "cards"
_BASE_GPU = "H200"
"""GPU whose measured card is scaled for GPUs without a card. These GPUs are assumed to be as efficient."""
_ARITHMETIC_SHARE = 0.72
"""Share of an H200's peak FLOP/s that its large matrix products reach."""
_ARITHMETIC = {"Ampere GA100": 1.1, "Ampere GA102": 1.3, "Ampere GA104": 1.3, "Ada": 1.4}
"""Efficiency of large matrix products by chip, relative to an H200: 1.1 means 1.1 times `_ARITHMETIC_SHARE`.

A chip that draws less power keeps its clock. The value for Ada was measured: an RTX 4090 prefills 1.4 times as fast as
with the H200's share. The other values are guesses. A chip that is not listed has 1.
"""
_MIXED = 1.0
"""Additional time of decodes to read the cache in a step that also has a prompt: 1.0 means twice as long.

It applies to GPUs other than Hopper. On an RTX PRO 6000, decodes with a context of a thousand tokens and a chunk of a
prompt took 49 ms in one launch, and 21 ms in two launches.
"""
_LAUNCH_S = 6.4e-6
"""Seconds in which a host launches one kernel: the median of three machines."""
_LINKED = ("Hopper", "Blackwell GB100", "Ampere GA100", "Volta")
"""Beginnings of `Gpu.architecture` for chips that are sold with NVLink."""
_HOST_GPUS = 8
"""Number of GPUs of one host, each with a network adapter."""
_ADAPTER_S, _ADAPTER_BYTES_PER_S = 20e-6, 50e9
"""Latency in seconds of a host's network adapter with 400 Gb/s, and its bytes per second. Both are guesses."""
_PCIE_S, _PCIE_BYTES_PER_S = 20e-6, 16e9
"""Latency in seconds of an all-reduce over two GPUs with PCIe between them, and its bytes per second."""


@cache
def shipped_cards() -> tuple[Card, ...]:
    """Return the machine cards that come with kvsim, which `kvsim measure` made."""
    return tuple(load_card(file) for file in sorted(_FOLDER.glob("*.toml")))


def card_of(gpu: Gpu, num_gpus: int = 1) -> Card:
    """Return the best card for a machine with `num_gpus` GPUs like `gpu`: measured, or made from the data sheet."""
    measured = [card for card in shipped_cards() if card.gpu == gpu.name]
    fitting = [card for card in measured if card.num_gpus == num_gpus]
    if fitting:
        return fitting[0]
    if measured:
        return linked(measured[0], gpu, num_gpus)
    return linked(sheet_card(gpu), gpu, num_gpus)


@cache
def sheet_card(gpu: Gpu) -> Card:
    """Make a machine card for `gpu` from its data sheet.

    The times on an H200's card are scaled: reading by the ratio of the memory bandwidths, arithmetic by the ratio of
    the FLOP/s, and starts of kernels by the ratio of the clocks if `gpu` has a lower one.
    """
    pattern = next(card for card in shipped_cards() if card.gpu == _BASE_GPU and card.num_gpus == 1)
    source = find_gpu(_BASE_GPU)
    efficiency = next((value for chip, value in _ARITHMETIC.items() if gpu.architecture.startswith(chip)), 1.0)
    memory = streamed_bytes_per_s(source) / streamed_bytes_per_s(gpu)
    clock = source.boost_hz / gpu.boost_hz
    arithmetic = source.dense_flops / (efficiency * gpu.dense_flops)
    mixed = 1.0 if gpu.architecture.startswith("Hopper") else 1 + _MIXED
    products = {"bfloat16": _products(pattern.products["bfloat16"], 2, gpu, efficiency)}
    if gpu.fp8_dense_flops:
        products["fp8"] = _products(pattern.products["fp8"], 1, gpu, efficiency)
    return Card(
        gpu=gpu.name,
        source=f"the data sheet of {gpu.name}, as far from its limits as an {_BASE_GPU} is from its own",
        measured=False,
        read_bytes_per_s=pattern.read_bytes_per_s / memory,
        copy_bytes_per_s=pattern.copy_bytes_per_s / memory,
        kernel_s=pattern.kernel_s * max(clock, 1.0),
        launch_s=_LAUNCH_S,
        to_gpu_bytes_per_s=pattern.to_gpu_bytes_per_s,
        to_host_bytes_per_s=pattern.to_host_bytes_per_s,
        products=products,
        attention=tuple(_attention(row, pattern.attention, mixed, memory, arithmetic) for row in pattern.attention),
    )


def _products(pattern: Products, item_bytes: int, gpu: Gpu, efficiency: float) -> Products:
    """Scale the times of the matrix products of an H200 to `gpu`. No time becomes shorter than the limit of `gpu`.

    The limit is the time to read the weights or the time of the arithmetic, whichever is longer. The start of a kernel,
    which is the time of the smallest product, is not scaled. `efficiency` is as in `_ARITHMETIC`, and `item_bytes` the
    number of bytes of a weight. Checked on an H100: products scaled from an H200 are 4 to 9 % off the measured ones;
    with scaled starts, 4 to 15 %.
    """
    sizes, weights = np.array(pattern.sizes, float), np.array(pattern.shapes, float).prod(axis=1)[:, None]

    def limit_s(on: Gpu, efficiency: float = 1.0) -> Any:
        peak = on.dense_flops if item_bytes == 2 else on.fp8_dense_flops or 2 * on.dense_flops
        computed_s = 2 * weights * sizes / (min(efficiency * _ARITHMETIC_SHARE, 1.0) * peak)
        return np.maximum(weights * item_bytes / streamed_bytes_per_s(on), computed_s)

    seconds, least_s = np.array(pattern.seconds), limit_s(gpu, efficiency)
    start_s = seconds.min()
    scaled = np.maximum(start_s + (seconds - start_s) * least_s / limit_s(find_gpu(_BASE_GPU)), least_s)
    return replace(pattern, seconds=tuple(map(tuple, scaled.tolist())))


def _attention(row: Attention, rows: Sequence[Attention], mixed: float, memory: float, arithmetic: float) -> Attention:
    """Return one measured attention launch of the H200, scaled to another GPU.

    `memory` and `arithmetic` are factors on the time to read the cache and on the time of the prompt's arithmetic.
    `mixed` is a further factor on reading in a launch with decodes and a prompt. The start of kernels is not scaled.
    `rows` has all launches of the card.
    """
    same_heads = [item for item in rows if _heads(item) == _heads(row)]
    start_s = min(item.seconds for item in same_heads)
    prompts = [item for item in same_heads if not item.num_decodes and item.prompt_tokens == item.prompt_context]
    prompt_s = 0.0
    if row.num_decodes and row.prompt_tokens:
        seconds = [item.seconds for item in prompts]
        prompt_s = float(np.interp(row.prompt_tokens, [item.prompt_tokens for item in prompts], seconds))
        longer = mixed
    elif row.prompt_tokens:
        prompt_s, longer = row.seconds - start_s, 1.0
    else:
        longer = 1.0
    read_s = max(row.seconds - prompt_s - start_s, 0.0)
    return replace(row, seconds=start_s + prompt_s * arithmetic + read_s * memory * longer)


def _heads(row: Attention) -> tuple[int, int, int]:
    return row.num_heads, row.num_kv_heads, row.head_dim


def exchange_sums(card: Card, gpu: Gpu, num_gpus: int) -> tuple[tuple[int, float], ...]:
    """Return guessed (bytes, seconds) of an all-gather plus a reduce-scatter between all GPUs.

    Both together move as many bytes as one all-reduce. With several hosts, the bytes also cross the network. Each host
    has `_HOST_GPUS` network adapters.
    """
    sums = linked(card, gpu, num_gpus).all_reduce
    if num_gpus <= _HOST_GPUS:
        return sums
    return tuple((size, s + 2 * (_ADAPTER_S + size / _HOST_GPUS / _ADAPTER_BYTES_PER_S)) for size, s in sums)


def linked(card: Card, gpu: Gpu, num_gpus: int) -> Card:
    """Return `card` for a machine with `num_gpus` GPUs. Times of all-reduces are guessed if they were not measured."""
    if num_gpus == 1 or (card.num_gpus == num_gpus and card.all_reduce):
        return card
    two = next(item for item in shipped_cards() if item.num_gpus == 2)
    ring = 2 * (num_gpus - 1) / num_gpus
    if gpu.architecture.startswith(_LINKED):
        rows = tuple((size, seconds * ring) for size, seconds in two.all_reduce)
    else:
        rows = tuple((size, _PCIE_S + ring * size / _PCIE_BYTES_PER_S) for size, _ in two.all_reduce)
    source = f"{card.source}; sums over {num_gpus} GPUs guessed"
    return replace(card, num_gpus=num_gpus, all_reduce=rows, source=source, measured=False)
