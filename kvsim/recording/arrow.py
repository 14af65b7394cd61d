"""A table of a recording as one of pyarrow's, with the types that it has in a file.

Import this where such a table is asked for and not before: pyarrow costs more than the rest of kvsim together.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

import pyarrow as pa

from kvsim.files.arrow_columns import from_numpy, from_texts
from kvsim.workload import Ragged


class Stored(Protocol):
    """How a column is stored."""

    @property
    def dtype(self) -> str:
        """The column's numpy type."""

    @property
    def names(self) -> type[IntEnum] | None:
        """The enumeration whose lower-case names stand in the file."""


class Columns(Protocol):
    """Columns by name, some of which may be None."""

    def columns(self) -> Iterator[tuple[str, Stored]]:
        """Every column's name and how it is stored, in file order."""


def to_arrow(table: Columns) -> pa.Table:
    """The columns of `table` that are there, as they stand in its file."""
    arrays: dict[str, pa.Array] = {}
    for name, spec in table.columns():
        value = getattr(table, name)
        if value is None:
            continue
        if isinstance(value, Ragged):
            arrays[name] = pa.ListArray.from_arrays(
                from_numpy(value.offsets, pa.int32()), from_numpy(value.values, pa.int64())
            )
        elif spec.names is not None:
            words = from_texts([member.name.lower() for member in spec.names])
            arrays[name] = pa.DictionaryArray.from_arrays(from_numpy(value, pa.int8()), words).cast(pa.string())
        elif spec.dtype == "str":
            arrays[name] = from_texts(value.tolist())
        else:
            arrays[name] = from_numpy(value, pa.type_for_alias(spec.dtype))
    return pa.table(arrays)
