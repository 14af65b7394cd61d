"""Changes of a server that are tried, and those that vLLM and SGLang share: cache, weights, GPUs and replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.fitting.searched_server import fleet_words
from kvsim.hardware import find_gpu
from kvsim.models import find_quantization

if TYPE_CHECKING:
    from kvsim.fitting.searched_server import NamedLimit, SearchedServer

SEQS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Values to try for the limit of running requests."""
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Values to try for the limit of tokens in one step."""
SOME_SEQS, SOME_TOKENS = (64, 256, 1024), (1024, 4096, 16384)
"""Values to try in pairs: for the limit of running requests, and for the limit of tokens in one step."""
_GPUS = ("H100 SXM", "H200", "B200")
_OF_GPU = ("gpu", "times", "pace")
"""Fields that change with the GPU, because step times belong to a machine."""
SIZES = (2, 4, 8)
"""Values to try for the number of GPUs that share the model, and for the number of data-parallel ranks."""
_MOST_REPLICAS = 4


class Kind(IntEnum):
    """Kinds of changes, cheapest first."""

    SETTING = 0
    TYPE = 1
    """Cache or weights in fewer bits. The outputs of the model change slightly."""
    GPUS = 2
    """More GPUs, or GPUs of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """Server that differs from the one in the question in a few settings."""

    words: str
    """Description of the change, such as `max_num_seqs 64 instead of 1,024`."""
    fields: tuple[str, ...]
    """Names of the changed fields. Changes of the same fields are alternatives."""
    kind: Kind
    server: SearchedServer


class CandidateChanges(NamedTuple):
    """Changes of a server that are tried, by kind."""

    splits: Sequence[ServerChange]
    """Other splits of the same number of servers into prefill and decode servers."""
    settings: Sequence[ServerChange]
    limits: tuple[Sequence[ServerChange], Sequence[ServerChange]]
    """Changes of the limit of running requests, and changes of the limit of tokens in one step.

    A pair has one of each.
    """
    types: Sequence[ServerChange]
    gpus: Sequence[ServerChange]


def change(server: SearchedServer, kind: Kind, words: str, **fields: object) -> ServerChange:
    """Return the change that gives `fields` of `server` new values. `words` describe it."""
    return ServerChange(words=words, fields=tuple(fields), kind=kind, server=server.changed(**fields))


def limit_changes(server: SearchedServer, limit: NamedLimit, values: Sequence[int]) -> Iterator[ServerChange]:
    """Yield a change of `limit` to each of `values`, except to its present value."""
    for value in values:
        if value != limit.value:
            words = f"{limit.name} {value:,} instead of {limit.value:,}"
            yield change(server, Kind.SETTING, words, **{limit.name: value})


def model_change(server: SearchedServer, kind: Kind, words: str, **served: Any) -> ServerChange:
    """Return a change of fields of the model, such as its types or parallel sizes. `words` describe it."""
    changed = change(server, kind, words, model=server.model.served(**served))
    return replace(changed, fields=tuple(served))


def type_changes(server: SearchedServer) -> Iterator[ServerChange]:
    """Yield the changes to a cache, and to weights, in fewer bits."""
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
        yield model_change(server, Kind.TYPE, words, **served)


def gpu_changes(server: SearchedServer) -> Iterator[ServerChange]:
    """Yield the changes to more GPUs for each server, and to GPUs of another kind."""
    size, heads = server.model.tensor_parallel_size, server.model.num_attention_heads
    for number in SIZES:
        if number > size and not heads % number:
            words = f"tensor parallel over {number} GPUs instead of {size}"
            yield model_change(server, Kind.GPUS, words, tensor_parallel_size=number)
    for name in _GPUS:
        gpu = find_gpu(name)
        if gpu.name != server.gpu.name and gpu.bandwidth_bytes_per_s > server.gpu.bandwidth_bytes_per_s:
            words = f"{gpu.name} instead of {server.gpu.name}"
            yield ServerChange(words=words, fields=_OF_GPU, kind=Kind.GPUS, server=server.on_gpu(gpu))


def replica_changes(server: SearchedServer) -> Iterator[ServerChange]:
    """Yield the changes to more replicas."""
    for number in range(server.replicas + 1, _MOST_REPLICAS + 1):
        words = f"{fleet_words(number)} instead of {server.replicas}"
        yield change(server, Kind.GPUS, words, replicas=number)
