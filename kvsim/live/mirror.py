"""What a server's log amounts to at this moment: enough to begin a new log in the middle, for a viewer that joins.

The process that serves viewers (`kvsim.capture.viewers`) keeps one, so the engine never makes a snapshot; and a viewer
does, to begin afresh without asking again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Request:
    """A request that has arrived and not ended."""

    arrival: list[Any]
    """Its `arrive` event."""
    table: list[int] = field(default_factory=list)
    """Ids of the blocks that it holds."""
    computed: int = 0
    """Tokens whose KV its blocks hold, or will when the step under way ends."""


class Mirror:
    """Follows a log, event by event."""

    def __init__(self) -> None:
        self._meta: dict[str, Any] | None = None
        self._requests: dict[int, _Request] = {}
        """Requests by the server's row number, in order of arrival."""
        self._num_rows = self._num_steps = 0
        self._scheduled: list[int] = []
        """Rows that the last step computed."""
        self._columns: dict[str, float] = {}
        self._time_s = 0.0
        self._spell_out = False

    @property
    def begun(self) -> bool:
        """Whether the log has its first line."""
        return self._meta is not None

    @property
    def num_steps(self) -> int:
        """Steps that the server has taken."""
        return self._num_steps

    def apply(self, event: list[Any]) -> list[Any]:
        """Follow one event, and return it as it should go on.

        That is the event itself, but for an `again` behind a snapshot: a log that has just begun does not have the
        step that `again` repeats, so the rows are named.

        Raises:
            LookupError: it is about a request that is not here.
        """
        match event:
            case ["meta", meta]:
                self._meta = meta
            case ["arrive", _, time_s, *_]:
                self._time_s = time_s
                self._requests[self._num_rows] = _Request(event)
                self._num_rows += 1
            case ["append" | "share", row, position, blocks]:
                self._requests[row].table[position:] = blocks
            case ["release", row, *_]:
                request = self._requests[row]
                request.table, request.computed = [], 0
            case ["tokens", time_s, rows]:
                self._schedule(time_s, rows)
            case ["again", time_s]:
                rows = [[row, self._requests[row].computed, 1] for row in self._scheduled]
                spelled_out = self._spell_out
                self._schedule(time_s, rows)
                if spelled_out:
                    return ["tokens", time_s, rows]
            case ["step", columns]:
                self._columns = columns
                self._num_steps += 1
            case ["end", row, _, time_s]:
                self._time_s = time_s
                del self._requests[row]
            case ["joined", rows, next_row, next_step]:
                requests = self._requests.values()
                self._requests = dict(zip(rows, requests, strict=True))
                self._scheduled = [rows[local] for local in self._scheduled]
                self._num_rows, self._num_steps = next_row, next_step
        return event

    def snapshot(self) -> list[list[Any]]:
        """A log that begins with the requests that are here now, as if everything had just happened.

        Its last line says which of the server's rows those are, and which numbers of requests and steps come next.
        """
        assert self._meta is not None, "a log begins with its meta line"
        self._spell_out = True
        # The order of the free queue is not followed, so a log that begins in the middle does not state one.
        meta = {key: value for key, value in self._meta.items() if key != "initial_free" or not self._num_steps}
        events: list[list[Any]] = [["meta", meta]]
        events += [[*request.arrival[:2], self._time_s, *request.arrival[3:]] for request in self._requests.values()]
        memory: list[list[Any]] = []
        tokens, held = [], set[int]()
        for local, request in enumerate(self._requests.values()):
            shared = next((index for index, block in enumerate(request.table) if block not in held), len(request.table))
            held.update(request.table)
            if shared:
                memory.append(["share", local, 0, request.table[:shared]])
            if request.table[shared:]:
                memory.append(["append", local, shared, request.table[shared:]])
            if request.computed:
                tokens.append([local, 0, request.computed])
        if memory:
            columns = self._columns | {
                "start_s": self._time_s,
                "prefill_tokens": 0,
                "decode_tokens": sum(row[-1] for row in tokens),
                "num_scheduled": len(tokens),
                "running": len(tokens),
                "waiting": len(self._requests) - len(tokens),
                "preempted": 0,
                "free_units": self._meta["pool"]["num_units"] - len(held),
            }
            events += [["seq"], *memory, ["tokens", self._time_s, tokens], ["step", columns]]
            events += [["seq"], ["output", 0, self._time_s]]
        events.append(["joined", list(self._requests), self._num_rows, self._num_steps])
        return events

    def _schedule(self, time_s: float, rows: list[list[int]]) -> None:
        self._time_s, self._spell_out = time_s, False
        self._scheduled = [row for row, _, _ in rows]
        for row, before, count in rows:
            self._requests[row].computed = before + count
