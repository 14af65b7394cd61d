"""Transfers of KV between one server of a fleet and the others: who sends, who fetches, what is under way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvsim.recording.tables import TransferKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording.tables import Transfers


class Handovers:
    """Transfers of KV of one server.

    Other servers are numbered from 0 among the servers of their kind, prefill or decode.
    """

    def __init__(self, transfers: Transfers | None, num_requests: int) -> None:
        """Take the rows of `transfers`, or none if that is None.

        Rows with an unknown server (-1), or with a request that is not among the server's `num_requests`, are ignored:
        the file was read without a check.
        """
        columns = ("kind", "request", "server", "begin_s", "end_s")
        if transfers is None:
            kind, request, server, begin_s, end_s = (np.empty(0) for _ in columns)
        else:
            kind, request, server, begin_s, end_s = (getattr(transfers, name) for name in columns)
        known = (server >= 0) & (request >= 0) & (request < num_requests)
        self._load, self._send = (known & (kind == each) for each in (TransferKind.LOAD, TransferKind.SEND))
        self._request, self._server, self._begin_s, self._end_s = request, server, begin_s, end_s

    def came_from(self, time_s: float) -> dict[int, int]:
        """Return, for each server that sent KV, the number of requests whose KV was fetched up to `time_s`."""
        return self._count(self._load & (self._end_s <= time_s))

    def kept_for(self, time_s: float) -> dict[int, int]:
        """Return, for each server that will fetch KV, how many ended requests keep blocks for it at `time_s`."""
        return self._count(self._send & self._under_way(time_s))

    def fetched_from(self, request: int, time_s: float) -> int | None:
        """Return the number of the server from which KV of `request` is being fetched at `time_s`; None if none is."""
        rows = np.flatnonzero(self._load & (self._request == request) & self._under_way(time_s))
        return int(self._server[rows[0]]) if len(rows) else None

    def _under_way(self, time_s: float) -> npt.NDArray[np.bool_]:
        return (self._begin_s <= time_s) & ~(self._end_s <= time_s)

    def _count(self, rows: npt.NDArray[np.bool_]) -> dict[int, int]:
        return dict(sorted(Counter(self._server[rows].tolist()).items()))
