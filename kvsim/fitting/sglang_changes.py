"""Changes of an SGLang server that `kvsim fit` tries, with SGLang's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvsim.errors import BudgetError
from kvsim.fitting.server_change import (
    SEQS,
    SOME_SEQS,
    SOME_TOKENS,
    TOKENS,
    CandidateChanges,
    Kind,
    ServerChange,
    change,
    gpu_changes,
    limit_changes,
    replica_changes,
    type_changes,
)
from kvsim.fitting.sglang_server import SGLangServer
from kvsim.hardware import GIB

_FRACTIONS = (0.3, 0.5, 0.7, 0.80, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94)
"""Values of `mem_fraction_static` to try. A value that leaves too little memory for the largest step is left out."""
_CONSERVATIVENESS = (0.1, 0.3, 0.6, 1.0, 1.5, 3.0)
_ORDERS = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first", "lof", "fcfs")
_ORDERS_BY_PREFIX = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Orders of the queue that SGLang replaces by fcfs if there is no prefix cache."""
_PAGES = (1, 16, 64)


def candidates(server: SGLangServer) -> CandidateChanges:
    """Return the changes of `server` to try."""
    running = server.batch_limit
    settings = [
        *_switches(server),
        *_memory(server),
        *_values(server, "schedule_conservativeness", _CONSERVATIVENESS),
        *_orders(server),
        *limit_changes(server, running, SEQS),
        *_chunks(server, TOKENS),
        *_values(server, "page_size", _PAGES),
    ]
    return CandidateChanges(
        splits=[],
        settings=settings,
        limits=([*limit_changes(server, running, SOME_SEQS)], [*_chunks(server, SOME_TOKENS)]),
        types=[*type_changes(server)],
        gpus=[*gpu_changes(server), *replica_changes(server)],
    )


def _switches(server: SGLangServer) -> Iterator[ServerChange]:
    """Yield changes that turn on what is off: the radix cache, the overlap scheduler, mixed chunks."""
    if server.disable_radix_cache:
        yield change(server, Kind.SETTING, "the radix cache", disable_radix_cache=False)
    if server.disable_overlap_schedule:
        yield change(server, Kind.SETTING, "overlapped scheduling", disable_overlap_schedule=False)
    if not server.enable_mixed_chunk and server.chunked_prefill_size > 0:
        yield change(server, Kind.SETTING, "decodes in the steps of prefills (mixed chunks)", enable_mixed_chunk=True)


def _memory(server: SGLangServer) -> Iterator[ServerChange]:
    """Yield changes to larger values of `mem_fraction_static`. Their words state the GPU memory left for all else."""
    now = server.fraction
    for share in _FRACTIONS:
        if share > now + 1e-9:
            changed = server.changed(mem_fraction_static=share)
            try:
                left = changed.budget().free_later_bytes
            except BudgetError:
                continue
            words = f"mem_fraction_static {share:g} instead of {now:g}, which leaves {left / GIB:.1f} GiB to all else"
            yield ServerChange(words=words, fields=("mem_fraction_static",), kind=Kind.SETTING, server=changed)


def _chunks(server: SGLangServer, sizes: Sequence[int]) -> Iterator[ServerChange]:
    """Yield changes to other sizes of the chunks into which prompts are cut; nothing if prompts are not cut.

    SGLang's default share for weights and slots depends on the size of a chunk.
    """
    if server.chunked_prefill_size < 0:
        return
    for changed in limit_changes(server, server.token_limit, sizes):
        of = changed.server
        assert isinstance(of, SGLangServer)
        with_share = "" if of.fraction == server.fraction else f", mem_fraction_static {of.fraction:g} by default"
        yield replace(changed, words=changed.words + with_share)


def _values(server: SGLangServer, setting: str, values: Iterable[float]) -> Iterator[ServerChange]:
    now = getattr(server, setting)
    for value in values:
        if value != now:
            yield change(server, Kind.SETTING, f"{setting} {value:g} instead of {now:g}", **{setting: value})


def _orders(server: SGLangServer) -> Iterator[ServerChange]:
    now = server.schedule_policy
    for order in _ORDERS:
        if order != now and not (server.disable_radix_cache and order in _ORDERS_BY_PREFIX):
            yield change(server, Kind.SETTING, f"schedule_policy {order} instead of {now}", schedule_policy=order)
