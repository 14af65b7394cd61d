"""Events of an engine as columns, so that two engines are compared by a single pass over arrays.

Events are ordered by moment: the index of an event of the recording, such as an arrival, a scheduled step or a
processed output (`timeline`). Moments are not times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.engine.ownership import MemoryKind
from kvsim.recording.order import expanded
from kvsim.recording.tables import ImageEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.recording.tables import IntArray

Rows = npt.NDArray[np.int64]
Change: TypeAlias = tuple[int, int, int, int, int]
"""Change of a block table: kind (`MemoryKind`), request, index in the table, block, KV-cache group.

For the release of a whole table, the index is `WHOLE_TABLE`. In place of the block it has the number of blocks, or
`UNKNOWN_LENGTH`.
"""
UNKNOWN_LENGTH = 0
WHOLE_TABLE = -1


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """Events of one engine in five tables of integers.

    The first column of each is the moment, in ascending order: the index of an event of the recording, not a time.
    """

    steps: Rows
    """int[n, 5], one row per scheduled step.

    Columns: moment; numbers of running, waiting and preempted sequences; number of free blocks, or -1 if not compared.
    """
    batch: Rows
    """int[n, 4], one row per scheduled request, in order of scheduling.

    Columns: moment, request, number of tokens that the step computes, number of tokens computed before.
    """
    changes: Rows
    """int[n, 6], one row per change of a block table: moment, and the five numbers of a `Change`."""
    evicted: Rows
    """int[n, 2], one row per block whose prefix is evicted: moment, block."""
    encoder: Rows
    """int[n, 4], one row per event of the encoder cache: moment, kind (`ImageEventKind`), request, image.

    The request is -1 if the image is computed or evicted.
    """

    def first_difference(self, other: EventColumns) -> int | None:
        """Return the first moment at which the events of two engines differ; None if all are equal."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in EventColumns.__slots__)
        return min((moment for pair in pairs if (moment := first_moment(*pair)) is not None), default=None)

    def has_step(self, moment: int) -> bool:
        """Tell whether a step was scheduled at `moment`."""
        return bool(_at(self.steps, moment))

    def step_at(self, moment: int, names: Sequence[str]) -> dict[str, Any]:
        """Return what the step at `moment` decided, and its changes of block tables, in words for a report.

        `names` are those of the requests.
        """
        ((running, waiting, preempted, free),) = _at(self.steps, moment)
        batch = _at(self.batch, moment)
        return {
            "preempted": preempted,
            "scheduled": [f"{names[request]}: {tokens} after {before}" for request, tokens, before in batch],
            "memory": changes_in_words(self.changes_at(moment), names),
            "evicted": self.evicted_at(moment),
            "running": running,
            "waiting": waiting,
            "free": free,
        } | self.images_at(moment, names)

    def images_at(self, moment: int, names: Sequence[str]) -> dict[str, Any]:
        """Return the events of the encoder cache at `moment`, in words for a report; empty if there are none."""
        verbs = {kind: kind.name.lower().replace("_", " ") for kind in ImageEventKind}
        words = [
            f"{verbs[ImageEventKind(kind)]} image {image}" + (f" by {names[request]}" if request >= 0 else "")
            for kind, request, image in _at(self.encoder, moment)
        ]
        return {"images": words} if words else {}

    def changes_at(self, moment: int) -> list[Change]:
        """Return the changes of block tables at `moment`."""
        return [tuple(row) for row in _at(self.changes, moment)]  # type: ignore[misc]

    def evicted_at(self, moment: int) -> list[int]:
        """Return the blocks whose prefixes were evicted at `moment`, in order."""
        return [block for (block,) in _at(self.evicted, moment)]

    def before(self, moment: int) -> EventColumns:
        """Return the events before `moment`."""
        return EventColumns(*(rows[: between(rows[:, 0], 0, moment)[1]] for rows in self._tables()))

    def _tables(self) -> tuple[Rows, ...]:
        return self.steps, self.batch, self.changes, self.evicted, self.encoder


def between(column: IntArray, begin: int, end: int) -> tuple[int, int]:
    """Return the begin and the end of the slice of an ascending column that has values in [begin, end)."""
    first, last = np.searchsorted(column, np.array((begin, end), column.dtype))
    return int(first), int(last)


def joined(parts: list[EventColumns]) -> EventColumns:
    """Concatenate the events of consecutive ranges of moments."""
    if len(parts) == 1:
        return parts[0]
    empty = EventColumns(*(np.empty((0, width), np.int64) for width in (5, 4, 6, 2, 4)))
    every = zip(*(each._tables() for each in (empty, *parts)), strict=True)
    return EventColumns(*(np.concatenate(tables) for tables in every))


def stacked(*columns: IntArray) -> Rows:
    """Return integer columns side by side: int[rows, columns]."""
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


def block_by_block(
    moment: IntArray, kind: IntArray, request: IntArray, position: IntArray, address: IntArray, length: IntArray,
    group: IntArray, *, with_lengths: bool,
) -> Rows:  # fmt: skip
    """Return changes of block tables and evictions, one row for each block: int[n, 6], as `EventColumns.changes`.

    Row i of the arguments is about `length[i]` consecutive blocks: from index `position[i]` of the table on, and from
    block `address[i]` on. The release of a whole table stays one row. In place of the block, it has the number of
    blocks if `with_lengths`, otherwise `UNKNOWN_LENGTH`.
    """
    released = (kind == MemoryKind.RELEASE) & (address == WHOLE_TABLE)
    row, offset = expanded(np.where(released, 1, length))
    block = np.where(released, length if with_lengths else UNKNOWN_LENGTH, address)[row] + offset
    position = np.where(released, WHOLE_TABLE, position)[row] + offset
    return stacked(moment[row], kind[row], request[row], position, block, group[row])


def split_evictions(changes: Rows) -> tuple[Rows, Rows]:
    """Split the result of `block_by_block` into changes of block tables, and evictions: int[n, 2], moment and block."""
    evicted = changes[:, 1] == MemoryKind.EVICT
    return changes[~evicted], changes[evicted][:, [0, 4]]


def first_moment(ours: Rows, theirs: Rows) -> int | None:
    """Return the first moment at which two tables of events differ; None if all rows are equal."""
    if np.array_equal(ours, theirs):
        return None
    both = min(len(ours), len(theirs))
    differs = (ours[:both] != theirs[:both]).any(axis=1)
    if differs.any():
        first = int(np.argmax(differs))
        return int(min(ours[first, 0], theirs[first, 0]))
    return int((ours if len(ours) > both else theirs)[both, 0])


def _at(rows: Rows, moment: int) -> list[list[int]]:
    begin, end = between(rows[:, 0], moment, moment + 1)
    return [list(row) for row in rows[begin:end, 1:].tolist()]


def changes_in_words(changes: Sequence[Change], names: Sequence[str]) -> list[str]:
    """Return a text for each change. `r5[12] gets 345` means that block 345 becomes entry 12 of request r5's table.

    For KV-cache groups after the first, the index of the group follows the request: `r5/2[12]`.
    """
    verbs = {MemoryKind.APPEND: "gets", MemoryKind.SHARE: "shares", MemoryKind.RELEASE: "gives back"}
    words = []
    for kind, request, position, block, group in changes:
        table = f"{names[request]}/{group}" if group else names[request]
        if kind == MemoryKind.RELEASE and position == WHOLE_TABLE:
            words.append(f"{table} gives back its table ({block or '?'} blocks)")
        else:
            words.append(f"{table}[{position}] {verbs[MemoryKind(kind)]} {block}")
    return words
