"""List the possible changes of a server, cheapest first: settings, then types, then GPUs.

`kvsim fit` and `kvsim diagnose` try the same list. A change of a type changes the model's numbers slightly; a change of
GPUs costs money. Settings can be combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, combinations, islice, product, starmap, zip_longest
from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_quantization
from kvsim.steptime import TYPICAL

if TYPE_CHECKING:
    from kvsim.fitting.vllm_server import Server
    from kvsim.simulation import Disaggregation

_UTILIZATIONS = (0.90, 0.92, 0.94, 0.95, 0.96)
"""Values of `gpu_memory_utilization` to try; above the last, vLLM's memory estimate may fail."""
_SEQS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
_TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
_SOME_SEQS, _SOME_TOKENS = (64, 256, 1024), (1024, 4096, 16384)
"""Limits to try in pairs."""
_WATERMARKS = (0.01, 0.05)
"""Shares of the pool to leave free: the first is enough for running requests to grow, the second also for bursts."""
_BLOCKS = (1.25, 1.5, 2.0)
"""Factors for a stated number of blocks."""
_GPUS = ("H100 SXM", "H200", "B200")
_SIZES = (2, 4, 8)
"""Numbers of GPUs that share the model, and of data-parallel ranks."""
_MOST_REPLICAS = 4


class Kind(IntEnum):
    """Kind of a change, cheapest first."""

    SETTING = 0
    TYPE = 1
    """Cache or weights in fewer bits, so that the outputs of the model change slightly."""
    GPUS = 2
    """More GPUs, or other ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """Server that differs from another in a few settings."""

    words: str
    """Description: `max_num_seqs 1,024 to 64`."""
    fields: tuple[str, ...]
    """Names of the changed fields; changes of the same fields are alternatives."""
    kind: Kind
    server: Server


def changes(server: Server, *, longest_tokens: int, most: int = 60) -> list[ServerChange]:
    """List at most `most` changes of `server`: single ones, then pairs of settings, then settings with types.

    `longest_tokens` is the longest request, prompt and output, which `max_model_len` must allow.
    """
    settings = [
        *_caching(server),
        *_ahead(server),
        *_drafts(server),
        *_memory(server),
        *_seqs(server),
        *_tokens(server),
        *_watermark(server),
        *_host(server),
        *_length(server, longest_tokens),
    ]
    types = list(_types(server))
    alone = [*settings, *types, *_gpus(server)]
    limits = starmap(_both, product(_seqs(server, _SOME_SEQS), _tokens(server, _SOME_TOKENS)))
    together = starmap(_both, combinations(settings, 2))
    beside = (_both(setting, kept) for kept, setting in product(types, settings))
    pairs = (each for three in zip_longest(limits, together, beside) for each in three if each is not None)
    distinct = {each.server: each for each in chain(alone, islice(pairs, 2 * most))}
    return list(islice(filter(_starts, distinct.values()), most))


def _starts(change: ServerChange) -> bool:
    """Tell whether vLLM starts with the limits of a change."""
    try:
        change.server.policy()
    except UsageError:
        return False
    return True


def _change(server: Server, kind: Kind, words: str, **fields: object) -> ServerChange:
    changed: Server = replace(server, **fields)  # type: ignore[arg-type]
    return ServerChange(words=words, fields=tuple(fields), kind=kind, server=changed)


def _memory(server: Server) -> Iterator[ServerChange]:
    if server.num_blocks is not None:
        for factor in _BLOCKS:
            blocks = round(server.num_blocks * factor)
            words = f"a pool of {blocks:,} blocks instead of {server.num_blocks:,}"
            yield _change(server, Kind.SETTING, words, num_blocks=blocks)
        left = f"all blocks that gpu_memory_utilization {server.gpu_memory_utilization:g} leaves"
        words = f"no num_gpu_blocks_override: {left}"
        yield _change(server, Kind.SETTING, words, num_blocks=None)
        return
    for share in _UTILIZATIONS:
        if share > server.gpu_memory_utilization + 1e-9:
            words = f"gpu_memory_utilization {server.gpu_memory_utilization:g} to {share:g}"
            yield _change(server, Kind.SETTING, words, gpu_memory_utilization=share)


def _caching(server: Server) -> Iterator[ServerChange]:
    if not server.enable_prefix_caching and not server.model.recurrent_layers:
        yield _change(server, Kind.SETTING, "prefix caching", enable_prefix_caching=True)


def _ahead(server: Server) -> Iterator[ServerChange]:
    if not server.async_scheduling and (server.drafting is None or server.drafting.is_async(server.vllm)):
        yield _change(server, Kind.SETTING, "asynchronous scheduling", async_scheduling=True)


def _drafts(server: Server) -> Iterator[ServerChange]:
    if server.drafting is not None:
        yield _change(server, Kind.SETTING, "no drafts", speculative_config="")


def _seqs(server: Server, numbers: Sequence[int] = _SEQS) -> Iterator[ServerChange]:
    for number in numbers:
        if number != server.max_num_seqs:
            words = f"max_num_seqs {server.max_num_seqs:,} to {number:,}"
            yield _change(server, Kind.SETTING, words, max_num_seqs=number)


def _tokens(server: Server, numbers: Sequence[int] = _TOKENS) -> Iterator[ServerChange]:
    for number in numbers:
        if number != server.max_num_batched_tokens:
            words = f"max_num_batched_tokens {server.max_num_batched_tokens:,} to {number:,}"
            yield _change(server, Kind.SETTING, words, max_num_batched_tokens=number)


def _watermark(server: Server) -> Iterator[ServerChange]:
    for share in _WATERMARKS:
        if share > server.watermark:
            words = f"a watermark of {share:g} instead of {server.watermark:g}"
            yield _change(server, Kind.SETTING, words, watermark=share)


def _host(server: Server) -> Iterator[ServerChange]:
    if server.cache.kv_offloading_size:
        without = replace(server.cache, kv_offloading_size=0.0)
        yield _change(server, Kind.SETTING, "no host memory for the cache", cache=without)


def _length(server: Server, longest_tokens: int) -> Iterator[ServerChange]:
    """Yield a shorter `max_model_len` if vLLM would not start with the present one; otherwise it has no effect."""
    try:
        server.budget()
    except KvsimError:
        length = -(-longest_tokens // 256) * 256
        if length < server.max_model_len:
            words = f"max_model_len {server.max_model_len:,} to {length:,}"
            yield _change(server, Kind.SETTING, words, max_model_len=length)


def _types(server: Server) -> Iterator[ServerChange]:
    model = server.model
    found: list[tuple[str, dict[str, Any]]] = []
    if model.kv_cache_dtype == "auto":
        found.append(("the KV cache in fp8", {"kv_cache_dtype": "fp8"}))
    if model.quantization is None:
        if server.gpu.fp8_dense_flops:
            found.append(("weights in fp8", {"quantization": find_quantization("fp8")}))
        found.append(("weights in 4 bits (AWQ)", {"quantization": find_quantization("awq")}))
    if len(found) > 2:
        found.append(("the KV cache and weights in fp8", found[0][1] | found[1][1]))
    for words, served in found:
        changed = _change(server, Kind.TYPE, words, model=model.served(**served))
        yield replace(changed, fields=tuple(served))


def _gpus(server: Server) -> Iterator[ServerChange]:
    size, heads = server.model.tensor_parallel_size, server.model.num_attention_heads
    for number in _SIZES:
        if number > size and not heads % number:
            words = f"tensor parallel over {number} GPUs instead of {size}"
            changed = _change(server, Kind.GPUS, words, model=server.model.served(tensor_parallel_size=number))
            yield replace(changed, fields=("tensor_parallel_size",))
    for name in _GPUS:
        gpu = find_gpu(name)
        if gpu.name != server.gpu.name and gpu.bandwidth_bytes_per_s > server.gpu.bandwidth_bytes_per_s:
            yield _change(
                server, Kind.GPUS, f"{gpu.name} instead of {server.gpu.name}", gpu=gpu, times=None, pace=TYPICAL
            )
    if server.apart is not None:
        yield from _splits(server, server.apart)
        return
    if (ranks := server.model.data_parallel_size) > 1:
        for number in (size for size in _SIZES if size > ranks):
            words = f"{number} data-parallel ranks instead of {ranks}"
            changed = _change(server, Kind.GPUS, words, model=server.model.served(data_parallel_size=number))
            yield replace(changed, fields=("data_parallel_size",))
        return
    for number in range(server.replicas + 1, _MOST_REPLICAS + 1):
        words = f"{number} servers behind one queue instead of {server.replicas}"
        yield _change(server, Kind.GPUS, words, replicas=number)


def _splits(server: Server, apart: Disaggregation) -> Iterator[ServerChange]:
    """Yield other splits into prefill and decode servers, with the same number of servers or up to two more."""
    for number in range(server.replicas, server.replicas + 3):
        kind = Kind.SETTING if number == server.replicas else Kind.GPUS
        for prefill in range(1, number):
            split = replace(apart, num_prefill=prefill, num_decode=number - prefill)
            if split != apart:
                words = f"{prefill} prefill and {number - prefill} decode servers"
                changed = _change(server, kind, words, apart=split, replicas=number)
                yield replace(changed, fields=("apart",) if kind is Kind.SETTING else ("apart", "replicas"))
        words = f"{number} servers that compute prompts and decode"
        yield _change(server, kind, words, apart=None, replicas=number)


def _both(first: ServerChange, second: ServerChange) -> ServerChange | None:
    """Combine two changes; return None if they change the same field."""
    if set(first.fields) & set(second.fields):
        return None
    # `first` is a setting, so its fields are fields of the server; those of `second` may be fields of the model.
    changed = {name: getattr(first.server, name) for name in first.fields}
    return ServerChange(
        words=f"{first.words} and {second.words}",
        fields=(*first.fields, *second.fields),
        kind=max(first.kind, second.kind),
        server=replace(second.server, **changed),
    )
