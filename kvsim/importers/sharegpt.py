"""ShareGPT: conversations as text. Their lengths are counted, or guessed from their letters and then called a guess."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers.collect import NO_ARRIVALS, Requests

if TYPE_CHECKING:
    from kvsim.importers.source import Source
    from kvsim.workload import Workload

CHARS_PER_TOKEN = 4.0
"""A rule of thumb for English text and byte-pair vocabularies; code and other languages have fewer."""
_ASKS, _ANSWERS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")


def looks_like(source: Source) -> bool:
    """Whether it begins like a list of objects with conversations."""
    head = "\n".join(source.lines[:50])[:20_000]
    return head.lstrip().startswith("[") and '"conversations"' in head


def read(source: Source, *, chars_per_token: float = CHARS_PER_TOKEN) -> Workload:
    """The first question and answer of each conversation, all arriving at once.

    A turn that has `tokens`, a whole number, is as long as that says; any other has its characters divided by
    `chars_per_token`, rounded up. Conversations without a question and an answer after it are counted and left out.

    Raises:
        UsageError: `chars_per_token` is not above 0.
        WorkloadError: the file is no list of conversations; the message names the entry.
    """
    if not 0 < chars_per_token < float("inf"):
        raise UsageError(f"there are {chars_per_token} characters to a token; it must be a number above 0.")
    document = source.json_document()
    if not isinstance(document, list):
        raise WorkloadError(f"{source.path} should be a list of conversations.")
    requests, guessed = Requests(source=source, what="ShareGPT"), 0
    for number, entry in enumerate(document):
        question, answer = _first_exchange(source, number, entry)
        lengths = [_tokens(source, number, turn, chars_per_token) for turn in (question, answer)]
        guessed += any("tokens" not in turn for turn in (question, answer) if turn)
        requests.add(0.0, *lengths)
    note = f"; lengths of {guessed:,} guessed at {chars_per_token:g} characters per token" if guessed else ""
    return requests.workload(note + NO_ARRIVALS)


def _first_exchange(source: Source, number: int, entry: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise WorkloadError(f"{source.path}, entry {number}: it should be an object with a list of conversations.")
    for question, answer in pairwise(turns):
        if question.get("from") in _ASKS and answer.get("from") in _ANSWERS:
            return question, answer
    return {}, {}


def _tokens(source: Source, number: int, turn: dict[str, Any], chars_per_token: float) -> int:
    tokens, text = turn.get("tokens"), turn.get("value", "")
    if tokens is None and isinstance(text, str):
        return int(-(-len(text) // chars_per_token))
    if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens < 2**31:
        return tokens
    raise WorkloadError(
        f"{source.path}, entry {number}: a turn should have a text as its value, or a whole number of tokens."
    )
