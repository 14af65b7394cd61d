"""A CSV file in kvsim's own words or in others' for them: easy to write by hand, or from a log or a spreadsheet.

Columns are found by name, by one of the names in `_ALIASES`, or as the caller says. A file of lengths alone has no
arrivals. Times of arrival may be seconds, milliseconds or dates; unless the column is `arrival_s`, the first is zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvsim.errors import UsageError, WorkloadError, shortened
from kvsim.importers.collect import NO_ARRIVALS, Requests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.importers.source import Block, Row, Source
    from kvsim.workload import Workload

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("id", "max_tokens", "priority", "prefix_group", "prefix_tokens")
"""An optional field may also be empty in some rows: no limit beyond the answer, priority 0, no shared prefix."""
_MILLISECONDS = ("arrival_ms", "timestamp_ms", "time_ms")
_ALIASES = {
    "arrival_s": (
        "arrival_s", "arrival", "arrival_time", "timestamp", "timestamp_s", "time", "time_s", "start", "start_time",
        "start_s", "created", "created_at", "sent_at", "request_time", "date", "datetime", *_MILLISECONDS,
    ),
    "prompt_tokens": (
        "prompt_tokens", "prompt", "prompt_len", "prompt_length", "num_prompt_tokens", "input", "input_tokens",
        "input_len", "input_length", "num_input_tokens", "tokens_in", "context_tokens",
    ),
    "output_tokens": (
        "output_tokens", "answer_tokens", "output", "output_len", "output_length", "num_output_tokens", "answer",
        "completion_tokens", "completion", "generated_tokens", "generation_tokens", "response_tokens", "tokens_out",
    ),
}  # fmt: skip
"""Names of the columns, ours first; capitals, spaces and hyphens make no difference."""
_EXAMPLE = "0.5,200,100"
_INT32 = 2**31
_MILLI = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """What the file calls our columns; without arrivals it is of lengths alone."""

    arrival: str | None
    prompt: str
    output: str
    optional: Mapping[str, str]

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        return (*(() if self.arrival is None else (self.arrival,)), self.prompt, self.output)


def looks_like(source: Source) -> bool:
    """Whether the first line names the lengths of prompts and answers."""
    folded = {_folded(name) for name in source.header}
    return all(folded & set(_ALIASES[ours]) for ours in COLUMNS[1:])


def unknown_columns(source: Source, columns: Mapping[str, str]) -> WorkloadError:
    """The error that says which columns were found and which are needed."""
    header = source.delimiter.join(source.header)
    missing = [ours for ours in COLUMNS if _found(source, ours, columns) is None]
    hint = ",".join(f"{ours}=..." for ours in missing)
    return WorkloadError(
        f"{source.path}, line 1: {shortened(header, 200)} begins no known format; a CSV file has the columns "
        f"{', '.join(COLUMNS)} (arrival_s may be missing), then lines such as {_EXAMPLE}; say which of yours are "
        f"those: --columns {hint}."
    )


def read(source: Source, columns: Mapping[str, str] | None = None) -> Workload:
    """The requests.

    Args:
        source: the file.
        columns: our name of a column, and the file's, where that is no name that is known.

    Raises:
        WorkloadError: a column is missing, or a row cannot be right; the message names the line.
        UsageError: `columns` names one of ours that is none.
    """
    names = _names(source, columns or {})
    requests = Requests(source=source, what="lengths" if names.arrival is None else "CSV")
    lines_by_id: dict[str, int] = {}
    scale = _MILLI if names.arrival is not None and _folded(names.arrival) in _MILLISECONDS else 1.0
    for block in source.csv_blocks(names.required, tuple(names.optional.values())):
        plain = None if names.optional else _plain(block, names, scale)
        if plain is not None:
            requests.add_plain(*plain)
            continue
        for row in block.rows():
            arrival_s = 0.0 if names.arrival is None else _seconds(row, names.arrival, scale)
            output_tokens = row.whole(names.output)
            if not names.optional:
                requests.add(arrival_s, row.whole(names.prompt), output_tokens)
                continue
            ours = row._replace(
                fields=dict(row.fields) | {our: row.fields[their] for our, their in names.optional.items()}
            )
            limit = ours.whole("max_tokens", minimum=output_tokens) if _given(ours, "max_tokens") else None
            priority = ours.whole("priority", minimum=-_INT32) if _given(ours, "priority") else 0
            name = ours.fields.get("id")
            if name is not None and lines_by_id.setdefault(name, row.line) != row.line:
                raise row.error(f"line {lines_by_id[name]} has the id {name!r} already; give another")
            requests.add(
                arrival_s,
                row.whole(names.prompt),
                output_tokens,
                max_tokens=limit,
                priority=priority,
                prefix=_prefix(ours, names.prompt),
                request_id=name,
            )
    dated = names.arrival not in (None, "arrival_s")
    return requests.workload(NO_ARRIVALS if names.arrival is None else "", from_first=dated)


def _names(source: Source, columns: Mapping[str, str]) -> _Names:
    unknown = [name for name in columns if name not in (*COLUMNS, *OPTIONAL)]
    if unknown:
        raise UsageError(f"--columns: {unknown[0]} is no column of ours; those are {', '.join((*COLUMNS, *OPTIONAL))}.")
    absent = [theirs for theirs in columns.values() if theirs not in source.header]
    if absent:
        raise WorkloadError(
            f"{source.path}, line 1: there is no column {absent[0]!r}; there are {', '.join(source.header)}."
        )
    arrival, prompt, output = (_found(source, ours, columns) for ours in COLUMNS)
    optional = {ours: theirs for ours in OPTIONAL if (theirs := _found(source, ours, columns)) is not None}
    if prompt is None or output is None:
        raise unknown_columns(source, columns)
    known = {prompt, output, *optional.values()}
    # A column of an unknown name may be the arrivals.
    if arrival is None and not columns and not set(source.header) <= known:
        raise unknown_columns(source, columns)
    return _Names(arrival=arrival, prompt=prompt, output=output, optional=optional)


def _found(source: Source, ours: str, columns: Mapping[str, str]) -> str | None:
    """The file's name of our column: as stated, or the first of those it is known by."""
    if ours in columns:
        return columns[ours]
    by_folded = {_folded(name): name for name in reversed(source.header)}
    return next((by_folded[alias] for alias in _ALIASES.get(ours, (ours,)) if alias in by_folded), None)


def _folded(name: str) -> str:
    return re.sub(r"[\s\-]+", "_", name.strip().casefold())


def _plain(block: Block, names: _Names, scale: float) -> tuple[list[float], list[int], list[int]] | None:
    """Arrivals, prompts and outputs of rows in which they are plain numbers; None where one is not."""
    prompt, output = block.whole(names.prompt), block.whole(names.output)
    arrival = [0.0] * len(block.lines) if names.arrival is None else block.numbers(names.arrival)
    if prompt is None or output is None or arrival is None:
        return None
    return [seconds * scale for seconds in arrival], prompt, output


def _seconds(row: Row, name: str, scale: float) -> float:
    """The arrival of a request in seconds, from a number, of which `scale` makes seconds, or a date."""
    text = row.fields[name]
    if ":" not in text:
        return row.number(name, comma=True) * scale
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise row.error(
            f"{name} should be a number of seconds, or a date such as 2026-11-16T18:15:46, not {shortened(text)}"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _prefix(row: Row, prompt: str) -> tuple[str, int] | None:
    if _given(row, "prefix_group") != _given(row, "prefix_tokens"):
        raise row.error("prefix_group and prefix_tokens go together; give both or neither")
    if not _given(row, "prefix_group"):
        return None
    prompt_tokens = row.whole(prompt)
    return row.fields["prefix_group"].strip(), row.whole("prefix_tokens", minimum=1, maximum=prompt_tokens)


def _given(row: Row, name: str) -> bool:
    return bool(row.fields.get(name, "").strip())
