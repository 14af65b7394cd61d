"""Table of results with a row per run, for notebooks and terminals, convertible to Arrow and pandas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsim.display.text import html_text
from kvsim.errors import UsageError, described
from kvsim.recording.tables import as_pandas

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = {
    "policy": "policy",
    "output_tokens_per_s": "tokens/s",
    "mean_batch": "batch",
    "ttft_s.mean": "TTFT, s",
    "tpot_s.mean": "TPOT, s",
    "e2e_s.p99": "end to end p99, s",
    "num_preemptions": "preemptions",
    "num_refused": "refused",
    "waste.pool_percent.token": "tokens, % of the pool",
    "mean_occupancy": "occupancy",
    "error": "error",
}
"""Headings of the columns that are displayed, by the names of the columns. `to_arrow` has all columns."""


class Rows(Sequence[Mapping[str, Any]]):
    """Results with a row per run. A row maps the name of a column to its value; None where the run lacks it.

    The names of nested figures are joined by dots: "ttft_s.mean" is in seconds, "waste.pool_percent.token" in percent.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> None:
        """Store the mappings `rows`. The columns `first` are displayed before all others."""
        if not all(isinstance(row, Mapping) for row in _several("rows", rows)):
            raise UsageError("each of rows should be a mapping from the names of columns to values.")
        self._rows = tuple(rows)
        self._first = tuple(_several("first", first))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return Rows(self._rows[index], self._first) if isinstance(index, slice) else self._rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that at least one row has, in the order of their first occurrence."""
        return tuple(dict.fromkeys(name for row in self._rows for name in row))

    def to_arrow(self) -> pa.Table:
        """Return all columns as a `pyarrow.Table`, null where a row has no value."""
        import pyarrow as pa  # noqa: PLC0415  slower to import than the rest of kvsim together

        return pa.table({name: [row.get(name) for row in self._rows] for name in self.columns})

    def to_pandas(self) -> Any:
        """Return all columns as a `pandas.DataFrame`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return as_pandas(self.to_arrow())

    def __repr__(self) -> str:
        head, *body = ([str(cell) for cell in line] for line in self._shown())
        widths = [max(map(len, cells)) for cells in zip(head, *body, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)
        )

    def _repr_html_(self) -> str:
        head, *body = self._shown()
        names = "".join(f"<th>{html_text(name)}</th>" for name in head)
        lines = ("".join(f"<td>{html_text(cell)}</td>" for cell in line) for line in body)
        return f"<table><tr>{names}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"

    def _shown(self) -> list[list[str]]:
        """Return the displayed cells: a list of headings, then a list per row. Columns without values are left out."""
        names = dict.fromkeys(self._first)
        names |= dict.fromkeys(name for name in _SHOWN if any(row.get(name) not in (None, "") for row in self._rows))
        head = [_SHOWN.get(name, name.replace("_", " ")) for name in names]
        return [head, *([_formatted(row.get(name)) for name in names] for row in self._rows)]


def _several(name: str, values: Any) -> Any:
    """Check that the argument `name` is a sequence, but no text, and return it."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise UsageError(f"{name} should be a list, not {described(values)}.")
    return values


def _formatted(value: Any) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
