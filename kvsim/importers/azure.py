"""The Azure LLM inference traces (Azure/AzurePublicDataset, 2023 and later), and length files in their columns.

Time stamps have up to nine fractional digits, more than `strptime` reads. Some files of lengths alone have the literal
`XXX` there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvsim.errors import shortened
from kvsim.importers.collect import NO_ARRIVALS, Requests

if TYPE_CHECKING:
    from kvsim.importers.source import Row, Source
    from kvsim.workload import Workload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_UNKNOWN = "XXX"
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def looks_like(source: Source) -> bool:
    """Whether the first line names the columns."""
    return source.header == COLUMNS


def read(source: Source) -> Workload:
    """The requests, from the first one's arrival on; rows need not be in order of time.

    Raises:
        WorkloadError: a row cannot be right; the message names the line.
    """
    requests = Requests(source=source, what="Azure LLM inference trace")
    timed: bool | None = None
    epoch_ns = 0
    for row in source.csv_rows(COLUMNS):
        stamp = row.fields["TIMESTAMP"].strip()
        known = stamp != _UNKNOWN
        if timed is None:
            timed, epoch_ns = known, _nanoseconds(row, stamp) if known else 0
        if known != timed:
            raise row.error(f"TIMESTAMP is {shortened(stamp)}; either every row has a time or every row has {_UNKNOWN}")
        # Seconds since 1970 in a float have lost the last digits: subtract first.
        arrival_s = (_nanoseconds(row, stamp) - epoch_ns) / 1e9 if known else 0.0
        requests.add(arrival_s, row.whole("ContextTokens"), row.whole("GeneratedTokens"))
    return requests.workload("" if timed else NO_ARRIVALS, from_first=True)


def _nanoseconds(row: Row, stamp: str) -> int:
    """Nanoseconds since 1970; a time without a zone counts as UTC, since only differences matter."""
    wrong = row.error(
        f"TIMESTAMP should be a time such as 2023-11-16 18:15:46.6805900, or {_UNKNOWN}, not {shortened(stamp)}"
    )
    match = _STAMP.fullmatch(stamp)
    if match is None:
        raise wrong
    try:
        seconds = datetime.fromisoformat(match[1] + (match[3] or ""))
        since = (seconds if seconds.tzinfo else seconds.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise wrong from None
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))
