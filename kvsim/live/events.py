"""Check of the form of each event from a server, which is not trusted.

An event is a list: its kind, then arguments. `kvsim.recording.eventlog` describes the kinds; in addition, `["joined",
rows, next_row, next_step]` ends a snapshot: the server's ids of the requests in it, and the ids of the next request and
step. Contradictions between events are found later, in the recording that they make.
"""

from __future__ import annotations

import json
from typing import Any

from kvsim.errors import RecordingError, shortened

MAX_LINE_BYTES = 8 << 20
"""Limit for the number of bytes of a line. A line that lists a million free blocks has 7 MB."""
_MAX_NAME = 256
_LIMIT = 1 << 31
_LATEST_S = 1e12
_INT = {int}
_COUNTS = ("prefill_tokens", "decode_tokens", "num_scheduled", "running", "waiting", "preempted", "free_units")
_STATUSES = ("unfinished", "finished", "aborted", "refused")


def parse(text: bytes) -> list[Any]:
    """Parse one line of a log, and return the event.

    Raises:
        RecordingError: the line is no event.
    """
    try:
        event = _DECODER.decode(text.decode())
    except (ValueError, RecursionError):
        raise RecordingError(f"{_quoted(text)} is no line of JSON") from None
    if not isinstance(event, list) or not _is_event(event):
        raise RecordingError(f"{_quoted(text)} is no event")
    return event


def _is_event(event: list[Any]) -> bool:  # noqa: PLR0911, PLR0912  one branch for each word
    """Tell whether `event` has the form of one of the events in `kvsim.recording.eventlog`."""
    match event:
        case ["emit", request, time_s, count]:  # almost all events
            return _count(request) and _count(count) and _time(time_s)
        case ["seq"] | ["meta", dict()] | ["refused", str()]:
            return True
        case ["again", time_s]:
            return _time(time_s)
        case ["tokens", time_s, list(rows)]:
            return _time(time_s) and (_are_rows(rows, 3) or _are_rows(rows, 4))
        case ["step", dict(columns)]:
            return _time(columns.get("start_s")) and _counts([columns.get(name) for name in _COUNTS])
        case ["output", step, time_s, *given]:
            return _count(step) and _time(time_s) and all(_are_rows(rows, 2) for rows in given) and len(given) <= 1
        case ["proposed", step, list(rows)]:
            return _count(step) and _are_rows(rows, 2)
        case ["preempt", request]:
            return _count(request)
        case ["end", request, status, time_s]:
            return _count(request) and status in _STATUSES and _time(time_s)
        case ["arrive", str(name), time_s, prompt_tokens, max_tokens, priority, list(hashes), *more]:
            named = len(name) <= _MAX_NAME and _time(time_s) and _counts([prompt_tokens, max_tokens, *more[:1]])
            are_keys = _whole(priority, _LIMIT) and all(_whole(key, 1 << 63) for key in hashes)
            return named and are_keys and all(map(_time, more[1:])) and len(more) <= 2
        case ["joined", list(rows), next_row, next_step]:
            return _counts(rows) and _counts([next_row, next_step])
        case ["images", request, list(images)]:
            return _count(request) and all(_is_image(image) for image in images)
        case ["encoder", "compute" | "evict", -1, image]:
            return _count(image)
        case ["encoder", "hold" | "let_go", request, image]:
            return _counts([request, image])
        case _:
            return _is_of_memory(event)


def _is_of_memory(event: list[Any]) -> bool:
    match event:
        case ["append" | "share", request, position, list(units), *group]:
            return _counts([request, position, *group]) and _counts(units) and len(group) <= 1
        case ["release", request, num_units, num_cached, *group]:
            return _counts([request, num_units, num_cached, *group]) and len(group) <= 1
        case ["let_go", request, list(positions), list(units), list(kept), group]:
            return _counts([request, group]) and all(map(_counts, (positions, units, kept)))
        case ["evict", list(units)]:
            return _counts(units)
        case _:
            return False


def _are_rows(rows: object, length: int) -> bool:
    if not isinstance(rows, list) or not all(type(row) is list and len(row) == length for row in rows):
        return False
    return _counts([value for row in rows for value in row])


def _is_image(image: object) -> bool:
    if not isinstance(image, list) or len(image) not in (3, 4):
        return False
    runs = image[3] if len(image) == 4 else []
    return _counts(image[:3]) and isinstance(runs, list) and _counts(runs)


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
"""JSON decoder that refuses NaN and infinity. Making one takes longer than parsing a line, so it is shared."""


def _quoted(text: bytes) -> str:
    return shortened(text[:200].decode("utf-8", "replace").strip())
