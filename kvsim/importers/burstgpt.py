"""BurstGPT (HPMLL/BurstGPT): two months and more of ChatGPT and GPT-4 requests, in seconds. A failed one has no
answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.importers.collect import Requests

if TYPE_CHECKING:
    from kvsim.importers.source import Source
    from kvsim.workload import Workload

COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")


def looks_like(source: Source) -> bool:
    """Whether the first line names the columns; later releases have more of them."""
    return {"Timestamp", "Request tokens", "Response tokens"} <= set(source.header)


def read(source: Source) -> Workload:
    """The requests that were answered, of all models, from the first one's arrival on.

    Times count from the first day of the whole trace, so that the second file of a release begins after two months.

    Raises:
        WorkloadError: a row cannot be right; the message names the line.
    """
    requests = Requests(source=source, what="BurstGPT")
    for row in source.csv_rows(("Timestamp", "Request tokens", "Response tokens")):
        requests.add(row.number("Timestamp"), row.whole("Request tokens"), row.whole("Response tokens"))
    return requests.workload(from_first=True)
