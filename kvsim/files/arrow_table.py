"""Read tables from untrusted Parquet and CSV files. A defective file raises a ValueError with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import reason_of
from kvsim.files.contents import open_file
from kvsim.files.parquet_footer import oversized

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa


_MAGIC = b"PAR1"
_TEXT_BYTES = 1 << 28
"""Limit for the bytes of all texts in a column, once repeated texts are written out. In a Parquet file, a repeated
text may take a few bits.
"""


def read_table(file: Path) -> pa.Table:
    """Read the table in a Parquet or CSV file. The first bytes tell which it is.

    Parquet columns of lists and objects are left out.

    Raises:
        ValueError: the file is damaged.
    """
    import pyarrow as pa  # noqa: PLC0415  only where a file is touched
    import pyarrow.csv as pa_csv  # noqa: PLC0415

    try:
        if is_parquet(file):
            return read_parquet(file)
        table = pa_csv.read_csv(file)
        table.validate(full=True)
        _ = table.column_names  # decodes the names, which may fail
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(reason_of(error)) from error
    return table


def is_parquet(file: Path) -> bool:
    """Tell whether the first bytes of `file` are those of a Parquet file."""
    with open_file(file) as opened:
        return opened.read(len(_MAGIC)) == _MAGIC


def read_parquet(file: Path, columns: Collection[str] | None = None) -> pa.Table:
    """Read a Parquet file: those of its columns that are named in `columns`. If `columns` is None, read all but those
    of lists and objects. Names that the file lacks are ignored.

    Raises:
        ValueError: the file is damaged, or would expand to an implausible size.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(file) as parquet:
            fields = [field for field in parquet.schema_arrow if columns is None or field.name in columns]
        _check_claims(file, fields)
        wanted = [field.name for field in fields if columns is not None or not pa.types.is_nested(field.type)]
        with pq.ParquetFile(file, read_dictionary=[field.name for field in fields if _is_text(field.type)]) as parquet:
            table = parquet.read(columns=wanted)
        table.validate(full=True)
        for place, name in enumerate(table.column_names):  # decodes the names, which may fail
            if pa.types.is_dictionary(table.schema.field(place).type):
                table = table.set_column(place, name, _unfolded(name, table.column(place)))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise ValueError(reason_of(error)) from error
    return table


def _check_claims(file: Path, fields: Collection[pa.Field]) -> None:
    """Refuse a file whose footer declares an implausible size, or whose `fields` include fixed-size bytes."""
    import pyarrow as pa  # noqa: PLC0415

    declared = oversized(file)
    if declared is not None:
        raise ValueError(f"it declares {declared}")
    wide = next((field.name for field in fields if pa.types.is_fixed_size_binary(field.type)), None)
    if wide is not None:
        raise ValueError(f"the column {wide!r} is of bytes")


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415

    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _unfolded(name: str, column: pa.ChunkedArray) -> Any:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type.value_type
    num_bytes = 0
    if _is_text(kind):
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
            num_bytes += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    if num_bytes > _TEXT_BYTES:
        raise ValueError(f"the texts of column {name!r} have {num_bytes:,} bytes")
    return column.cast(kind)
