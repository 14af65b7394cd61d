"""CSV in the columns of Vidur (microsoft/vidur): arrivals in seconds, or lengths alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.importers.collect import NO_ARRIVALS, Requests

if TYPE_CHECKING:
    from kvsim.importers.source import Source
    from kvsim.workload import Workload

COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
_ARRIVAL = "arrived_at"


def looks_like(source: Source) -> bool:
    """Whether the first line names the columns."""
    return set(COLUMNS) <= set(source.header)


def read(source: Source) -> Workload:
    """The requests.

    Raises:
        WorkloadError: a row cannot be right; the message names the line.
    """
    timed = _ARRIVAL in source.header
    requests = Requests(source=source, what="lengths and arrivals" if timed else "lengths")
    for row in source.csv_rows(COLUMNS, (_ARRIVAL,)):
        arrival_s = row.number(_ARRIVAL) if timed else 0.0
        requests.add(arrival_s, row.whole("num_prefill_tokens"), row.whole("num_decode_tokens"))
    return requests.workload("" if timed else NO_ARRIVALS)
