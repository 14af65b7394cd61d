"""Functions with which all `check_*` modules state the rules of a recording, each for a whole column at once.

An error names the file, the first row that breaks the rule, and the rule. A rule for only some rows is written as
`~applies | holds`, which is true for all other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import Pool
from kvsim.recording.order import in_parts
from kvsim.recording.tables import ColumnTable, IntArray, Memory
from kvsim.workload import LONGEST_S

CLOCK_S = 1e-6
"""Largest difference in seconds between two recorded times of one event, due to rounding."""
NO_LIMIT = 1 << 40
"""Value of a limit that is not set: above all numbers of tokens or requests in a recording."""


def require(holds: np.ndarray, file: Path, rule: str, rows: np.ndarray | None = None) -> None:
    """Raise a RecordingError with the message `rule` if an entry of `holds` is False. The error names the row of the
    first False entry.

    `holds` has one entry for each row of the file; with `rows`, one for each of these row indices.
    """
    if not holds.all():
        row = np.argmin(holds) if rows is None else rows[~holds].min()
        raise RecordingError(f"{file}, row {int(row)}: {rule}.")


def agree(
    stated: np.ndarray, found: np.ndarray, file: Path, column: str, source: str, rows: np.ndarray | None = None,
    *, within: float = 0,
) -> None:  # fmt: skip
    """Raise a RecordingError if a `stated` value differs from the value `found` in another table. The error names the
    first such row.

    `stated` is the column `column` of `file`; with `rows`, only its values at these row indices. `found` follows from
    the file `source`. Differences up to `within` are no errors.
    """
    wrong = stated != found if not within else ~(np.abs(stated - found) <= within)
    if wrong.any():
        at = np.argmax(wrong) if rows is None else np.flatnonzero(wrong)[np.argmin(rows[wrong])]
        row = at if rows is None else rows[at]
        raise RecordingError(
            f"{file}, row {int(row)}: {column} says {stated[at]:,.15g}, and {source} makes it {found[at]:,.15g}."
        )


def require_of(holds: Callable[[slice], np.ndarray], table: ColumnTable, file: Path, rule: str) -> None:
    """Check a rule as `require` does, for one part of the table at a time.

    It is for rules whose intermediate results would take more memory than the columns. `holds` is called with a slice
    of rows, and returns a bool for each.
    """
    for rows in in_parts(len(table)):
        kept = holds(rows)
        if not kept.all():
            raise RecordingError(f"{file}, row {rows.start + int(np.argmin(kept))}: {rule}.")


def require_inside(memory: Memory, pool: Pool, chosen: np.ndarray, file: Path) -> None:
    """Check that the units of the `chosen` rows of `memory` lie inside the pool."""
    assert pool.num_units is not None
    end = pool.first_unit + pool.num_units

    def is_inside(rows: slice) -> np.ndarray:
        address, units = memory.address[rows], memory.length[rows].astype(np.int64)
        if memory.repeat is not None:
            units *= memory.repeat[rows]
        return np.asarray(~chosen[rows] | ((address >= pool.first_unit) & (address + units <= end)))

    require_of(is_inside, memory, file, f"the units lie outside the pool [{pool.first_unit}, {end})")


def is_time(values: np.ndarray) -> np.ndarray:
    """Tell, for each value, whether it is a finite time from -`LONGEST_S` to `LONGEST_S` seconds."""
    is_near: np.ndarray = np.abs(values) <= LONGEST_S
    return is_near


def within(values: IntArray, size: int) -> np.ndarray:
    """Tell, for each value, whether it is at least 0 and below `size`."""
    return (values >= 0) & (values < size)


def rises(values: np.ndarray, compare: np.ufunc = np.greater_equal, *, least: float = 0) -> np.ndarray:
    """Tell, for each value, whether it is at least the value before it; with `compare=np.greater`, if it is larger.

    The first value is compared with `least`: it must be at least that.
    """
    holds = np.ones(len(values), np.bool_)
    holds[:1] = values[:1] >= least
    compare(values[1:], values[:-1], out=holds[1:])
    return holds


def in_order(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Tell, for each pair of times, whether the first is at most the second. A NaN counts as in order."""
    holds: np.ndarray = ~(earlier > later)  # not `earlier <= later`, which is false for NaN
    return holds
