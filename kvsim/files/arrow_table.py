"""Tables of Parquet and CSV files that others may have written: whole, or one sentence about what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.files.contents import open_file

if TYPE_CHECKING:
    import pyarrow as pa


_MAGIC = b"PAR1"


def read_table(file: Path) -> pa.Table:
    """The table in a file: Parquet where its first bytes say so, or else CSV.

    Raises:
        ValueError: it cannot be read; says why in a few words.
    """
    import pyarrow as pa  # noqa: PLC0415  only where a file is touched
    import pyarrow.csv as pa_csv  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with open_file(file) as opened:
            is_parquet = opened.read(len(_MAGIC)) == _MAGIC
        table = pq.read_table(file) if is_parquet else pa_csv.read_csv(file)
        table.validate(full=True)
        _ = table.column_names  # decoded here, and not before
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(reason) from error
    return table
