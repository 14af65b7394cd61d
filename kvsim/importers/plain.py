"""Reader of CSV files of requests: published traces, logs, spreadsheets.

Columns are found by name, or the caller names them; two columns for one quantity are an error. A file with lengths
alone has no arrivals. Arrival times are numbers of any unit, or dates; unless the column is `arrival_s`, the first
becomes zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError, WorkloadError, shortened
from kvsim.importers.arrival_times import NO_ARRIVALS, Clock
from kvsim.importers.collect import RequestCollector
from kvsim.importers.column_names import COLUMNS, OPTIONAL, by_quantity, counts_tokens, folded, meaning, rivals
from kvsim.importers.column_of_images import ImageColumn
from kvsim.importers.turn_lines import TurnLines
from kvsim.workload.turns import NONE, WHOLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.importers.source import SourceRow, TextSource
    from kvsim.workload import Image, Workload

_UNSHIFTED = ("arrival_s", "arrived_at")
"""Names of columns, of kvsim and of Vidur, whose times count from the beginning of the workload and are not moved."""
_EXAMPLE = "0.5,200,100"
_INT32 = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Published CSV trace with fixed names of columns."""

    kind: str
    """Kind of the file for descriptions, such as "Azure LLM inference trace"."""
    columns: Mapping[str, str]
    """Name of each column in the file, by kvsim's name, which states the unit of times."""
    has_no_others: bool = False
    """True if a file of this kind has no other columns."""

    def looks_like(self, source: TextSource) -> bool:
        """Tell whether the first line of `source` has the names of the columns."""
        names = tuple(self.columns.values())
        return source.header == names if self.has_no_others else set(names) <= set(source.header)

    def read(self, source: TextSource) -> Workload:
        """Return the requests of all models. Rows need not be in order of time."""
        return _read(source, _Names.of(source, self.columns), self.kind)


AZURE = Published(
    kind="Azure LLM inference trace",
    columns={"arrival": "TIMESTAMP", "prompt_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"},
    has_no_others=True,
)
"""Azure/AzurePublicDataset, 2023 and later.

Dates have up to nine decimal digits. Files without dates are accepted; some have `XXX` in place of each date.
"""
BURSTGPT = Published(
    kind="BurstGPT",
    columns={"arrival_s": "Timestamp", "prompt_tokens": "Request tokens", "output_tokens": "Response tokens"},
)
"""HPMLL/BurstGPT: two months and more of ChatGPT and GPT-4 requests, in seconds since the first day of the trace.

A failed request has no output.
"""

VIDUR = Published(
    kind="Vidur's columns", columns={"prompt_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
)
"""Files in the columns of microsoft/vidur, with or without `arrived_at`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Name of each of kvsim's columns in one file. `arrival` is None for a file that has only lengths."""

    arrival: str | None
    unit: str | None
    given_by_user: bool
    """True if the user has named the column of the arrivals, and so its unit."""
    is_published: bool
    """True if a published format defines the arrivals and their unit."""
    prompt: str
    output: str
    optional: Mapping[str, str]

    @classmethod
    def of(cls, source: TextSource, columns: Mapping[str, str], *, settled: bool = False) -> _Names:
        """Find the columns of `source` by name, or as in `columns`. With `settled`, the user has given `columns`."""
        absent = [theirs for theirs in columns.values() if theirs not in source.header]
        if absent:
            raise WorkloadError(
                f"{source.path}, line 1: there is no column {absent[0]!r}; there are {', '.join(source.header)}."
            )
        given = {_ours(name): (name, theirs) for name, theirs in columns.items()}
        twice = rivals(source.header, frozenset(given) if settled else frozenset())
        if twice and twice[1] != twice[2]:
            ours, first, second = twice
            raise WorkloadError(
                f"{source.path}, line 1: the columns {first!r} and {second!r} both say {ours}; say which holds: "
                f"--columns {ours}={second}."
            )
        found = {ours: names[0] for ours, names in by_quantity(source.header).items()}
        found |= {ours: theirs for ours, (_, theirs) in given.items()}
        if not {"prompt_tokens", "output_tokens"} <= found.keys():
            raise unknown_columns(source, found)
        # A column of an unknown name may be the arrivals.
        unknown = [name for name in source.header if name not in found.values() and not counts_tokens(name)]
        if "arrival_s" not in found and not columns and unknown:
            raise unknown_columns(source, found)
        arrival = found.get("arrival_s")
        stated = meaning(given["arrival_s"][0] if "arrival_s" in given else "")
        named = meaning(arrival or "")
        unit = stated.unit if stated is not None else None
        if named is not None and named.unit is not None and unit in (None, "s"):
            unit = named.unit
        return cls(
            arrival=arrival,
            unit=unit,
            given_by_user=stated is not None and settled,
            is_published=stated is not None and not settled,
            prompt=found["prompt_tokens"],
            output=found["output_tokens"],
            optional={ours: found[ours] for ours in OPTIONAL if ours in found},
        )

    @property
    def required(self) -> tuple[str, ...]:
        """Names in the file of the columns that every row must have."""
        return (*(() if self.arrival is None else (self.arrival,)), self.prompt, self.output)


def looks_like(source: TextSource) -> bool:
    """Tell whether the first line has names for the lengths of prompts and of outputs."""
    return {"prompt_tokens", "output_tokens"} <= by_quantity(source.header).keys()


def unknown_columns(source: TextSource, found: Mapping[str, str]) -> WorkloadError:
    """Return the error that lists the columns of the file, and the needed columns that are not in `found`."""
    header = source.delimiter.join(source.header)
    hint = ",".join(f"{ours}=..." for ours in COLUMNS if ours not in found)
    return WorkloadError(
        f"{source.path}, line 1: {shortened(header, 200)} begins no known format; a CSV file has the columns "
        f"{', '.join(COLUMNS)} (arrival_s may be missing), then lines such as {_EXAMPLE}; say which of yours are "
        f"those: --columns {hint}."
    )


def read(source: TextSource, columns: Mapping[str, str] | None = None) -> Workload:
    """Return the requests of a CSV file.

    Args:
        source: the file.
        columns: for columns that are not recognised, kvsim's name and the name in the file.
    """
    names = _Names.of(source, _checked(columns or {}), settled=True)
    return _read(source, names, None)


def _checked(columns: Mapping[str, str]) -> Mapping[str, str]:
    known = (*COLUMNS, *OPTIONAL)
    unknown = [name for name in columns if _ours(name) not in known]
    if unknown:
        raise UsageError(f"--columns: {unknown[0]} is no column of kvsim; those are {', '.join(known)}.")
    for of, names in (("column of ours", [_ours(name) for name in columns]), ("column", list(columns.values()))):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UsageError(f"--columns: the {of} {twice[0]} is named twice; give each a column of its own.")
    return columns


def _ours(name: str) -> str:
    """Return kvsim's column for `name`. The name of a column of times may end in a unit: `arrival_ms`."""
    known = meaning(name)
    return name if known is None or known.ours != "arrival_s" else known.ours


def _read(source: TextSource, names: _Names, published: str | None) -> Workload:
    """Read all rows: whole blocks of columns at once where possible, other rows one by one."""
    turns = TurnLines() if "after" in names.optional else None
    if turns is not None and (names.arrival is None or "id" not in names.optional):
        raise WorkloadError(f"{source.path}, line 1: the column after needs the columns id and arrival_s; add them.")
    if names.arrival is None:
        requests = RequestCollector(source=source, kind=published or "lengths")
    else:
        named = meaning(names.arrival)
        clock = Clock(
            path=source.path,
            column=names.arrival,
            unit=names.unit,
            dated=named is not None and named.dated,
            given_by_user=names.given_by_user,
            known=names.is_published,
            from_first=folded(names.arrival) not in _UNSHIFTED,
        )
        requests = RequestCollector(source=source, kind=published or "CSV", clock=clock, turns=turns)
    lines_by_id: dict[str, int] = {}
    images = ImageColumn()
    for block in source.csv_blocks(names.required, tuple(names.optional.values())):
        if not names.optional:
            prompt, output = block.whole(names.prompt), block.whole(names.output)
            texts = None if names.arrival is None else block.texts(names.arrival)
            if prompt is not None and output is not None and requests.add_plain(texts, prompt, output):
                continue
        for row in block.rows():
            _add(requests, row, names, lines_by_id, images)
    if names.arrival is not None:
        return requests.workload()
    known = {*names.required, *names.optional.values()}
    ignored = [name for name in source.header if name and name not in known and not counts_tokens(name)]
    return requests.workload(NO_ARRIVALS + (f"; not read: {', '.join(ignored)}" if ignored else ""))


def _add(
    requests: RequestCollector, row: SourceRow, names: _Names, lines_by_id: dict[str, int], images: ImageColumn
) -> None:
    """Add the request in `row`, whose optional columns have the names of the file in `names.optional`."""
    output_tokens = row.whole(names.output)
    arrival = None if names.arrival is None else row.fields[names.arrival]
    if not names.optional:
        requests.add(row, arrival, row.whole(names.prompt), output_tokens)
        return
    ours = row._replace(fields=dict(row.fields) | {our: row.fields[their] for our, their in names.optional.items()})
    limit = ours.whole("max_tokens", minimum=output_tokens) if _given(ours, "max_tokens") else None
    priority = ours.whole("priority", minimum=-_INT32) if _given(ours, "priority") else 0
    name = ours.fields.get("id")
    if name is not None and lines_by_id.setdefault(name, row.line) != row.line:
        raise row.error(f"line {lines_by_id[name]} has the id {name!r} already; give another")
    waits_for = (
        [] if requests.turns is None else [each.strip() for each in ours.fields["after"].split(";") if each.strip()]
    )
    _check_turn(ours, has_turns=requests.turns is not None, waits=bool(waits_for))
    after = NONE if requests.turns is None else requests.turns.before(ours, None, waits_for)
    prompt_tokens = row.whole(names.prompt)
    prefix = _prefix(ours, prompt_tokens)
    listed, image_tokens = _images(requests, ours, prompt_tokens, prefix[1] if prefix else 0, after, images)
    added = requests.add(
        row,
        arrival,
        prompt_tokens + image_tokens,
        output_tokens,
        max_tokens=limit,
        priority=priority,
        adapter=ours.whole("adapter") if _given(ours, "adapter") else 0,
        images=listed,
        prefix=prefix,
        request_id=name,
    )
    if added and requests.turns is not None:
        pause_s = _seconds(ours, "pause_s") if _given(ours, "pause_s") else 0.0
        most = prompt_tokens + image_tokens
        history = ours.whole("history_tokens", maximum=most) if _given(ours, "history_tokens") else WHOLE
        requests.turns.add(after, pause_s, history, name=name, session=None, names=waits_for)


def _images(
    requests: RequestCollector, row: SourceRow, prompt_tokens: int, prefix_tokens: int, after: int, images: ImageColumn
) -> tuple[list[Image], int]:
    """Return the images of a request, and the tokens that they add to its `prompt_tokens` tokens of text.

    A turn that waits for request `after` begins with the images of its history; the images in `row` follow. Without a
    history, `prefix_tokens` is the number of tokens that the prompt shares with others.
    """
    if after == NONE:
        return images.read(row, prompt_tokens, prefix_tokens)
    before, repeated = requests.images[after], requests.prompt_tokens[after] + requests.output_tokens[after]
    if _given(row, "history_tokens"):
        repeated = row.whole("history_tokens")
    there = sum(image.size.tokens for image in before if image.place < repeated)
    repeated = min(repeated, prompt_tokens + there)
    listed, added = images.read_turn(row, prompt_tokens + there - repeated, 0, before, repeated)
    return listed, there + added


def _seconds(row: SourceRow, name: str) -> float:
    try:
        value = float(row.fields[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise row.error(f"{name} should be a number of seconds, 0 or more, not {shortened(row.fields[name])}")
    return value


def _check_turn(row: SourceRow, *, has_turns: bool, waits: bool) -> None:
    given = [name for name in ("pause_s", "history_tokens") if _given(row, name)]
    if given and not waits:
        where = "name that one in after" if has_turns else "give a column after, with ids"
        raise row.error(f"{given[0]} is of a turn that waits for another; {where}")


def _prefix(row: SourceRow, prompt_tokens: int) -> tuple[str, int] | None:
    if _given(row, "prefix_group") != _given(row, "prefix_tokens"):
        raise row.error("prefix_group and prefix_tokens go together; give both or neither")
    if not _given(row, "prefix_group"):
        return None
    return row.fields["prefix_group"].strip(), row.whole("prefix_tokens", minimum=1, maximum=prompt_tokens)


def _given(row: SourceRow, name: str) -> bool:
    return bool(row.fields.get(name, "").strip())
