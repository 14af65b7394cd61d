"""Reader of Mooncake traces (kvcache-ai/Mooncake, FAST'25): lengths, times in milliseconds, and prompt hashes.

Each hash covers 512 prompt tokens and all tokens before. Dynamo extends the format by sessions: a request with the
`session_id` of an earlier line, or with `wait_for`, is sent `delay` milliseconds after the earlier request has ended.
A line may list `images`, as the column of a CSV file does; beside `hash_ids`, `input_length` counts their tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.importers.arrival_times import Clock
from kvsim.importers.collect import RequestCollector
from kvsim.importers.column_of_images import ImageColumn
from kvsim.importers.turn_lines import TurnLines
from kvsim.workload.turns import NONE

if TYPE_CHECKING:
    from kvsim.importers.source import SourceRow, TextSource
    from kvsim.workload import Workload

HASH_TOKENS = 512
"""Number of tokens per hash. The last hash of a prompt may cover fewer."""
_MOST_MS = 1e15
"""Longest pause before a turn, in milliseconds."""


def looks_like(source: TextSource) -> bool:
    """Tell whether the first line is an object with Mooncake's fields, whose `hash_ids` are a list or missing."""
    first = source.first_object()
    return {"timestamp", "input_length", "output_length"} <= first.keys() and isinstance(
        first.get("hash_ids", []), list
    )


def read(source: TextSource) -> Workload:
    """Return the requests. Their hashes give prefix hits at every block size that divides 512 or is a multiple of it.

    The hash of a partial last unit is left out, because a prefix cache has only full blocks.
    """
    lines = _Lines(source)
    for row in source.json_rows():
        lines.add(row)
    return lines.requests.workload()


class _Lines:
    def __init__(self, source: TextSource) -> None:
        clock = Clock(path=source.path, column="timestamp", unit="ms", from_first=False)
        self._turns = TurnLines()
        self.requests = RequestCollector(
            source=source, kind="Mooncake trace", clock=clock, hash_unit_tokens=HASH_TOKENS, turns=self._turns
        )
        self._stamp_ms: list[float | None] = []
        self._images = ImageColumn()
        self._has_names = "request_id" in source.first_object()

    def add(self, row: SourceRow) -> None:
        requests, turns = self.requests, self._turns
        session, name, names = (row.fields.get(key) for key in ("session_id", "request_id", "wait_for"))
        texts = (session, name, *names) if isinstance(names, list) else (session, name, names)
        if not all(text is None or isinstance(text, str) for text in texts) or isinstance(names, str):
            raise row.error("session_id and request_id should be texts, and wait_for a list of texts")
        after = turns.before(row, session, names or [])
        stamp = None if after != NONE and "timestamp" not in row.fields else row.value("timestamp")
        prompt_tokens = row.whole("input_length")
        hashes = _hashes(row, prompt_tokens)
        if hashes:  # they cover the tokens of images, so the length counts them
            images = self._images.read_counted(row, prompt_tokens)
        else:
            images, image_tokens = self._images.read(row, prompt_tokens, 0)
            prompt_tokens += image_tokens
        first = stamp if after == NONE else requests.arrivals[after]
        if not requests.add(
            row, first, prompt_tokens, row.whole("output_length"), hashes=hashes, request_id=self._name(row, name),
            images=images,
        ):  # fmt: skip
            return
        self._stamp_ms.append(stamp if isinstance(stamp, int | float) else None)
        pause_s = 0.0 if after == NONE else self._pause_s(row, after, stated=bool(names))
        turns.add(after, pause_s, self._history(after), name=name, session=session, names=names or [])

    def _name(self, row: SourceRow, name: str | None) -> str | None:
        return (name or f"line-{row.line}") if self._has_names else None

    def _pause_s(self, row: SourceRow, after: int, *, stated: bool) -> float:
        """Return the seconds between the answer of request `after` and the turn in `row`: the pause that `row` states.

        If the row states none, the pause is 0 if the row names the requests for which it waits (`stated`). Otherwise it
        is the time between `row` and the row of `after`, or 0 if a time is missing.
        """
        given = (row.fields.get(name) for name in ("delay", "delay_ms", "tool_wait_ms"))
        pauses = [pause for pause in given if pause is not None]
        if not all(isinstance(ms, int | float) and not isinstance(ms, bool) and 0 <= ms < _MOST_MS for ms in pauses):
            raise row.error("delay, delay_ms and tool_wait_ms should be numbers of milliseconds, 0 or more")
        stamp, before = self._stamp_ms[-1], self._stamp_ms[after]
        if pauses or stated or stamp is None or before is None:
            return float(sum(pauses)) / 1e3
        return max(stamp - before, 0) / 1e3

    def _history(self, after: int) -> int:
        if after == NONE:
            return 0
        requests = self.requests
        for nth, (earlier, later) in enumerate(zip(requests.hashes[after], requests.hashes[-1], strict=False)):
            if earlier != later:
                return nth * HASH_TOKENS
        return min(requests.prompt_tokens[-1], requests.prompt_tokens[after] + requests.output_tokens[after])


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
