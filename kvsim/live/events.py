"""Check the form of each event that arrives from a server, because the server is not trusted.

An event is a list: its kind, then arguments. `kvsim.recording.eventlog` describes the kinds; in addition,
`["joined", rows, next_row, next_step]` ends a snapshot. Whether events are consistent with each other is checked later,
with the recording that they make.
"""

from __future__ import annotations

import json
from typing import Any

from kvsim.errors import RecordingError, shortened

MAX_LINE_BYTES = 8 << 20
"""Maximum bytes of a line; a line that lists a million free blocks has 7 MB."""
_MAX_NAME = 256
"""Maximum characters of a request's id."""
_LIMIT = 1 << 31
_LATEST_S = 1e12
_INT = {int}
_COUNTS = ("prefill_tokens", "decode_tokens", "num_scheduled", "running", "waiting", "preempted", "free_units")
_STATUSES = ("unfinished", "finished", "aborted", "refused")


def parse(text: bytes) -> list[Any]:
    """Return the event in one line."""
    try:
        event = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        raise RecordingError(f"{_quoted(text)} is no line of JSON") from None
    if not isinstance(event, list) or not _is_event(event):
        raise RecordingError(f"{_quoted(text)} is no event")
    return event


def _is_event(event: list[Any]) -> bool:  # noqa: PLR0911, PLR0912  one branch for each word
    match event:
        case ["emit", request, time_s, count]:  # almost all events
            return _count(request) and _count(count) and _time(time_s)
        case ["seq"] | ["meta", dict()] | ["refused", str()]:
            return True
        case ["again", time_s]:
            return _time(time_s)
        case ["tokens", time_s, list(rows)]:
            in_threes = all(type(row) is list and len(row) == 3 for row in rows)
            return _time(time_s) and in_threes and _counts([value for row in rows for value in row])
        case ["step", dict(columns)]:
            return _time(columns.get("start_s")) and _counts([columns.get(name) for name in _COUNTS])
        case ["output", step, time_s]:
            return _count(step) and _time(time_s)
        case ["append" | "share", request, position, list(units)]:
            return _counts([request, position]) and _counts(units)
        case ["release", request, num_units, num_cached]:
            return _counts([request, num_units, num_cached])
        case ["evict", list(units)]:
            return _counts(units)
        case ["preempt", request]:
            return _count(request)
        case ["end", request, status, time_s]:
            return _count(request) and status in _STATUSES and _time(time_s)
        case ["arrive", str(name), time_s, prompt_tokens, max_tokens, priority, list(hashes)]:
            named = len(name) <= _MAX_NAME and _time(time_s) and _counts([prompt_tokens, max_tokens])
            return named and _whole(priority, _LIMIT) and all(_whole(key, 1 << 63) for key in hashes)
        case ["joined", list(rows), next_row, next_step]:
            return _counts(rows) and _counts([next_row, next_step])
        case _:
            return False


def _counts(values: list[Any]) -> bool:
    return set(map(type, values)) <= _INT and (not values or (min(values) >= 0 and max(values) < _LIMIT))


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LIMIT


def _whole(value: object, limit: int) -> bool:
    return type(value) is int and -limit <= value < limit


def _time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST_S


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""JSON decoder that refuses NaN and infinity. It is shared, because constructing one takes longer than parsing a line.
"""


def _quoted(text: bytes) -> str:
    return shortened(text[:200].decode("utf-8", "replace").strip())
