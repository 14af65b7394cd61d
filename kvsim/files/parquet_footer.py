"""Read the sizes that the footer of a Parquet file declares, without pyarrow, to refuse oversized files.

A library that trusts a footer allocates the declared sizes. And pyarrow ends the process, with an uncaught C++
exception, when it reads the metadata of a column whose statistics contradict its type. So this module reads the
footer's bytes itself: a Thrift structure in the compact protocol
(https://parquet.apache.org/docs/file-format/metadata/).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from kvsim.files.contents import open_file

_MAGIC = b"PAR1"
_I64, _LIST, _STRUCT = 6, 9, 12
"""Type numbers of Thrift's compact protocol."""
_FEW_VALUES, _VALUES_PER_BYTE = 100_000, 16
_FEW_UNPACKED, _UNPACKED_PER_BYTE = 1 << 26, 64
_DEEPEST = 32
"""Largest depth of nested structures. The footer of a Parquet file has six levels."""
_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_ROWS, _NUM_VALUES, _UNPACKED = 4, 1, 3, 3, 5, 6
"""Field numbers in Parquet's structures.

`_ROW_GROUPS` and `_NUM_ROWS` are of FileMetaData, `_COLUMNS` of RowGroup, `_META_DATA` of ColumnChunk, `_NUM_VALUES`
and `_UNPACKED` (uncompressed bytes) of ColumnMetaData.
"""


class DeclaredSizes(NamedTuple):
    """Sizes that the footer of a file declares."""

    num_rows: int
    num_values: list[int]
    """Number of values in each column, summed over all row groups."""
    unpacked_bytes: int
    """Uncompressed bytes of all columns."""
    least: int
    """Smallest declared number if any is negative, which shows that the file is damaged; otherwise 0."""


def declared(file: Path) -> DeclaredSizes | None:
    """Return the sizes that the footer of `file` declares; None if there is no readable Parquet footer."""
    with open_file(file) as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - 8))
        tail = opened.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length + 8 > size:
            return None
        opened.seek(size - 8 - length)
        footer = _Compact(opened.read(length))
    try:
        return _sizes(footer.struct(_FILE))
    except (IndexError, RecursionError):
        return None


def oversized(file: Path) -> str | None:
    """Return a clause about what is implausible in the footer of a file; None if nothing is.

    A footer is implausible if it cannot be followed, declares a negative number, or declares a size too large for that
    of the file. A column of equal values is small in a file and large in memory, so the limits are wide. Files of kvsim
    have at most about 6 values and 8 uncompressed bytes per byte of the file.
    """
    sizes, file_bytes = declared(file), file.stat().st_size
    if sizes is None:
        return "what cannot be followed in its footer"
    if sizes.least < 0:
        return "fewer values than none"
    most_values = max([sizes.num_rows, *sizes.num_values])
    if most_values > _FEW_VALUES + _VALUES_PER_BYTE * file_bytes:
        return f"{most_values:,} values in {file_bytes:,} bytes"
    if sizes.unpacked_bytes > _FEW_UNPACKED + _UNPACKED_PER_BYTE * file_bytes:
        return f"{sizes.unpacked_bytes:,} bytes packed into {file_bytes:,}"
    return None


def _sizes(document: Mapping[int, Any]) -> DeclaredSizes:
    num_values: list[int] = []
    unpacked = least = 0
    for group in document.get(_ROW_GROUPS, ()):
        for nth, column in enumerate(group.get(_COLUMNS, ())):
            about = column.get(_META_DATA, {})
            values, size = about.get(_NUM_VALUES, 0), about.get(_UNPACKED, 0)
            num_values += [0] * (nth + 1 - len(num_values))
            num_values[nth] += values
            unpacked += size
            least = min(least, values, size)
    num_rows = document.get(_NUM_ROWS, 0)
    return DeclaredSizes(num_rows, num_values, unpacked, min(least, num_rows))


class _Compact:
    """Reader of Thrift's compact protocol. It returns wanted fields, and skips all others."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self, wanted: Mapping[int, _Field], depth: int = 0) -> dict[int, Any]:
        """Read a structure at nesting `depth`. Return those of its fields that are `wanted` and have the expected type,
        by field number. All other fields are skipped.
        """
        if depth > _DEEPEST:
            raise RecursionError
        found, field = {}, 0
        while header := self._byte():
            field = field + (header >> 4) if header >> 4 else self.number()
            kind = header & 15
            if field in wanted and kind == wanted[field][0]:
                found[field] = wanted[field][1](self)
            else:
                self._skip(kind, depth + 1)
        return found

    def number(self) -> int:
        """Read a signed integer in zigzag encoding, where 0, -1, 1, -2, 2 are stored as 0, 1, 2, 3, 4."""
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def structs(self, wanted: Mapping[int, _Field]) -> list[dict[int, Any]]:
        kind, count = self._list()
        if kind == _STRUCT:
            return [self.struct(wanted) for _ in range(count)]
        for _ in range(count):
            self._skip_element(kind, 0)
        return []

    def _list(self) -> tuple[int, int]:
        header = self._byte()
        return header & 15, header >> 4 if header >> 4 < 15 else self._varint()

    def _skip(self, kind: int, depth: int) -> None:
        """Pass over a value of `kind`, the number of a type in Thrift's compact protocol."""
        match kind:
            case 1 | 2:  # true and false are in the header
                pass
            case 3:  # a byte
                self._pass(1)
            case 4 | 5 | 6:  # whole numbers
                self._varint()
            case 7:  # a floating-point number
                self._pass(8)
            case 8:  # bytes or text
                self._pass(self._varint())
            case 9 | 10:  # a list or a set
                of, count = self._list()
                for _ in range(count):
                    self._skip_element(of, depth)
            case 11:  # a map
                count = self._varint()
                kinds = self._byte() if count else 0
                for _ in range(count):
                    self._skip_element(kinds >> 4, depth)
                    self._skip_element(kinds & 15, depth)
            case 12:  # a structure
                self.struct({}, depth)
            case _:
                raise IndexError

    def _skip_element(self, kind: int, depth: int) -> None:
        """Skip an element of a list or map. It takes at least one byte, so a list cannot be longer than the footer."""
        if kind in (1, 2):
            self._pass(1)
        else:
            self._skip(kind, depth + 1)

    def _pass(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise IndexError


_Field: TypeAlias = tuple[int, Callable[[_Compact], Any]]
_COLUMN: Mapping[int, _Field] = {_NUM_VALUES: (_I64, _Compact.number), _UNPACKED: (_I64, _Compact.number)}
_CHUNK: Mapping[int, _Field] = {_META_DATA: (_STRUCT, lambda reader: reader.struct(_COLUMN))}
_GROUP: Mapping[int, _Field] = {_COLUMNS: (_LIST, lambda reader: reader.structs(_CHUNK))}
_FILE: Mapping[int, _Field] = {
    _NUM_ROWS: (_I64, _Compact.number),
    _ROW_GROUPS: (_LIST, lambda reader: reader.structs(_GROUP)),
}
