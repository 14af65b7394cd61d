"""Random workloads with several KV-cache groups, for comparisons of kvsim with a real engine.

Each family of models (`_FAMILIES`) combines kinds of layers that vLLM serves together: full attention, sliding windows,
chunked attention, latents and recurrent states.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvsim.conformance.generated import Document, small, with_stages

if TYPE_CHECKING:
    from random import Random


def staged_groups(random: Random) -> Document:
    """Generate a workload as `grouped` does, and give it pipeline stages."""
    return with_stages(random, grouped(random))


def grouped(random: Random) -> Document:
    """Generate a small workload for a model with layers of several kinds."""
    document = small(random)
    block_size = document["block_size"] = random.choice([1, 2, 2, 3, 4, 4, 8, 16])
    layers, changes = random.choice(_FAMILIES)(random, block_size)
    document |= {"groups": layers, **changes}
    num_tables = max(sum(-(-entry["num_layers"] // 2) for entry in layers), len(layers))
    document["num_blocks"] = random.randint(3, 16) * num_tables + random.randint(2, 8)
    capacity = max((document["num_blocks"] - 1) // num_tables * block_size, 6)  # tokens of one sequence alone
    document["max_model_len"] = longest = random.randint(5, max(6, min(2 * capacity, 40 * block_size)))
    _fit(random, document, min(longest - 1, capacity))
    _make_acceptable(document, block_size)
    _maybe_retain(random, document)
    return document


def _window(random: Random, block_size: int, num_layers: int = 1) -> Document:
    window = random.choice([1, 2, 3, block_size, block_size + 1, 2 * block_size + 1, 5 * block_size, 17])
    return {"type": "sliding_window", "window": max(window, 1), "block_size": block_size, "num_layers": num_layers}


def _full(block_size: int, num_layers: int = 1, **more: int) -> Document:
    return {"type": "full", "block_size": block_size, "num_layers": num_layers, **more}


def _gemma(random: Random, block_size: int) -> tuple[list[Document], Document]:
    """Return layers like Gemma's in several ratios, and further settings of the workload.

    Layers with windows usually come before those with full attention.
    """
    windows, full = random.choice([(5, 1), (10, 2), (11, 2), (1, 1), (2, 3), (1, 4)])
    layers = [_window(random, block_size, windows), _full(block_size, full)]
    return layers if random.random() < 0.7 else layers[::-1], {"disable_hybrid": random.random() < 0.1}


def _two_windows(random: Random, block_size: int) -> tuple[list[Document], Document]:
    layers = [_window(random, block_size, random.randint(1, 3)) for _ in range(2)]
    return [*layers, _full(block_size, random.randint(1, 2))], {}


def _block_sizes(random: Random, block_size: int) -> tuple[list[Document], Document]:
    """Return two kinds of layers with different numbers of heads, and no further settings of the workload.

    vLLM gives their pages equal sizes, so a block of the layers with fewer heads has more tokens.
    """
    more, fewer = random.choice([2, 4, 6]), 2
    heads = (fewer, more) if random.random() < 0.6 else (more, fewer)
    window = _window(random, block_size, random.randint(1, 4)) | {"num_kv_heads": heads[0]}
    return [window, _full(block_size, random.randint(1, 2), num_kv_heads=heads[1])], {}


def _two_kinds_of_full(random: Random, block_size: int) -> tuple[list[Document], Document]:
    layers = [
        _window(random, block_size, random.choice([1, 2])),
        _full(block_size, random.choice([1, 2])),
        _full(block_size, num_kv_heads=4),
    ]
    random.shuffle(layers)
    return layers, {}


def _padded(random: Random, block_size: int) -> tuple[list[Document], Document]:
    window = _window(random, block_size) | {"num_kv_heads": 2, "indexes_by_stride": True}
    return [window, _full(block_size, num_kv_heads=3, indexes_by_stride=True)], {}


def _alike(random: Random, block_size: int) -> tuple[list[Document], Document]:
    chunk = {"type": "chunked_local", "window": random.choice([2, 4, 8]) * block_size, "block_size": block_size}
    kinds: list[list[Document]] = [
        [_window(random, block_size)],
        [{"type": "mla", "block_size": block_size, "num_layers": 1}],
        [chunk | {"num_layers": 1}],
        [_full(block_size), _full(block_size, num_kv_heads=4)],
    ]
    return random.choice(kinds), {}


def _chunked(random: Random, block_size: int) -> tuple[list[Document], Document]:
    chunk = {"type": "chunked_local", "window": random.choice([1, 2, 3]) * block_size, "block_size": block_size}
    return [chunk | {"num_layers": random.choice([1, 3])}, _full(block_size)], {}


def _recurrent(random: Random, block_size: int) -> tuple[list[Document], Document]:
    states = {"type": "mamba", "block_size": block_size, "num_layers": random.choice([1, 2, 3, 4])}
    others = [
        [_full(block_size)],
        [_window(random, block_size, 2)],
        [_window(random, block_size), _full(block_size)],
        [],
    ]
    layers = [states, *random.choice(others)]
    random.shuffle(layers)
    return layers, {"mamba_cache_mode": random.choice(["none", "align", "align", "all"])}


def _recurrent_sizes(random: Random, block_size: int) -> tuple[list[Document], Document]:
    heads = [2, random.choice([2, 4])]
    random.shuffle(heads)
    layers = [
        {"type": "mamba", "block_size": block_size, "num_layers": random.choice([1, 2])},
        _full(block_size, num_kv_heads=heads[0]),
        _window(random, block_size, random.choice([1, 2])) | {"num_kv_heads": heads[1]},
    ]
    random.shuffle(layers)
    return layers, {"mamba_cache_mode": random.choice(["align", "all"])}


_FAMILIES = (
    *(_gemma, _gemma, _two_windows, _block_sizes, _padded, _alike, _chunked),
    *(_recurrent, _recurrent, _recurrent, _recurrent_sizes, _two_kinds_of_full),
)
"""Functions that return the layers of a family of models, and further settings of the workload.

A function that occurs several times is chosen more often.
"""


def _fit(random: Random, document: Document, longest: int) -> None:
    """Shorten requests of more than `longest` tokens in place, and adapt all fields that depend on lengths."""
    for request in document["requests"]:
        total = request["prompt_len"] + request["output_len"]
        if total > longest:
            request["prompt_len"] = max(1, random.randint(1, longest) * request["prompt_len"] // total)
            request["output_len"] = max(1, longest - request["prompt_len"])
        request.pop("prompt_token_ids", None)
        request["prefix_len"] = min(request["prefix_len"], request["prompt_len"])
        if request["stop_at"] is not None:
            request["stop_at"] = min(request["stop_at"], request["output_len"])


def _make_acceptable(document: Document, block_size: int) -> None:
    """Change, in place, settings that vLLM would refuse together with the layers of `document`."""
    longest = document["max_model_len"]
    mode = document.get("mamba_cache_mode")
    if mode is not None:
        document["enable_prefix_caching"] = mode != "none"
    if mode == "align":  # steps of a prompt end at block boundaries
        document["enable_chunked_prefill"] = True
        threshold = document["long_prefill_token_threshold"]
        document["long_prefill_token_threshold"] = max(threshold, block_size) if threshold else 0
    least = 1 if document["enable_chunked_prefill"] else longest
    budget = max(document["max_num_batched_tokens"], document["max_num_seqs"], least, block_size if mode else 1)
    document["max_num_batched_tokens"] = budget


def _maybe_retain(random: Random, document: Document) -> None:
    """Add `retention_interval`, in place, to some workloads with prefix caching and windows or recurrent states.

    It is the distance in tokens between positions at which windows and states stay cached.
    """
    windowed = any(entry["type"] in ("sliding_window", "mamba") for entry in document["groups"])
    if windowed and document["enable_prefix_caching"] and random.random() < 0.15:
        together = lcm(*(entry["block_size"] for entry in document["groups"]))
        document["retention_interval"] = random.choice([0, 4 * together, 12 * together])
