"""Replay the log of a running engine: one JSON array per line, each a report to a `RecordingBuilder`.

A live server writes this log, and sends it to its viewers. A line is complete or absent, so a log can be read after a
crash. In the events, `request` is the row of a request in the requests table. `units` are addresses of units, `slots`
are numbers of host blocks, `number` is that of a copy, and `group` is the index of the KV-cache group of a table. Times
are in seconds. The events::

    ["meta", {...}]
        First line: the contents of `meta.json`.
    ["arrive", name, time_s, prompt, max, priority, [hashes], adapter, delay_s]
        A request arrives, and gets the next row. `name` is its id on the server, `prompt` and `max` are numbers of
        tokens, `hashes` the prompt hashes.
        `adapter` is 0 for none. `delay_s` is the time since the front end got the request. Older logs lack `delay_s`,
        or also `adapter`.
    ["seq"]
        The engine's state changes: the events after this line have the next event number (`seq`).
    ["tokens", time_s, [[request, before, tokens], ...]]
        The step being scheduled computes `tokens` tokens of the request; `before` of its tokens are computed already.
        With drafts, a fourth number is that of the request's known tokens (prompt and processed outputs).
    ["again", time_s]
        The step being scheduled computes one token of each request of the previous step. The time is not used.
    ["step", {column: value, ...}]
        The step is scheduled; the columns are those of the steps table.
    ["output", step, time_s]
        The output of `step` was processed. With drafts, `[[request, tokens], ...]` follows: its output tokens.
    ["proposed", step, [[request, drafts], ...]]
        After the output of `step`, `drafts` tokens were drafted for the request.
    ["emit", request, time_s, count]
        The request got `count` output tokens.
    ["preempt", request]
        The request was preempted.
    ["end", request, status, time_s]
        The request left; `status` is the name of a `RequestStatus` in lower case.
    ["append", request, position, [units]]   ["share", request, position, [units]]
        The request got units, or a prefix hit, from index `position` of its table on.
    ["release", request, units, cached]
        The request released its table of `units` units, of which the first `cached` stay cached.
    ["let_go", request, [positions], [units], [kept], group]
        The request released some units of a table, in this order; `kept` has 1 for each that stays cached.
    ["evict", [units]]
        The prefixes in these units were evicted.
    ["copy", number, is_load, request, [units], [slots]]
        The step being scheduled copies units from (load) or to host blocks.
    ["await", [numbers]]   ["copied", number, [slots]]
        The step being scheduled waits for copies. The end of a copy is reported, with its host blocks.
    ["transfer", is_send, request, position, blocks, tokens, time_s]
        A load of blocks from another server begins, or blocks are kept for another server (`is_send`).
    ["transferred", request, time_s, failed]
        The transfer has ended; `failed` is the first index of the table that did not load; -1 if all loaded.
    ["images", request, [[image, place, tokens], ...]]
        Images of the request that has just arrived. If only some tokens of an image have an encoder output, a fourth
        value has their ranges, each as first token and number of tokens.
    ["encoder", kind, request, image]
        An event of the encoder cache; `kind` is the name of an `ImageEventKind` in lower case. `request` is -1 if the
        image is computed or evicted.

With several KV-cache groups, `append`, `share` and `release` end with the group of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvsim.errors import RecordingError, reason_of, shortened
from kvsim.files.eventline import line
from kvsim.files.identity import LOG
from kvsim.files.json_text import parse
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.provenance import refuse_constant
from kvsim.recording.tables import RequestStatus

__all__ = ["FILE_NAME", "apply", "line", "replay"]

FILE_NAME = LOG
"""Name of the log in a recording's folder. The log is removed when the recording is packed into Parquet files."""


def apply(builder: RecordingBuilder, event: list[Any]) -> None:
    """Report one event to `builder`.

    Raises:
        RecordingError: the event is unknown, has wrong values, or cannot follow the earlier events.
    """
    try:
        _report(builder, event)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise RecordingError(f"{shortened(event)} {not_following(error)}.") from error


def not_following(error: Exception) -> str:
    """Return the end of a sentence about an event that raised `error`: it does not follow from earlier events."""
    reason = reason_of(error, "it is of another kind")
    if isinstance(error, KeyError):  # its message is the key alone
        reason = f"nothing has the number {reason}"
    return f"does not follow from the events before it: {reason}"


def _report(builder: RecordingBuilder, event: list[Any]) -> None:
    """Call the method of `builder` for an event. `apply` makes a `RecordingError` of exceptions from wrong values."""
    match event:
        case ["emit", request, time_s, count]:  # first, because most events are of this kind
            builder.emitted(_checked_row(builder, request), time_s, count)
        case ["seq"]:
            builder.begin_event()
        case ["again", _]:
            builder.scheduled_again()
        case ["tokens", time_s, list(rows)]:
            _report_tokens(builder, time_s, rows)
        case ["step", dict(columns)]:
            builder.check_step(columns)
            builder.step(**columns)
        case ["output", int(step), time_s, *given]:
            builder.check_output(step)
            builder.output(step, time_s, dict(given[0]) if given else None)
        case ["proposed", int(step), list(drafts)]:
            builder.proposed(step, dict(drafts))
        case ["preempt", request]:
            builder.preempted(_checked_row(builder, request))
        case ["end", request, str(status), time_s]:
            builder.ended(_checked_row(builder, request), RequestStatus[status.upper()], time_s)
        case ["arrive", str(name), time_s, prompt_tokens, max_tokens, priority, list(hashes), *more]:
            name.encode()  # raises for a lone surrogate, which JSON can contain
            builder.arrived(
                name,
                time_s,
                prompt_tokens,
                max_tokens,
                priority=priority,
                prompt_hashes=hashes,
                adapter=int(more[0]) if more else 0,
                delay_s=more[1] if len(more) > 1 else None,
            )
        case _:
            _report_memory(builder, event)


def _report_tokens(builder: RecordingBuilder, time_s: float, rows: list[Any]) -> None:
    requests = [row[0] for row in rows]
    for extreme in (min(requests), max(requests)) if requests else ():
        _checked_row(builder, extreme)  # the others lie between these two
    for request, computed_before, tokens, *known in rows:
        builder.scheduled(request, computed_before, tokens, time_s, 1, *known)


def _report_memory(builder: RecordingBuilder, event: list[Any]) -> None:
    match event:
        case ["append", request, position, list(units), *group]:
            builder.append_blocks(_checked_row(builder, request), position, units, *group)
        case ["share", request, position, list(units), *group]:
            builder.share_blocks(_checked_row(builder, request), position, units, *group)
        case ["release", request, num_units, num_cached, *group]:
            builder.release(_checked_row(builder, request), num_units, num_cached, *group)
        case ["let_go", request, list(positions), list(units), list(kept), group]:
            builder.release_blocks(_checked_row(builder, request), positions, units, kept, group)
        case ["copy", int(number), bool(is_load), request, list(units), list(slots)]:
            builder.copies.begin(number, is_load, _checked_row(builder, request), units, slots, builder.num_steps)
        case ["await", list(numbers)]:
            builder.copies.awaited(numbers, builder.num_steps)
        case ["copied", int(number), list(slots)]:
            builder.copies.report(number, slots)
        case ["transfer", bool(is_send), request, int(position), int(blocks), int(tokens), time_s]:
            builder.transfer(is_send, _checked_row(builder, request), position, blocks, tokens, time_s)
        case ["transferred", request, time_s, int(failed)]:
            builder.transferred(_checked_row(builder, request), time_s, failed)
        case ["evict", list(units)]:
            builder.evict(units)
        case _:
            _report_images(builder, event)


def _report_images(builder: RecordingBuilder, event: list[Any]) -> None:
    match event:
        case ["images", request, list(images)]:
            builder.add_images(_checked_row(builder, request), images)
        case ["encoder", str(kind), request, int(image)]:
            builder.encoder_event(kind, request if request == -1 else _checked_row(builder, request), image)
        case _:
            raise RecordingError(f"{shortened(event)} is not an event.")


def _checked_row(builder: RecordingBuilder, request: int) -> int:
    """Return `request` if it has arrived; otherwise raise an IndexError, also for negative numbers."""
    if not 0 <= request < builder.num_requests:
        raise IndexError(f"there is no request {shortened(request)}")
    return request


def _configure(builder: RecordingBuilder, meta: dict[str, Any], source: str) -> None:
    for name in ("policy", "engine"):
        if not isinstance(meta.get(name) or {}, dict):
            raise RecordingError(f"{source}, line 1: {name} should be an object, not {shortened(meta[name])}.")
    policy, engine = meta.get("policy") or {}, meta.get("engine") or {}
    try:
        builder.copies.configure(policy)
    except (TypeError, ValueError, OverflowError):
        size = shortened(policy["block_size"])
        message = f"{source}, line 1: policy.block_size should be a whole number above 0, not {size}."
        raise RecordingError(message) from None
    builder.transfers.configure("kv_connector" in engine)


def replay(lines: Iterable[bytes], source: str) -> tuple[dict[str, Any], RecordingBuilder]:
    """Read a log. Return the content of its first line, and a builder with the events of all other lines.

    A last line without a line end, as after a crash, is ignored. `source` names the log in errors.

    Raises:
        RecordingError: a line is no JSON, or its event is not possible.
    """
    builder, meta = RecordingBuilder(), None
    for number, text in enumerate(lines, start=1):
        if not text.endswith(b"\n"):
            break
        try:
            event = parse(text, parse_constant=refuse_constant)
        except ValueError:
            raise RecordingError(f"{source}, line {number}: not JSON.") from None
        if not isinstance(event, list) or not event:
            raise RecordingError(f"{source}, line {number}: an event should be a list.")
        if meta is None:
            if event[0] != "meta" or len(event) != 2 or not isinstance(event[1], dict):
                raise RecordingError(f'{source}, line 1: a log should begin with ["meta", {{...}}].')
            meta = event[1]
            _configure(builder, meta, source)
            continue
        try:
            apply(builder, event)
        except RecordingError as error:
            raise RecordingError(f"{source}, line {number}: {error}") from error
    if meta is None:
        raise RecordingError(f"{source} is empty; a log begins with a line about its origin.")
    return meta, builder
