"""Tables of a recording that grow row by row during a run.

Each table knows which of its rows may still change. Earlier rows can be drained, so that memory does not grow with the
run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.tables import ColumnTable, IntArray, Memory, MemoryKind, Requests, Schedule, Steps, text_column
from kvsim.workload import Ragged

_ROWS_HELD = 1 << 16
"""Rows collected before draining pays off."""
_ALL = slice(None)


class GrowingTable:
    """Growing columns, except texts and lists."""

    __slots__ = ("_counted", "_full_at", "_specs", "columns", "first")

    def __init__(self, table: type[ColumnTable]) -> None:
        self._specs = {name: spec for name, spec in table.columns() if not spec.dtype.startswith(("list", "str"))}
        self.columns: dict[str, array[Any]] = {
            name: array("d" if spec.dtype == "float64" else "q") for name, spec in self._specs.items()
        }
        """Columns by name; an optional column stays empty if no value is reported."""
        self._counted = next(iter(self.columns))
        self.first = 0
        """Number of drained rows: the number of the first remaining row."""
        self._full_at = _ROWS_HELD

    def __len__(self) -> int:
        return len(self.columns[self._counted])

    @property
    def is_full(self) -> bool:
        """Whether final rows should be drained."""
        return len(self) >= self._full_at

    def extend(self, table: ColumnTable) -> None:
        """Add the rows of `table`."""
        for name, values in self.columns.items():
            column = getattr(table, name)
            if column is not None:
                values.frombytes(np.ascontiguousarray(column, values.typecode).tobytes())

    def check_row(self, columns: Mapping[str, Any], given_elsewhere: Iterable[str]) -> None:
        """Check that `columns`, with those `given_elsewhere`, form a row consistent with earlier rows."""
        for name, spec in self._specs.items():
            if name in given_elsewhere:
                continue
            given, had = name in columns, len(self.columns[name]) == len(self)
            if (not given and (not spec.optional or self.columns[name])) or (given and not had):
                raise ValueError(f"{name} is missing in this step or in those before it")
            kinds = int | float if spec.dtype == "float64" else int
            if given and (not isinstance(columns[name], kinds) or isinstance(columns[name], bool)):
                raise ValueError(f"{name} should be a number")

    def rows(self, chosen: slice | IntArray = _ALL) -> dict[str, Any]:
        """Return the columns of the `chosen` rows, by their current position, as arrays of the declared types."""
        rows = {}
        for name, spec in self._specs.items():
            if self.columns[name] or not spec.optional:
                wide = np.asarray(self.columns[name])[chosen]
                rows[name] = wide.astype(spec.dtype)
                if wide.dtype.kind == "i" and (rows[name] != wide).any():
                    at = int(np.argmax(rows[name] != wide))
                    row = self.first + int(np.arange(len(self))[chosen][at])
                    raise RecordingError(f"{name} of row {row} is {wide[at]}, which no run reaches.")
        return rows

    def take(self, end: int) -> dict[str, Any]:
        """Remove the first `end` rows, and return their columns."""
        rows = self.rows(slice(end))
        for column in self.columns.values():
            del column[:end]
        self.first += end
        self._full_at = len(self) + _ROWS_HELD
        return rows


class GrowingRequests(GrowingTable):
    """One row per request; any row may change until the end."""

    __slots__ = ("_hashes", "_ids", "_offsets")

    def __init__(self) -> None:
        super().__init__(Requests)
        self._ids: list[str] = []
        self._hashes, self._offsets = array("q"), array("q", [0])

    @property
    def num_hashes(self) -> int:
        """Block hashes of all prompts."""
        return len(self._hashes)

    def add(self, name: str, prompt_hashes: Iterable[int], **columns: float) -> int:
        """Add a request and return its row; missing columns are 0, and optional ones absent.

        An optional column is there from its first value that is not 0 on, with 0 in earlier rows.
        """
        row = len(self._ids)
        self._ids.append(name)
        self._hashes.extend(prompt_hashes)
        self._offsets.append(len(self._hashes))
        columns["request"] = row
        for column, values in self.columns.items():
            value = columns.get(column, 0)
            if not self._specs[column].optional or values:
                values.append(value)
            elif value:
                values.extend([0] * row)
                values.append(value)
        return row

    def extend(self, table: ColumnTable) -> None:
        """Add the rows of `table`."""
        assert isinstance(table, Requests)
        super().extend(table)
        self._ids.extend(table.id.tolist())
        self._offsets.frombytes((table.prompt_hashes.offsets[1:] + len(self._hashes)).tobytes())
        self._hashes.frombytes(table.prompt_hashes.values.tobytes())

    def so_far(self, chosen: IntArray | None = None) -> Requests:
        """Return all requests so far, or those in the rows `chosen`, as a table."""
        if chosen is None:
            hashes = Ragged(np.array(self._hashes), np.array(self._offsets), np.int64)
            return Requests(id=text_column(self._ids, len(self._ids)), prompt_hashes=hashes, **self.rows())
        ids = [self._ids[row] for row in chosen.tolist()]
        keys = [self._hashes[slice(*self._offsets[row : row + 2])] for row in chosen.tolist()]
        hashes = Ragged.from_rows(keys, np.int64)
        return Requests(id=text_column(ids, len(ids)), prompt_hashes=hashes, **self.rows(chosen))


class GrowingSteps(GrowingTable):
    """One row per step; the last steps have no output yet."""

    __slots__ = ("_last_end_s",)

    def __init__(self) -> None:
        super().__init__(Steps)
        self._last_end_s = 0.0  # latest end of the drained steps

    def take_final(self) -> Steps:
        """Drain the steps whose outputs have been processed."""
        awaited = np.flatnonzero(np.array(self.columns["output_seq"]) < 0)
        steps = Steps(**self.take(int(awaited[0]) if len(awaited) else len(self)))
        self._last_end_s = float(steps.end_s.max(initial=self._last_end_s))
        return steps

    def so_far(self, next_seq: int, heard_s: float, first: int = 0) -> Steps:
        """Return the steps from row `first`; steps without output end now, not before `heard_s`."""
        steps = self.rows(slice(first, None))
        awaited = steps["output_seq"] < 0
        steps["output_seq"][awaited] = next_seq + np.arange(awaited.sum())
        steps["end_s"][awaited] = max(
            np.nanmax(steps["end_s"], initial=self._last_end_s), steps["start_s"].max(initial=0.0), heard_s
        )
        return Steps(**steps)


class GrowingSchedule(GrowingTable):
    """One row per request and run of steps; the last row of a request extends until something else happens."""

    __slots__ = ("_before", "_known", "_late", "_open_row", "_repeat", "_request", "_step", "_tokens")

    def __init__(self) -> None:
        super().__init__(Schedule)
        self._open_row: dict[int, int] = {}
        # Every step adds all its requests: a lookup of columns by name would double the time.
        self._step, self._request = self.columns["step"], self.columns["request"]
        self._before, self._tokens = self.columns["computed_before"], self.columns["tokens"]
        self._repeat, self._known = self.columns["repeat"], self.columns["known"]
        self._late = tuple(self.columns[name] for name in ("outputs", "proposed"))

    def add(
        self, step: int, request: int, computed_before: int, tokens: int, repeat: int, known: int | None = None
    ) -> None:
        """Record that `request` computes `tokens` tokens in `step` and in each of the next `repeat - 1` steps.

        A row that says how many tokens were `known` is not extended.
        """
        open_row = self._open_row.get(request)
        if known is not None:
            self._known.append(known)
        elif open_row is not None:
            row = open_row - self.first
            times = self._repeat[row]
            if (
                self._tokens[row] == tokens
                and self._step[row] + times == step
                and self._before[row] + tokens * times == computed_before
            ):
                self._repeat[row] = times + repeat
                return
        self._open_row[request] = self.first + len(self._step)
        self._step.append(step)
        self._request.append(request)
        self._before.append(computed_before)
        self._tokens.append(tokens)
        self._repeat.append(repeat)
        for column in self._late:
            if column:
                column.append(0)

    def tell(self, name: str, step: int, numbers: Mapping[int, int]) -> None:
        """Fill a column that is known later with numbers of the requests that `step` computes; others have 0."""
        column = self.columns[name]
        column.extend([0] * (len(self) - len(column)))
        for row in range(bisect_left(self._step, step), bisect_right(self._step, step)):
            column[row] = numbers.get(self._request[row], 0)

    def go_on(self, requests: Iterable[int], step: int) -> None:
        """Record that each of `requests`, scheduled in the step before `step`, computes one more token in `step`."""
        for request in requests:
            row = self._open_row[request] - self.first
            if self._tokens[row] == 1:
                self._repeat[row] += 1
            else:
                self.add(step, request, self._before[row] + self._tokens[row] * self._repeat[row], 1, 1)

    def end(self, request: int) -> None:
        """Record that `request` will not be scheduled again."""
        self._open_row.pop(request, None)

    def take_final(self) -> Schedule:
        """Drain the rows before the first open row."""
        return Schedule(**self.take(min(self._open_row.values(), default=self.first + len(self)) - self.first))

    @property
    def open_rows(self) -> IntArray:
        """Rows that may still extend, ascending."""
        return np.sort(np.fromiter(self._open_row.values(), np.int64, len(self._open_row)))

    def last_step(self, rows: IntArray) -> IntArray:
        """Return the last step so far of each of `rows`."""
        last: IntArray = np.asarray(self.columns["step"])[rows] + np.asarray(self.columns["repeat"])[rows] - 1
        return last

    def so_far(self, num_steps: int, chosen: slice | IntArray = _ALL) -> Schedule:
        """Return the current rows, or those `chosen`, without steps beyond the first `num_steps`: a log may end inside
        a step.
        """
        columns = self.rows(chosen)
        steps_left = num_steps - columns["step"]
        if "repeat" in columns:
            columns["repeat"] = np.minimum(columns["repeat"], steps_left)
        return Schedule(**{name: values[steps_left > 0] for name, values in columns.items()})


class GrowingMemory(GrowingTable):
    """One row per change of ownership; rows never change."""

    __slots__ = ("_tells_groups", "tells_repeats")

    def __init__(self) -> None:
        super().__init__(Memory)
        self._tells_groups = False
        self.tells_repeats = False
        """Whether rows have a number of steps."""

    def add_runs(
        self, seq: int, step: int, kind: MemoryKind, request: int, position: int, units: Iterable[int], group: int = 0
    ) -> None:
        """Add one row per run of consecutive `units`."""
        begin, length = -1, 0
        for unit in units:
            if unit == begin + length:
                length += 1
                continue
            if length:
                self.add(seq, step, kind, request, position, begin, length, length, group=group)
                position += length
            begin, length = unit, 1
        if length:
            self.add(seq, step, kind, request, position, begin, length, length, group=group)

    def add(
        self,
        seq: int,
        step: int,
        kind: MemoryKind,
        request: int,
        position: int,
        address: int,
        length: int,
        requested: int,
        cached: int = 0,
        repeat: int = 1,
        group: int = 0,
    ) -> None:
        """Add one row for a run of units."""
        columns = self.columns
        if group and not self.columns["group"]:
            columns["group"].extend([0] * len(self))
            self._tells_groups = True
        if self._tells_groups:
            columns["group"].append(group)
        columns["seq"].append(seq)
        columns["step"].append(step)
        columns["kind"].append(kind)
        columns["request"].append(request)
        columns["position"].append(position)
        columns["address"].append(address)
        columns["length"].append(length)
        columns["requested"].append(requested)
        columns["cached"].append(cached)
        if self.tells_repeats:
            columns["repeat"].append(repeat)

    def take_final(self) -> Memory:
        """Drain all rows."""
        return Memory(**self.take(len(self)))

    def so_far(self, first: int = 0) -> Memory:
        """Return the rows from `first`."""
        return Memory(**self.rows(slice(first, None)))
