"""Changes of a vLLM server to try: its settings, its replicas, and its splits into prefill and decode servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.display.text import plural
from kvsim.errors import KvsimError
from kvsim.fitting.server_change import (
    SEQS,
    SIZES,
    SOME_SEQS,
    SOME_TOKENS,
    TOKENS,
    CandidateChanges,
    Kind,
    ServerChange,
    change,
    gpu_changes,
    limit_changes,
    model_change,
    replica_changes,
    type_changes,
)
from kvsim.simulation import Disaggregation

if TYPE_CHECKING:
    from kvsim.fitting.vllm_server import Server

_UTILIZATIONS = (0.90, 0.92, 0.94, 0.95, 0.96)
"""Values of `gpu_memory_utilization` to try. Above the last one, vLLM's memory estimate may fail."""
_WATERMARKS = (0.01, 0.05)
"""Values of `watermark` to try: shares of the pool that an admission must leave free, so that running requests grow."""
_ADAPTERS = (2, 4, 8, 16, 32, 64)
"""Values of `max_loras` to try."""
_BLOCKS = (1.25, 1.5, 2.0)
"""Factors to try on a stated number of blocks."""


def candidates(server: Server, longest_tokens: int) -> CandidateChanges:
    """Return the changes to try on `server`; `max_model_len` must allow a request of `longest_tokens` tokens."""
    seqs, tokens = server.batch_limit, server.token_limit
    settings = [
        *_switches(server),
        *_adapters(server),
        *_memory(server),
        *limit_changes(server, seqs, SEQS),
        *limit_changes(server, tokens, TOKENS),
        *_watermark(server),
        *_host(server),
        *_length(server, longest_tokens),
    ]
    limits = [*limit_changes(server, seqs, SOME_SEQS)], [*limit_changes(server, tokens, SOME_TOKENS)]
    splits = [*_splits(server, server.replicas)]
    return CandidateChanges(splits, settings, limits, [*type_changes(server)], [*gpu_changes(server), *_fleets(server)])


def _memory(server: Server) -> Iterator[ServerChange]:
    if server.num_blocks is not None:
        for factor in _BLOCKS:
            blocks = round(server.num_blocks * factor)
            words = f"a pool of {blocks:,} blocks instead of {server.num_blocks:,}"
            yield change(server, Kind.SETTING, words, num_blocks=blocks)
        left = f"all blocks that gpu_memory_utilization {server.gpu_memory_utilization:g} leaves"
        words = f"no num_gpu_blocks_override: {left}"
        yield change(server, Kind.SETTING, words, num_blocks=None)
        return
    for share in _UTILIZATIONS:
        if share > server.gpu_memory_utilization + 1e-9:
            words = f"gpu_memory_utilization {share:g} instead of {server.gpu_memory_utilization:g}"
            yield change(server, Kind.SETTING, words, gpu_memory_utilization=share)


def _switches(server: Server) -> Iterator[ServerChange]:
    """Yield the changes that turn one feature on or off.

    Prefix caching and asynchronous scheduling are turned on if they are off and the server supports them. Drafting is
    turned off.
    """
    if not server.enable_prefix_caching and not server.model.recurrent_layers:
        yield change(server, Kind.SETTING, "prefix caching", enable_prefix_caching=True)
    if not server.async_scheduling and (server.drafting is None or server.drafting.is_async(server.vllm)):
        yield change(server, Kind.SETTING, "asynchronous scheduling", async_scheduling=True)
    if server.drafting is not None:
        yield change(server, Kind.SETTING, "no drafts", speculative_config="")


def _adapters(server: Server) -> Iterator[ServerChange]:
    """Yield changes to more slots for adapters; nothing if the server has none. A slot takes memory from the cache."""
    for number in _ADAPTERS if server.enable_lora else ():
        if number > server.max_loras:
            in_host = {"max_cpu_loras": max(number, server.max_cpu_loras)} if server.max_cpu_loras else {}
            words = f"max_loras {number:,} instead of {server.max_loras:,}"
            yield change(server, Kind.SETTING, words, max_loras=number, **in_host)


def _watermark(server: Server) -> Iterator[ServerChange]:
    for share in _WATERMARKS:
        if share > server.watermark:
            words = f"a watermark of {share:g} instead of {server.watermark:g}"
            yield change(server, Kind.SETTING, words, watermark=share)


def _host(server: Server) -> Iterator[ServerChange]:
    if server.cache.kv_offloading_size:
        without = replace(server.cache, kv_offloading_size=0.0)
        yield change(server, Kind.SETTING, "no host memory for the cache", cache=without)


def _length(server: Server, longest_tokens: int) -> Iterator[ServerChange]:
    """Yield a change to a shorter `max_model_len` if vLLM would not start with the present one."""
    try:
        server.budget()
    except KvsimError:
        length = -(-longest_tokens // 256) * 256
        if length < server.max_model_len:
            words = f"max_model_len {length:,} instead of {server.max_model_len:,}"
            yield change(server, Kind.SETTING, words, max_model_len=length)


def _fleets(server: Server) -> Iterator[ServerChange]:
    """Yield changes to more data-parallel ranks or replicas.

    Prefill and decode servers get up to two more servers instead, in each split into the two kinds.
    """
    if server.apart is not None:
        for number in range(server.replicas + 1, server.replicas + 3):
            yield from _splits(server, number)
        return
    if (ranks := server.model.data_parallel_size) > 1:
        for number in (size for size in SIZES if size > ranks):
            words = f"{number} data-parallel ranks instead of {ranks}"
            yield model_change(server, Kind.GPUS, words, data_parallel_size=number)
    yield from replica_changes(server)


def _splits(server: Server, number: int) -> Iterator[ServerChange]:
    """Yield a change for each other split of `number` servers into prefill and decode servers.

    If the server is split now, the last change is to `number` servers without a split.
    """
    kind = Kind.SETTING if number == server.replicas else Kind.GPUS
    fields = ("apart",) if kind is Kind.SETTING else ("apart", "replicas")
    if number < 2 or (server.apart is None and server.model.data_parallel_size > 1):
        return
    asked = server.apart or Disaggregation(num_prefill=1, num_decode=1)
    for prefill in range(1, number) if server.apart is not None else _some_prefill(number):
        split = replace(asked, num_prefill=prefill, num_decode=number - prefill)
        if split != server.apart:
            words = f"{prefill:,} prefill and {plural(number - prefill, 'decode server')}"
            changed = change(server, kind, words, apart=split, replicas=number)
            yield replace(changed, fields=fields)
    if server.apart is not None:
        words = f"{number} servers that compute prompts and decode"
        yield change(server, kind, words, apart=None, replicas=number)


def _some_prefill(number: int) -> Iterator[int]:
    yield from dict.fromkeys(min(max(round(number * share / 4), 1), number - 1) for share in (1, 2, 3))
