"""A profile of arrivals as a table: times and how many requests a second come then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import WorkloadError
from kvsim.importers.source import Source
from kvsim.workload import Varying

if TYPE_CHECKING:
    import os

_TIMES = {"time_s": 1.0, "minute": 60.0, "hour": 3600.0}
"""Names that the column of times may have, each with its unit in seconds."""
_RATES = {"rate_per_s": 1.0, "rate_per_min": 1 / 60, "rate_per_hour": 1 / 3600}
_EXAMPLE = "hour,rate_per_s then 0,0.5 then 12,4 then 24,0.5"


def read_profile(path: str | os.PathLike[str]) -> Varying:
    """The profile in the CSV file `path`, which begins again at its end.

    Raises:
        WorkloadError: it has no column of times or of rates, or a row that cannot be right.
        UsageError: its times do not begin at 0 and rise.
    """
    source = Source.open(path)
    time = next((name for name in _TIMES if name in source.header), None)
    rate = next((name for name in _RATES if name in source.header), None)
    if time is None or rate is None:
        raise WorkloadError(
            f"{source.path}, line 1: the header is {','.join(source.header)!r}; a profile has one of "
            f"{', '.join(_TIMES)} and one of {', '.join(_RATES)}, such as {_EXAMPLE}."
        )
    rows = [(row.number(time) * _TIMES[time], row.number(rate) * _RATES[rate]) for row in source.csv_rows((time, rate))]
    return Varying(time_s=[row[0] for row in rows], rate_per_s=[row[1] for row in rows], repeats=True)
