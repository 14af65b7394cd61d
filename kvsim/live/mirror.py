"""Track the state of a server from its event log, so that a new log can begin in the middle.

The process that serves viewers (`kvsim.capture.viewers`) begins a new log for each viewer that joins; the engine need
not make snapshots for it. A viewer begins a new log when it starts a new window, without a request to the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CACHED = "initial_cached"
"""Key in the first line of a log that begins in the middle: the free blocks with a cached prefix."""
_COMPUTED = "initial_computed"
"""Key in that line: the largest number of tokens computed so far for each present request."""


@dataclass(slots=True)
class _LiveRequest:
    """Request that has arrived and not ended."""

    arrival: list[Any]
    """The request's event of kind `arrive`."""
    table: list[int] = field(default_factory=list)
    """Block table of the request."""
    computed: int = 0
    """Number of tokens with KV in the blocks, including the current step."""
    admission: int = 0
    """Number of the admission that gave the request its first block."""
    most: int = 0
    """Largest `computed` so far; a preemption resets `computed` but not this."""


class Mirror:
    """State of a server, updated by each event of its log."""

    def __init__(self) -> None:
        self._meta: dict[str, Any] | None = None
        self._requests: dict[int, _LiveRequest] = {}
        """Requests by the server's row number, in order of arrival."""
        self._num_rows = self._num_steps = self._num_admissions = 0
        self._scheduled: list[int] = []
        """Rows of the requests in the last step."""
        self._holders: dict[int, int] = {}
        """Number of requests that hold each block."""
        self._cached: set[int] = set()
        """Free blocks with a cached prefix."""
        self._computed_before: Sequence[int] = ()
        """Tokens computed before the snapshot for each of its requests, while the snapshot is read."""
        self._columns: dict[str, float] = {}
        """Columns of the last step."""
        self._time_s = 0.0
        self._spell_out = False
        """True if the next `again` has to be replaced by `tokens`, see `apply`."""

    @property
    def begun(self) -> bool:
        """Whether the log has its first line."""
        return self._meta is not None

    @property
    def num_steps(self) -> int:
        """Number of steps of the server."""
        return self._num_steps

    @property
    def rows(self) -> list[int]:
        """Server's numbers of the present requests, in order of arrival."""
        return list(self._requests)

    def apply(self, event: list[Any]) -> list[Any]:
        """Apply one event, and return the event to forward.

        An `again` after a snapshot is replaced by its rows, since the new log lacks the step that `again` repeats.
        """
        match event:
            case ["meta", meta]:
                self._meta = meta
                self._cached = set(meta.get(_CACHED, ()))
                self._computed_before = meta.get(_COMPUTED, ())
            case ["arrive", _, time_s, *_]:
                self._time_s = time_s
                before = self._computed_before[self._num_rows] if self._num_rows < len(self._computed_before) else 0
                self._requests[self._num_rows] = _LiveRequest(event, most=before)
                self._num_rows += 1
            case ["append" | "share", row, position, blocks]:
                request = self._requests[row]
                if not request.table:
                    self._num_admissions += 1
                    request.admission = self._num_admissions
                request.table[position:] = blocks
                self._take(blocks)
            case ["release", row, _, num_cached, *_]:
                request = self._requests[row]
                self._give_back(request.table, num_cached)
                request.table, request.computed = [], 0
            case ["evict", blocks]:
                self._cached.difference_update(blocks)
            case ["tokens", time_s, rows]:
                self._spell_out = False
                self._schedule(time_s, rows)
            case ["again", time_s]:
                rows = [[row, self._requests[row].computed, 1] for row in self._scheduled]
                self._schedule(time_s, rows)
                if self._spell_out:
                    self._spell_out = False
                    return ["tokens", time_s, rows]
            case ["step", columns]:
                self._columns = columns
                self._num_steps += 1
            case ["end", row, _, time_s]:
                self._time_s = time_s
                del self._requests[row]
            case ["joined", rows, next_row, next_step]:
                self._computed_before = ()
                requests = self._requests.values()
                self._requests = dict(zip(rows, requests, strict=True))
                self._scheduled = [rows[local] for local in self._scheduled]
                self._num_rows, self._num_steps = next_row, next_step
        return event

    def snapshot(self) -> list[list[Any]]:
        """Return a log that brings a new reader to the current state.

        In it, the present requests arrive and get their blocks in one step. Its last event states the rows of these
        requests on the server, and the next numbers of requests and steps.
        """
        assert self._meta is not None, "a log begins with its meta line"
        self._spell_out = True
        meta = self._meta
        if self._num_steps:
            # The order of the free queue is not tracked, so the new log lacks it.
            meta = {key: value for key, value in meta.items() if key != "initial_free"} | {
                _CACHED: sorted(self._cached),
                _COMPUTED: [request.most for request in self._requests.values()],
            }
        events: list[list[Any]] = [["meta", meta]]
        events += [[*request.arrival[:2], self._time_s, *request.arrival[3:]] for request in self._requests.values()]
        memory: list[list[Any]] = []
        held = set[int]()
        # In order of admission: the request that was admitted first allocates a block, later ones share it.
        for local, request in sorted(enumerate(self._requests.values()), key=lambda entry: entry[1].admission):
            shared = next((index for index, block in enumerate(request.table) if block not in held), len(request.table))
            held.update(request.table)
            if shared:
                memory.append(["share", local, 0, request.table[:shared]])
            if request.table[shared:]:
                memory.append(["append", local, shared, request.table[shared:]])
        tokens = [[row, 0, request.computed] for row, request in enumerate(self._requests.values()) if request.computed]
        if memory:
            columns = self._columns | {
                "start_s": self._time_s,
                "prefill_tokens": sum(row[-1] for row in tokens),
                "decode_tokens": 0,
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

    def _take(self, blocks: list[int]) -> None:
        for block in blocks:
            self._holders[block] = self._holders.get(block, 0) + 1
        self._cached.difference_update(blocks)

    def _give_back(self, table: list[int], num_cached: int) -> None:
        """Release the blocks of a table; the first `num_cached` keep a prefix."""
        for position, block in enumerate(table):
            holders = self._holders.pop(block) - 1
            if holders:
                self._holders[block] = holders
            elif position < num_cached:
                self._cached.add(block)

    def _schedule(self, time_s: float, rows: list[list[int]]) -> None:
        self._time_s = time_s
        self._scheduled = [row for row, _, _ in rows]
        requests = self._requests
        for row, before, count in rows:
            request = requests[row]
            request.computed = computed = before + count
            request.most = max(request.most, computed)
