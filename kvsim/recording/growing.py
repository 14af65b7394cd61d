"""Tables of a recording that grow row by row during a run. `RecordingBuilder` fills them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.tables import ColumnTable, IntArray, Memory, MemoryKind, Requests, Schedule, Steps, text_column
from kvsim.workload import Ragged

_ALL = slice(None)
_MIXED = "the number of known tokens should be given in every step or in none"


class GrowingTable:
    """Growing table of numbers. A subclass adds columns of texts and lists."""

    __slots__ = ("_first_column", "_specs", "columns")

    def __init__(self, table: type[ColumnTable]) -> None:
        self._specs = {name: spec for name, spec in table.columns() if not spec.dtype.startswith(("list", "str"))}
        self.columns: dict[str, array[Any]] = {
            name: array("d" if spec.dtype == "float64" else "q") for name, spec in self._specs.items()
        }
        """Columns by name. An optional column is empty until it gets its first value."""
        self._first_column = next(iter(self.columns))

    def __len__(self) -> int:
        return len(self.columns[self._first_column])

    def append(self, *values: float) -> None:
        """Add a row. `values` are in the order of the columns."""
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value if column.typecode == "d" else int(value))

    def check_row(self, columns: Mapping[str, Any], given_elsewhere: Iterable[str]) -> None:
        """Check that the values in `columns` are numbers, and that the same columns are present as in earlier rows.

        Columns in `given_elsewhere` are not checked, because the caller sets them itself.

        Raises:
            ValueError: a value has a wrong type, a column is missing that is required or that earlier rows have, or a
                column is given that earlier rows lack.
        """
        for name, spec in self._specs.items():
            if name in given_elsewhere:
                continue
            is_given, num_filled = name in columns, len(self.columns[name])
            begins_late = is_given and num_filled < len(self)
            is_lost = not is_given and (num_filled > 0 or not spec.optional)
            if begins_late or is_lost:
                raise ValueError(f"{name} is missing in this step or in those before it")
            numbers = int | float if spec.dtype == "float64" else int
            # A bool is an int in Python.
            if is_given and (not isinstance(columns[name], numbers) or isinstance(columns[name], bool)):
                raise ValueError(f"{name} should be a number")

    def rows(self, chosen: slice | IntArray = _ALL) -> dict[str, Any]:
        """Return the columns of the `chosen` rows as arrays of the declared types.

        Raises:
            RecordingError: a number does not fit into the type of its column.
        """
        rows = {}
        for name, spec in self._specs.items():
            if self.columns[name] or not spec.optional:
                wide = np.asarray(self.columns[name])[chosen]
                rows[name] = wide.astype(spec.dtype)
                if wide.dtype.kind == "i" and (rows[name] != wide).any():
                    at = int(np.argmax(rows[name] != wide))
                    row = int(np.arange(len(self))[chosen][at])
                    raise RecordingError(f"{name} of row {row} is {wide[at]}, which no run reaches.")
        return rows


class GrowingRequests(GrowingTable):
    """Growing table of requests. Any row may change until the end of the run."""

    __slots__ = ("_hashes", "_ids", "_offsets")

    def __init__(self) -> None:
        super().__init__(Requests)
        self._ids: list[str] = []
        self._hashes, self._offsets = array("q"), array("q", [0])

    @property
    def num_hashes(self) -> int:
        """Number of prompt hashes of all requests together."""
        return len(self._hashes)

    def add(self, name: str, prompt_hashes: Iterable[int], **columns: float) -> int:
        """Add a request and return its row. A column that is not passed gets 0.

        An optional column stays empty until a request has a value other than 0; then all earlier rows get 0.
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

    def to_table(self, chosen: IntArray | None = None) -> Requests:
        """Return a table of the requests in the rows `chosen`; of all requests if it is None."""
        if chosen is None:
            hashes = Ragged(np.array(self._hashes), np.array(self._offsets), np.int64)
            return Requests(id=text_column(self._ids, len(self._ids)), prompt_hashes=hashes, **self.rows())
        ids = [self._ids[row] for row in chosen.tolist()]
        hashes_by_row = [self._hashes[self._offsets[row] : self._offsets[row + 1]] for row in chosen.tolist()]
        hashes = Ragged.from_rows(hashes_by_row, np.int64)
        return Requests(id=text_column(ids, len(ids)), prompt_hashes=hashes, **self.rows(chosen))


class GrowingSteps(GrowingTable):
    """Growing table of steps. The last steps may have no output yet."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Steps)

    def to_table(self, next_seq: int, last_token_s: float, first: int = 0) -> Steps:
        """Return the steps from row `first` on. Steps in flight get an output.

        These outputs get the sequence numbers from `next_seq` on. Their time is the largest start or end of the
        returned steps, or `last_token_s` if that is later.
        """
        steps = self.rows(slice(first, None))
        awaited = steps["output_seq"] < 0
        steps["output_seq"][awaited] = next_seq + np.arange(awaited.sum())
        latest_s = (np.nanmax(steps["end_s"], initial=0.0), steps["start_s"].max(initial=0.0), last_token_s)
        steps["end_s"][awaited] = max(latest_s)
        return Steps(**steps)


class GrowingSchedule(GrowingTable):
    """Growing table of the schedule. A row is for one request, in consecutive steps of equally many tokens.

    The last row of a request that has not ended is open: `add` extends it if the next step computes as many tokens. In
    a run with speculative decoding, each row is for one step.
    """

    __slots__ = ("_before", "_known", "_late", "_open_row", "_repeat", "_request", "_step", "_tokens")

    def __init__(self) -> None:
        super().__init__(Schedule)
        self._open_row: dict[int, int] = {}
        # `add` is called for every request of every step: looking up columns by name would double its time.
        self._step, self._request = self.columns["step"], self.columns["request"]
        self._before, self._tokens = self.columns["computed_before"], self.columns["tokens"]
        self._repeat, self._known = self.columns["repeat"], self.columns["known"]
        # Columns that `fill_in` sets after the step.
        self._late = tuple(self.columns[name] for name in ("outputs", "proposed"))

    def add(
        self, step: int, request: int, computed_before: int, tokens: int, repeat: int, known: int | None = None
    ) -> None:
        """Record that `request` computes `tokens` tokens in `step` and in each of the next `repeat - 1` steps.

        `computed_before` is the number of its tokens that are computed before `step`. `known` is the number of its
        tokens with known values in a run with speculative decoding, and None in other runs. If `known` is given,
        `repeat` must be 1.

        Raises:
            ValueError: `known` is given, and earlier rows lack it; or the reverse.
        """
        open_row = self._open_row.get(request)
        if known is not None:
            if len(self._known) < len(self._step):
                raise ValueError(_MIXED)
            self._known.append(known)
        elif self._known:
            raise ValueError(_MIXED)
        elif open_row is not None:
            times = self._repeat[open_row]
            if (
                self._tokens[open_row] == tokens
                and self._step[open_row] + times == step
                and self._before[open_row] + tokens * times == computed_before
            ):
                self._repeat[open_row] = times + repeat
                return
        self._open_row[request] = len(self._step)
        self._step.append(step)
        self._request.append(request)
        self._before.append(computed_before)
        self._tokens.append(tokens)
        self._repeat.append(repeat)
        for column in self._late:
            if column:
                column.append(0)

    def fill_in(self, name: str, step: int, numbers: Mapping[int, int]) -> None:
        """Set the column `name` in each row of `step` to its request's number in `numbers`, or else to 0."""
        column = self.columns[name]
        column.extend([0] * (len(self) - len(column)))
        for row in range(bisect_left(self._step, step), bisect_right(self._step, step)):
            column[row] = numbers.get(self._request[row], 0)

    def add_decode(self, requests: Iterable[int], step: int) -> None:
        """Record that `step` computes one token for each of `requests`. Step `step - 1` must also have computed tokens
        for each of these requests.

        Raises:
            ValueError: the run has speculative decoding.
        """
        for request in requests:
            row = self._open_row[request]
            if self._known:
                raise ValueError(_MIXED)
            if self._tokens[row] == 1:
                self._repeat[row] += 1
            else:
                self.add(step, request, self._before[row] + self._tokens[row] * self._repeat[row], 1, 1)

    def end(self, request: int) -> None:
        """Record that `request` will not be scheduled again."""
        self._open_row.pop(request, None)

    @property
    def open_rows(self) -> IntArray:
        """Indices of the rows that later steps may still extend, ascending."""
        return np.sort(np.fromiter(self._open_row.values(), np.int64, len(self._open_row)))

    def last_step(self, rows: IntArray) -> IntArray:
        """Return the last step that each of the rows with the indices `rows` covers at present."""
        last: IntArray = np.asarray(self.columns["step"])[rows] + np.asarray(self.columns["repeat"])[rows] - 1
        return last

    def to_table(self, num_steps: int, chosen: slice | IntArray = _ALL) -> Schedule:
        """Return the rows `chosen`, by default all, cut off before step `num_steps`.

        A row may reach step `num_steps`, because a log may end before that step is complete.
        """
        columns = self.rows(chosen)
        steps_left = num_steps - columns["step"]
        if "repeat" in columns:
            columns["repeat"] = np.minimum(columns["repeat"], steps_left)
        return Schedule(**{name: values[steps_left > 0] for name, values in columns.items()})


class GrowingMemory(GrowingTable):
    """Growing table of memory events: a row for each change of who holds units. Rows never change."""

    __slots__ = ("_has_groups", "has_repeats")

    def __init__(self) -> None:
        super().__init__(Memory)
        self._has_groups = False  # whether the column `group` is filled, from the first group other than 0
        self.has_repeats = False
        """True if rows have the column `repeat`, the number of steps in which an allocation is repeated. Set it before
        the first row is added.
        """

    def add_units(
        self, seq: int, step: int, kind: MemoryKind, request: int, position: int, units: Iterable[int], group: int = 0
    ) -> None:
        """Add a row for each range of consecutive addresses in `units`. `position` is the first unit's table index."""
        begin, length = -1, 0
        for unit in units:
            if unit == begin + length:
                length += 1
                continue
            if length:
                self.add(seq, step, kind, request, position, address=begin, length=length, group=group)
                position += length
            begin, length = unit, 1
        if length:
            self.add(seq, step, kind, request, position, address=begin, length=length, group=group)

    def add(
        self,
        seq: int,
        step: int,
        kind: MemoryKind,
        request: int,
        position: int,
        *,
        address: int,
        length: int,
        requested: int | None = None,
        cached: int = 0,
        repeat: int = 1,
        group: int = 0,
    ) -> None:
        """Add one row for `length` consecutive units from `address` on.

        `requested` is the number of units that the request asked for; None if it asked for all `length` units. After a
        release, the first `cached` units stay in the prefix cache. The row is for `repeat` consecutive steps, each of
        which adds `length` units.
        """
        columns = self.columns
        if group and not self.columns["group"]:
            columns["group"].extend([0] * len(self))
            self._has_groups = True
        if self._has_groups:
            columns["group"].append(group)
        columns["seq"].append(seq)
        columns["step"].append(step)
        columns["kind"].append(kind)
        columns["request"].append(request)
        columns["position"].append(position)
        columns["address"].append(address)
        columns["length"].append(length)
        columns["requested"].append(length if requested is None else requested)
        columns["cached"].append(cached)
        if self.has_repeats:
            columns["repeat"].append(repeat)

    def to_table(self, first: int = 0) -> Memory:
        """Return the rows from index `first` on."""
        return Memory(**self.rows(slice(first, None)))
