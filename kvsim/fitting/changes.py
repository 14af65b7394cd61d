"""Possible changes of a server, cheapest first: settings, then types, then GPUs.

`kvsim fit` and `kvsim diagnose` try the same list. Settings can be combined. Another type of cache or weights changes
the model's outputs slightly. Other GPUs cost money.
"""

from __future__ import annotations

from itertools import chain, combinations, islice, product, starmap, zip_longest
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.fitting import sglang_changes, vllm_changes
from kvsim.fitting.server_change import CandidateChanges, ServerChange
from kvsim.fitting.sglang_server import SGLangServer
from kvsim.fitting.vllm_server import Server

if TYPE_CHECKING:
    from kvsim.fitting.searched_server import SearchedServer


def changes(server: SearchedServer, *, longest_tokens: int, most: int = 60) -> list[ServerChange]:
    """Return at most `most` changes of `server`: single changes, then pairs of changes.

    A pair has two limits, two settings, or a setting and a type. The three kinds of pairs take turns. If the server has
    replicas, splits into prefill and decode servers come first. `longest_tokens` is the length of the longest request,
    prompt and output, which the server must still serve.
    """
    splits, settings, limits, types, gpus = _candidates(server, longest_tokens)
    singles = [*splits, *settings, *types, *gpus]
    limit_pairs = starmap(_both, product(*limits))
    setting_pairs = starmap(_both, combinations(settings, 2))
    type_pairs = (_both(setting, type_change) for type_change, setting in product(types, settings))
    in_turn = chain.from_iterable(zip_longest(limit_pairs, setting_pairs, type_pairs))
    pairs = (pair for pair in in_turn if pair is not None)
    # Twice as many pairs as asked for, because some servers do not start.
    distinct = {each.server: each for each in chain(singles, islice(pairs, 2 * most))}
    # A server whose largest step does not fit may stay as short of memory as it is.
    least_bytes = min(server.spare_bytes, 0)
    starting = (each for each in distinct.values() if _starts(each.server) and each.server.spare_bytes >= least_bytes)
    return list(islice(starting, most))


def _candidates(server: SearchedServer, longest_tokens: int) -> CandidateChanges:
    if isinstance(server, SGLangServer):
        return sglang_changes.candidates(server)
    assert isinstance(server, Server)
    return vllm_changes.candidates(server, longest_tokens)


def _starts(server: SearchedServer) -> bool:
    """Tell whether the engine accepts the settings of `server`."""
    try:
        server.policy()
    except UsageError:
        return False
    return True


def _both(first: ServerChange, second: ServerChange) -> ServerChange | None:
    """Combine two changes into one; return None if both change the same field."""
    if set(first.fields) & set(second.fields):
        return None
    # `first` is a setting, so its fields are fields of the server; those of `second` may be fields of the model.
    changed = {name: getattr(first.server, name) for name in first.fields}
    return ServerChange(
        words=f"{first.words} and {second.words}",
        fields=(*first.fields, *second.fields),
        kind=max(first.kind, second.kind),
        server=second.server.changed(**changed),
    )
