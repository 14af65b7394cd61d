"""Rules of a recording, checked by column; an error names the first row of the file that breaks a rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.order import in_parts
from kvsim.recording.tables import ColumnTable, IntArray
from kvsim.workload import LONGEST_S

CLOCK_S = 1e-6
"""Seconds by which two readings of one clock may differ when they are written down."""


def require(holds: np.ndarray, file: Path, rule: str, rows: np.ndarray | None = None) -> None:
    """Raise for the first row that does not hold; `rows` says which rows of the file were looked at, if not all.

    Raises:
        RecordingError: naming `file` and the row; `rule` is what should be so.
    """
    if not holds.all():
        row = np.argmin(holds) if rows is None else rows[~holds].min()
        raise RecordingError(f"{file}, row {int(row)}: {rule}.")


def agree(
    stated: np.ndarray, found: np.ndarray, file: Path, column: str, source: str, rows: np.ndarray | None = None,
    *, within: float = 0,
) -> None:  # fmt: skip
    """Raise for the first row of which `column` says something else than what was `found` in another table.

    Args:
        stated: what the column says.
        found: what it should say.
        file: the file of the column.
        column: its name.
        source: where `found` comes from.
        rows: the rows of the file that were looked at, if not all.
        within: how far two numbers may be apart that are the same.

    Raises:
        RecordingError: naming `file`, the row, and both numbers.
    """
    wrong = stated != found if not within else ~(np.abs(stated - found) <= within)
    if wrong.any():
        at = np.argmax(wrong) if rows is None else np.flatnonzero(wrong)[np.argmin(rows[wrong])]
        row = at if rows is None else rows[at]
        raise RecordingError(
            f"{file}, row {int(row)}: {column} says {stated[at]:,.15g}, and {source} makes it {found[at]:,.15g}."
        )


def require_of(holds: Callable[[slice], np.ndarray], table: ColumnTable, file: Path, rule: str) -> None:
    """Raise as `require` does, for a rule that takes more memory than the column: it is asked of some rows at a time.

    Raises:
        RecordingError: naming `file` and the first row of which `holds` is not true.
    """
    for rows in in_parts(len(table)):
        found = holds(rows)
        if not found.all():
            raise RecordingError(f"{file}, row {rows.start + int(np.argmin(found))}: {rule}.")


def is_time(values: np.ndarray) -> np.ndarray:
    """Tell which values are finite times, from the first event to about thirty thousand years later."""
    found: np.ndarray = np.abs(values) <= LONGEST_S
    return found


def within(values: IntArray, size: int) -> np.ndarray:
    """Tell which values are at least 0 and below `size`."""
    return (values >= 0) & (values < size)


def rises(values: np.ndarray, than: np.ufunc = np.greater_equal, *, least: float = 0) -> np.ndarray:
    """Tell which of `values` are not less than the one before, as `than` compares them; the first with `least`."""
    found = np.ones(len(values), np.bool_)
    found[:1] = values[:1] >= least
    than(values[1:], values[:-1], out=found[1:])
    return found


def in_order(earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Tell where `earlier` is not after `later`, or one of the two did not happen (NaN)."""
    found: np.ndarray = ~(earlier > later)
    return found
