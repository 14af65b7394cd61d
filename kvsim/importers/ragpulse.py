"""Reader of RAGPulse traces (flashserve/RAGPulse), from a question-answering service whose prompts share passages.

A prompt is a sequence of named chunks: system prompt, passages, history, web search, question. The lengths of the
chunks are in other files of the release, beside the trace. The rows are not in order of time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import WorkloadError, shortened
from kvsim.importers.arrival_times import Clock
from kvsim.importers.collect import RequestCollector
from kvsim.importers.source import TextSource

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from kvsim.workload import Workload

UNIT_TOKENS = 16
_LONGEST_PROMPT = 1 << 24
"""Limit for the number of tokens of a prompt: above any model's context, and few enough to hash."""
_LENGTHS = ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search")
_ORDER = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


def looks_like(source: TextSource) -> bool:
    """Tell whether the first line is an object whose hashes are grouped by the kind of chunk."""
    return isinstance(source.first_object().get("hash_ids"), dict)


def read(source: TextSource) -> Workload:
    """Return the requests, with prefix hits where two prompts begin with the same chunks.

    Two prompts share a unit of 16 tokens only if they have the same chunks up to the one in which the unit ends.
    """
    chunk_tokens = _chunk_tokens(source)
    clock = Clock(path=source.path, column="timestamp", unit="s", from_first=False)
    requests = RequestCollector(source=source, kind="RAGPulse trace", clock=clock, hash_unit_tokens=UNIT_TOKENS)
    hash_of: dict[Hashable, int] = {}
    for row in source.json_rows():
        chunks = row.fields.get("hash_ids")
        if not isinstance(chunks, dict) or not all(isinstance(chunks.get(kind, []), list) for kind in _ORDER):
            raise row.error(f"hash_ids should be an object of lists: {', '.join(_ORDER)}")
        prompt = [chunk for kind in _ORDER for chunk in chunks.get(kind, [])]
        unknown = [chunk for chunk in prompt if type(chunk) is not int or chunk not in chunk_tokens]
        if unknown:
            raise row.error(f"no file of lengths has the chunk {shortened(unknown[0])}")
        prompt_tokens = row.whole("input_length", maximum=_LONGEST_PROMPT)
        lengths = ((chunk, chunk_tokens[chunk]) for chunk in prompt)
        requests.add(
            row,
            row.value("timestamp"),
            prompt_tokens,
            row.whole("output_length"),
            hashes=_hashes(lengths, prompt_tokens, hash_of),
        )
    return requests.workload()


def _hashes(chunks: Iterable[tuple[int, int]], prompt_tokens: int, hash_of: dict[Hashable, int]) -> list[int]:
    hashes: list[int] = []
    end, chain = 0, -1
    for chunk, tokens in chunks:
        end = min(end + tokens, prompt_tokens)
        chain = hash_of.setdefault((chain, chunk), len(hash_of))
        while (len(hashes) + 1) * UNIT_TOKENS <= end:
            hashes.append(hash_of.setdefault(("unit", chain, len(hashes)), len(hash_of)))
    return hashes


def _chunk_tokens(source: TextSource) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for stem in _LENGTHS:
        places = [source.path.with_name(stem + ending) for ending in (".jsonl", ".jsonl.gz")]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise WorkloadError(
                f"{places[0]} is missing; a RAGPulse trace is read with the other files of its release beside it."
            )
        for row in TextSource.open(file).json_rows():
            id_field: Any = next((name for name in row.fields if name.endswith("_id")), "hash_id")
            chunk, tokens = row.whole(id_field), row.whole("token_length")
            if lengths.setdefault(chunk, tokens) != tokens:
                raise row.error(f"the chunk {chunk} has {tokens} tokens here, and {lengths[chunk]} elsewhere")
    return lengths
