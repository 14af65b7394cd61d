"""Reader of ShareGPT conversations. Lengths that are not stated are estimated from the number of characters."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError
from kvsim.files.values import is_integer
from kvsim.importers.arrival_times import NO_ARRIVALS
from kvsim.importers.collect import RequestCollector
from kvsim.importers.json_list import entries
from kvsim.importers.turn_lines import TurnLines
from kvsim.workload.turns import NONE

if TYPE_CHECKING:
    from kvsim.importers.source import SourceRow, TextSource
    from kvsim.workload import Workload

CHARS_PER_TOKEN = 4.0
"""Mean characters per token of English text with byte-pair vocabularies; lower for code and other languages."""
_HEAD = 20_000
"""Number of characters at the beginning of a file that are searched for the format."""
_ASKS, _ANSWERS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")


def looks_like(source: TextSource) -> bool:
    """Tell whether the file begins as a list of objects with conversations, or as lines of such objects."""
    head = "".join(line[:_HEAD] for line in source.lines[:50])[:_HEAD]
    return head.lstrip().startswith(("[", "{")) and '"conversations"' in head


def read(source: TextSource, *, chars_per_token: float = CHARS_PER_TOKEN) -> Workload:
    """Return the first question and answer of each conversation. All arrive at once.

    The length of a message is its field `tokens`; without it, its characters divided by `chars_per_token`, rounded up.
    Conversations without a question followed by an answer are counted and left out.
    """
    if not 0 < chars_per_token < float("inf"):
        raise UsageError(f"there are {chars_per_token} characters to a token; it must be a number above 0.")
    requests, guessed = RequestCollector(source=source, kind="ShareGPT"), 0
    for row in source.json_rows() if source.lines[0].lstrip().startswith("{") else entries(source):
        question, answer = _first_exchange(row)
        lengths = [_tokens(row, turn, chars_per_token) for turn in (question, answer)]
        guessed += any("tokens" not in turn for turn in (question, answer) if turn)
        requests.add(row, None, *lengths)
    note = f"; lengths of {guessed:,} guessed at {chars_per_token:g} characters per token" if guessed else ""
    return requests.workload(note + NO_ARRIVALS)


def read_turns(source: TextSource, *, chars_per_token: float = CHARS_PER_TOKEN) -> Workload:
    """Return every answer of each conversation as a turn without a pause. Its prompt is everything said before.

    Lengths are as in `read`. Conversations without an answer are counted and left out.
    """
    turns, guessed = TurnLines(), 0
    requests = RequestCollector(source=source, kind="ShareGPT, all turns", turns=turns)
    for row in source.json_rows() if source.lines[0].lstrip().startswith("{") else entries(source):
        said, before = 0, NONE
        for turn in _messages(row):
            tokens = _tokens(row, turn, chars_per_token)
            guessed += "tokens" not in turn
            if turn.get("from") in _ANSWERS and said and requests.add(row, None, said, tokens):
                turns.add(before, 0.0, name=None, session=None)
                before = len(requests.prompt_tokens) - 1
            said += tokens
        requests.num_left_out += before == NONE
    note = f"; lengths of {guessed:,} messages guessed at {chars_per_token:g} characters per token" if guessed else ""
    return requests.workload(note + NO_ARRIVALS)


def _messages(row: SourceRow) -> list[dict[str, Any]]:
    turns = row.fields.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise row.error("there should be an object with a list of conversations")
    return turns


def _first_exchange(row: SourceRow) -> tuple[dict[str, Any], dict[str, Any]]:
    for question, answer in pairwise(_messages(row)):
        if question.get("from") in _ASKS and answer.get("from") in _ANSWERS:
            return question, answer
    return {}, {}


def _tokens(row: SourceRow, turn: dict[str, Any], chars_per_token: float) -> int:
    tokens, text = turn.get("tokens"), turn.get("value", "")
    if tokens is None and isinstance(text, str):
        return int(-(-len(text) // chars_per_token))
    if is_integer(tokens, 0, 2**31 - 1):
        return tokens
    raise row.error("a turn should have a text as its value, or a whole number of tokens")
