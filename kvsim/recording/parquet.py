"""Read the Parquet tables of a recording as a whole. Write them in row groups of a fixed size, as rows arrive.

This is the only module of `kvsim.recording` that needs pyarrow to read and write tables. Import it inside functions:
pyarrow takes longer to load than all of kvsim.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import IntEnum
from errno import EACCES
from functools import partial
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kvsim.errors import IntegrityError, RecordingError, reason_of
from kvsim.files.arrow_columns import to_numpy
from kvsim.files.parquet_footer import oversized
from kvsim.recording import provenance
from kvsim.recording.model import Meta, Outline, Recording
from kvsim.recording.tables import (
    TABLES,
    Column,
    ColumnTable,
    Memory,
    Requests,
    Steps,
    Transfers,
    end_to_end,
    text_column,
)
from kvsim.workload import Ragged

_ROWS_READ = 1 << 17
"""Number of rows of a column that are converted, and therefore in memory twice, at a time."""

AnyTable = TypeVar("AnyTable", bound=ColumnTable)


class _Hashing(BufferedWriter):
    def __init__(self, file: Path) -> None:
        super().__init__(FileIO(file, "wb"))
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return super().write(data)


class TableFile:
    """Parquet file to which tables of any number of rows can be appended. Its bytes depend only on the rows.

    Each file contains the identity of its recording, which depends on the contents of all its files. So a complete
    file is closed in two calls: `finish` returns the digest of the file, and `close` writes the identity. `abandon`
    closes a file that will be deleted.
    """

    rows_per_group = 1 << 17
    """Number of rows in every row group but the last."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None
        self._bytes: _Hashing | None = None
        self._encodings: dict[str, str] = {}
        # For each ascending column: its value in the last written row.
        self._last_values: dict[str, int] = {}
        self._waiting: list[pa.Table] = []
        self._num_waiting = 0

    def append(self, table: ColumnTable) -> None:
        """Append the rows of `table`. All appended tables that have rows must have the same optional columns."""
        if not self._num_waiting and self._writer is None:
            self._waiting.clear()  # an empty table may lack optional columns of later tables
        elif not len(table):
            return
        table = table if len(table) else table.empty()
        self._encodings = _encodings(table)
        self._last_values = {
            name: self._last_values.get(name, 0) for name, spec in table.columns() if spec.is_ascending
        }
        self._waiting.append(table.to_arrow())
        self._num_waiting += len(table)
        if self._num_waiting >= self.rows_per_group:
            self._write(self._num_waiting // self.rows_per_group * self.rows_per_group)

    def finish(self) -> bytes:
        """Write the remaining rows, and return a digest of the file.

        If only tables without rows were appended, the file has no rows. If none was appended, no file is created, and
        the digest is empty.
        """
        if self._num_waiting or (self._waiting and self._writer is None):
            self._write(self._num_waiting)
        return b"" if self._bytes is None else self._bytes.digest.digest()

    def close(self, identity: str) -> None:
        """Write the recording's `identity` into the file, and close it. `finish` must be called before."""
        if self._writer is not None and self._bytes is not None:
            self._writer.add_key_value_metadata({provenance.IDENTITY_KEY: identity})
            self._writer.close()
            self._bytes.close()

    def abandon(self) -> None:
        """Close the incomplete file without raising an error. The caller deletes it."""
        if self._writer is not None and self._bytes is not None:
            with suppress(OSError, ValueError, pa.ArrowException):  # such as the full disk for which it is abandoned
                self._writer.close()
            with suppress(OSError):
                self._bytes.close()

    def _write(self, num_rows: int) -> None:
        """Write the first `num_rows` waiting rows, in groups of `rows_per_group`."""
        rows = pa.concat_tables(self._waiting)
        if self._writer is None:
            self._bytes = _Hashing(self._file)
            self._writer = pq.ParquetWriter(
                self._bytes,
                rows.schema,
                compression="zstd",
                write_page_checksum=True,
                use_dictionary=[
                    f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
                    for field in rows.schema
                    if field.name not in self._encodings
                ],
                column_encoding=self._encodings,
            )
        # The bytes must not depend on the sizes of the appended tables, so the chunks are combined: pyarrow begins a
        # new page at the boundary of a chunk. Without rows, one empty group is written.
        for begin in range(0, max(num_rows, 1), self.rows_per_group):
            group = rows.slice(begin, min(self.rows_per_group, num_rows - begin)).combine_chunks()
            self._check_order(group)
            self._writer.write_table(group)
        self._waiting, self._num_waiting = [rows.slice(num_rows)], len(rows) - num_rows

    def _check_order(self, group: pa.Table) -> None:
        """Check that no ascending column falls in `group`, the next row group to be written."""
        if not len(group):
            return
        for name, last in self._last_values.items():
            values = to_numpy(group.column(name).chunk(0))
            if values[0] < last or (values[1:] < values[:-1]).any():
                raise IntegrityError(f"{name} falls in {self._file.name}, where it should count: a defect of kvsim.")
            self._last_values[name] = int(values[-1])


def _encodings(table: ColumnTable) -> dict[str, str]:
    """Return the Parquet encoding of each column whose values rarely repeat, by name. Others use a dictionary.

    This makes `steps.parquet` a third as large, twice as fast to read and four times as fast to write.
    """
    ascending = {name: "DELTA_BINARY_PACKED" for name, spec in table.columns() if spec.is_ascending}
    return ascending | {name: "BYTE_STREAM_SPLIT" for name, spec in table.columns() if spec.dtype == "float64"}


def identity_in(metadata: pq.FileMetaData) -> str:
    """Return the recording's identity in the metadata of a file; empty if there is none."""
    identity: bytes = (metadata.metadata or {}).get(provenance.IDENTITY_KEY, b"")
    return identity.decode("ascii", errors="replace")


def read_table(folder: Path, table: type[AnyTable], identity: str) -> AnyTable:
    """Read the file of `table` in `folder`, without checking its values.

    `identity` is that of the recording's `meta.json`; empty if it has none.

    Raises:
        RecordingError: the file is missing, damaged, lacks a column, or is of a recording with another identity.
    """
    file = folder / f"{table.name}.parquet"
    specs = dict(table.columns())
    if file.exists() and not file.is_file():
        raise RecordingError(f"{file} is damaged or truncated: it is a folder, a pipe or a device.")
    with _as_recording_error(file):
        metadata = pq.read_metadata(file)
        _check_metadata(metadata, file, identity)
        present = metadata.schema.to_arrow_schema().names
        _check_columns(present, specs, file)
        # A column of lists or structs in place of texts has a longer path, and no dictionary can be read from it.
        flat = {metadata.schema.column(nth).path for nth in range(metadata.num_columns)}
        texts = [name for name, spec in specs.items() if spec.is_text and name in flat]
        with pq.ParquetFile(file, metadata=metadata, read_dictionary=texts, page_checksum_verification=True) as parquet:
            names = [name for name in specs if name in present]
            chunks = _all_chunks(parquet, names) if metadata.num_rows <= _ROWS_READ else partial(_chunks, parquet)
            columns = {name: _read_column(chunks(name), metadata.num_rows, file, name, specs[name]) for name in names}
    requested = columns.get("requested")
    if requested is not None and np.array_equal(requested, columns["length"]):
        # No allocation was rounded up. The columns may have tens of millions of rows, so one array is freed.
        columns["requested"] = columns["length"]
    return table(**columns)


def _check_metadata(metadata: pq.FileMetaData, file: Path, identity: str) -> None:
    declared = oversized(file)
    if declared is not None:
        raise RecordingError(f"{file} is damaged: it declares {declared}.")
    if not provenance.may_be_of_one_recording(identity_in(metadata), identity):
        raise RecordingError(
            f"{file} and {file.parent / 'meta.json'} are of two recordings; the folder should hold the files of one."
        )


def _check_columns(present: list[str], specs: dict[str, Column], file: Path) -> None:
    missing = [name for name, spec in specs.items() if not spec.optional and name not in present]
    if missing:
        raise RecordingError(f"{file} lacks the column {', '.join(missing)}.")
    twice = [name for name in specs if present.count(name) > 1]
    if twice:
        raise RecordingError(f"{file} has the column {twice[0]} more than once.")


def read_outline_tables(folder: Path) -> Outline:
    """Read an `Outline`'s tables (requests, steps, and any transfers) in `folder`, without checking them."""
    meta, identity = _read_meta(folder)
    has_transfers = (folder / f"{Transfers.name}.parquet").exists()
    return Outline(
        meta,
        read_table(folder, Requests, identity),
        read_table(folder, Steps, identity),
        read_table(folder, Transfers, identity) if has_transfers else None,
    )


def _read_meta(folder: Path) -> tuple[Meta, str]:
    file = folder / provenance.FILE_NAME
    document = provenance.read_document(file)
    return provenance.meta_from_document(document, file), provenance.identity_of(document)


def read_tables(folder: Path) -> Recording:
    """Read all tables of the recording in `folder`, without checking that they agree."""
    meta, identity = _read_meta(folder)
    has_memory = (folder / "memory.parquet").exists()
    if not has_memory and meta.pool.num_units is not None:
        raise RecordingError(f"{folder / 'memory.parquet'} is missing; the recording is incomplete.")
    with ThreadPoolExecutor() as pool:
        read = {
            table.name: pool.submit(read_table, folder, table, identity)
            for table in TABLES
            if not table.is_optional or (folder / f"{table.name}.parquet").exists()
        }
        tables: dict[str, Any] = {name: table.result() for name, table in read.items()}
        # An engine whose cache has no addresses, such as generate(), has no such file.
        tables.setdefault(Memory.name, Memory.empty())
        recording = Recording(meta=meta, name=folder.resolve().name, **tables)
    pa.default_memory_pool().release_unused()  # otherwise pyarrow keeps some hundred MB for the next file
    return recording


@contextmanager
def _as_recording_error(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise RecordingError(f"{file} is missing; the recording is incomplete.") from None
    except PermissionError as error:
        raise RecordingError(f"{file} cannot be read: {os.strerror(error.errno or EACCES)}.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise RecordingError(f"{file} is damaged or truncated: {reason_of(error)}.") from error


def _read_column(chunks: Iterable[pa.Array], num_rows: int, file: Path, name: str, spec: Column) -> Any:
    parts = _parts(chunks, num_rows, file, name, spec)
    if spec.dtype.startswith("list"):
        return end_to_end([Ragged.empty(0, np.int64), *parts])
    if spec.dtype == "str":
        return np.concatenate([np.empty(0, spec.dtype), *parts])
    # Copy each part to its rows of one array: allocating new memory for all parts would take longer than copying.
    column, end = np.zeros(num_rows, spec.dtype), 0
    for part in parts:
        # Skip parts of zeros: pages of `column` that are never written take no memory. Times are rarely all 0.
        if spec.dtype == "float64" or part.any():
            column[end : end + len(part)] = part
        end += len(part)
    return column


def _parts(chunks: Iterable[pa.Array], expected: int, file: Path, name: str, spec: Column) -> Iterator[Any]:
    num_rows = 0
    for data in chunks:
        if data.null_count and spec.dtype != "float64":
            row = num_rows + data.is_null().to_pylist().index(True)
            raise RecordingError(f"{file}, row {row}: {name} is empty.")
        num_rows += len(data)
        if num_rows > expected:
            break
        try:
            yield _converted(data, spec, file, name, expected)
        except (pa.ArrowException, TypeError, AttributeError, IndexError) as error:
            raise RecordingError(f"{file}: column {name} should be {spec.dtype}: {reason_of(error)}.") from error
    if num_rows != expected:
        raise RecordingError(f"{file} is damaged or truncated: {name} has {num_rows:,} of {expected:,} rows.")


def _all_chunks(parquet: pq.ParquetFile, names: list[str]) -> Callable[[str], Iterable[pa.Array]]:
    """Read all columns of a small file. Return a function that returns the chunks of a column by its name.

    Reading the columns one by one would take three times as long.
    """
    rows = parquet.read(names, use_threads=False)
    return lambda name: rows.column(name).chunks


def _chunks(parquet: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    """Yield a column in parts of at most `_ROWS_READ` rows.

    Row groups are read one by one, because `ParquetFile.iter_batches` keeps all decoded pages in memory until its end.
    """
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.read_row_group(group, columns=[name], use_threads=False)
        for chunk in rows.column(0).chunks:
            for begin in range(0, len(chunk), _ROWS_READ):
                yield chunk.slice(begin, _ROWS_READ)


def _converted(data: pa.Array, spec: Column, file: Path, name: str, num_rows: int) -> Any:
    if spec.dtype.startswith("list"):
        return _lists(data, file, name)
    if spec.is_text:
        # Decode each text of the dictionary once, not once for each row that has it.
        encoded = data if isinstance(data, pa.DictionaryArray) else data.dictionary_encode()
        if spec.names is not None:
            return _members(encoded, spec.names, file, name).astype(spec.dtype)
        return text_column(_cast(encoded.dictionary, pa.string()).to_pylist(), num_rows)[to_numpy(encoded.indices)]
    return _numbers(data, spec)


def _members(encoded: pa.DictionaryArray, names: type[IntEnum], file: Path, name: str) -> npt.NDArray[np.uint8]:
    values = {member.name.lower(): member.value for member in names}
    texts, index = encoded.dictionary.to_pylist(), to_numpy(encoded.indices)
    unknown = [nth for nth, text in enumerate(texts) if text not in values]
    # An unknown text is an error only if a row has it: a dictionary may contain others.
    wrong = index[np.isin(index, unknown)]
    if len(wrong):
        raise RecordingError(f"{file}: {name} {texts[wrong[0]]!r} is none of {', '.join(values)}.")
    found: npt.NDArray[np.uint8] = np.array([values.get(text, 0) for text in texts], np.uint8)[index]
    return found


def _numbers(data: pa.Array, spec: Column) -> Any:
    """Convert a part of a column of numbers.

    Raises:
        TypeError: a value is outside the range of the column's type.
    """
    wanted = pa.type_for_alias(spec.dtype)
    if not (pa.types.is_integer(wanted) and pa.types.is_integer(data.type)):
        return to_numpy(_cast(data, wanted))  # a null time becomes NaN
    whole = to_numpy(data)
    if whole.dtype == spec.dtype:
        return whole
    column = whole.astype(spec.dtype)
    if (column != whole).any():
        raise TypeError(f"{whole[int(np.argmax(column != whole))]} is out of range")
    return column


def _cast(data: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert `data` to the type `wanted`, unless it has this type already.

    Files that kvsim wrote need no conversion. `pa.Array.cast` would load pyarrow's compute functions, in 0.1 s.
    """
    return data if data.type == wanted else data.cast(wanted)


def _lists(data: pa.Array, file: Path, name: str) -> Ragged[np.int64]:
    offsets = to_numpy(data.offsets).astype(np.int64)
    values = _cast(data.values[int(offsets[0]) : int(offsets[-1])], pa.int64())
    if values.null_count:
        raise RecordingError(f"{file}: a list of {name} has an empty element.")
    return Ragged(to_numpy(values), offsets - offsets[0], np.int64)
