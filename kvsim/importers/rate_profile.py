"""Reader of arrival-rate profiles, for --rate-profile: a CSV table of times and rates of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers.source import TextSource
from kvsim.workload import Varying

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from kvsim.importers.source import SourceRow

_TIMES = {"time_s": 1.0, "minute": 60.0, "hour": 3600.0}
"""Names of the time column, each with its unit in seconds."""
_RATES = {"rate_per_s": 1.0, "rate_per_min": 1 / 60, "rate_per_hour": 1 / 3600}
_EXAMPLE = "hour,rate_per_s then 0,0.5 then 12,4 then 24,0.5"
_MOST_LISTED = 5


def read_profile(path: str | os.PathLike[str]) -> Varying:
    """Read a profile of arrival rates over time from the CSV file `path`. After its last time, it repeats from time 0.

    Raises:
        WorkloadError: the time or rate column is missing or ambiguous, or rows are invalid.
    """
    source = TextSource.open(path)
    time, rate = _column(source, _TIMES), _column(source, _RATES)
    times: list[float] = []
    rates: list[float] = []
    wrong: list[str] = []
    for row in source.csv_rows((time, rate)):
        now = _number(row, time, wrong)
        if now and times and now[0] <= times[-1]:
            wrong.append(f"line {row.line}: {time} is {now[0]:g} after {times[-1]:g}, and should rise")
        times += now
        rates += _number(row, rate, wrong)
    if times and times[0] != 0:
        wrong.insert(0, f"the first {time} is {times[0]:g}, and should be 0")
    if wrong:
        more = f"; and {len(wrong) - _MOST_LISTED:,} more" if len(wrong) > _MOST_LISTED else ""
        raise WorkloadError(f"{source.path}: {'; '.join(wrong[:_MOST_LISTED])}{more}.")
    try:
        return Varying(
            time_s=[value * _TIMES[time] for value in times],
            rate_per_s=[value * _RATES[rate] for value in rates],
            repeats=True,
        )
    except UsageError as error:
        raise WorkloadError(f"{source.path}: {error}") from error


def _column(source: TextSource, names: Mapping[str, float]) -> str:
    found = [name for name in source.header if name in names]
    if not found:
        raise WorkloadError(
            f"{source.path}, line 1: the header is {','.join(source.header)!r}; a profile has one of "
            f"{', '.join(_TIMES)} and one of {', '.join(_RATES)}, such as {_EXAMPLE}."
        )
    if len(found) > 1:
        raise WorkloadError(f"{source.path}, line 1: {found[0]} and {found[1]} are both there; leave one out.")
    return found[0]


def _number(row: SourceRow, name: str, wrong: list[str]) -> list[float]:
    """Return the number in field `name` in a list. If it is invalid, append a message to `wrong` and return []."""
    try:
        return [row.number(name)]
    except WorkloadError as error:
        wrong.append(str(error).removeprefix(f"{row.path}, ").removesuffix("."))
        return []
