"""A CSV file in kvsim's own words, for a trace that is in no known format: easy to write by hand or from a
spreadsheet. A file of lengths alone has no arrivals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.importers.collect import NO_ARRIVALS, Requests

if TYPE_CHECKING:
    from kvsim.importers.source import Row, Source
    from kvsim.workload import Workload

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
_ANSWERS = ("output_tokens", "answer_tokens")
"""Either name will do."""
OPTIONAL = ("id", "max_tokens", "priority", "prefix_group", "prefix_tokens")
"""An optional field may also be empty in some rows: no limit beyond the answer, priority 0, no shared prefix."""
_INT32 = 2**31


def looks_like(source: Source) -> bool:
    """Whether the first line names the columns."""
    return "prompt_tokens" in source.header and any(name in source.header for name in _ANSWERS)


def read(source: Source) -> Workload:
    """The requests.

    Raises:
        WorkloadError: a row cannot be right; the message names the line.
    """
    # A column that nobody knows may be the arrivals by another name.
    timed = "arrival_s" in source.header or not set(source.header) <= {"prompt_tokens", *_ANSWERS, *OPTIONAL}
    requests = Requests(source=source, what="CSV" if timed else "lengths")
    answer = next((name for name in _ANSWERS if name in source.header), _ANSWERS[0])
    required = ("arrival_s", "prompt_tokens", answer) if timed else ("prompt_tokens", answer)
    lines_by_id: dict[str, int] = {}
    for row in source.csv_rows(required, OPTIONAL):
        output_tokens = row.whole(answer)
        limit = row.whole("max_tokens", minimum=output_tokens) if _given(row, "max_tokens") else None
        priority = row.whole("priority", minimum=-_INT32) if _given(row, "priority") else 0
        name = row.fields.get("id")
        if name is not None and lines_by_id.setdefault(name, row.line) != row.line:
            raise row.error(f"line {lines_by_id[name]} has the id {name!r} already; give another")
        requests.add(
            row.number("arrival_s") if timed else 0.0,
            row.whole("prompt_tokens"),
            output_tokens,
            max_tokens=limit,
            priority=priority,
            prefix=_prefix(row),
            request_id=name,
        )
    return requests.workload("" if timed else NO_ARRIVALS)


def _prefix(row: Row) -> tuple[str, int] | None:
    if _given(row, "prefix_group") != _given(row, "prefix_tokens"):
        raise row.error("prefix_group and prefix_tokens go together; give both or neither")
    if not _given(row, "prefix_group"):
        return None
    prompt_tokens = row.whole("prompt_tokens")
    return row.fields["prefix_group"].strip(), row.whole("prefix_tokens", minimum=1, maximum=prompt_tokens)


def _given(row: Row, name: str) -> bool:
    return bool(row.fields.get(name, "").strip())
