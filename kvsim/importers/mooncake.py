"""Read traces of Mooncake (kvcache-ai/Mooncake, FAST'25): lengths, milliseconds, one chained hash per 512 prompt
tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.importers.arrival_times import Clock
from kvsim.importers.collect import RequestCollector

if TYPE_CHECKING:
    from kvsim.importers.source import SourceRow, TextSource
    from kvsim.workload import Workload

HASH_TOKENS = 512
"""Tokens of one hash; the last hash of a prompt covers the rest."""


def looks_like(source: TextSource) -> bool:
    """Tell whether the first line is an object with these fields, and its hashes are a list."""
    first = source.first_object()
    return {"timestamp", "input_length", "output_length"} <= first.keys() and isinstance(
        first.get("hash_ids", []), list
    )


def read(source: TextSource) -> Workload:
    """Return the requests. Their hashes give prefix hits at every block size that divides 512 or is a multiple of it.

    The hash of a partial last unit is left out: a prefix cache holds full blocks only.
    """
    clock = Clock(path=source.path, column="timestamp", unit="ms", from_first=False)
    requests = RequestCollector(source=source, what="Mooncake trace", clock=clock, hash_unit_tokens=HASH_TOKENS)
    for row in source.json_rows():
        prompt_tokens = row.whole("input_length")
        requests.add(
            row,
            row.value("timestamp"),
            prompt_tokens,
            row.whole("output_length"),
            hashes=_hashes(row, prompt_tokens),
        )
    return requests.workload()


def _hashes(row: SourceRow, prompt_tokens: int) -> list[int]:
    hashes: Any = row.fields.get("hash_ids", [])
    are_integers = isinstance(hashes, list) and set(map(type, hashes)) <= {int}
    if not are_integers or min(hashes, default=0) < -(2**63) or max(hashes, default=0) >= 2**63:
        raise row.error("hash_ids should be a list of whole numbers")
    if len(hashes) not in (0, -(-prompt_tokens // HASH_TOKENS)):
        raise row.error(
            f"there are {len(hashes)} hash_ids for an input_length of {prompt_tokens}; "
            f"there should be {-(-prompt_tokens // HASH_TOKENS)}, one per {HASH_TOKENS} tokens, or none"
        )
    return list(hashes[: prompt_tokens // HASH_TOKENS])
