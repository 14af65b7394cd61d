"""Tables of runs that others may have written, or damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import UsageError
from kvsim.files.arrow_table import read_table
from kvsim.plots.comparisons import points_of_table


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"throughput": [1.0, 2.0]}), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_a_whole_file_is_read(file: Path) -> None:
    assert read_table(file).to_pydict() == {"throughput": [1.0, 2.0]}


def test_a_parquet_file_is_one_whatever_it_is_called(file: Path) -> None:
    assert read_table(file.rename(file.with_name("table"))).to_pydict() == {"throughput": [1.0, 2.0]}


def test_a_name_that_is_no_text_is_a_sentence(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"throughput", b"through\x8but"))
    with pytest.raises(ValueError, match="can't decode byte 0x8b"):
        read_table(file)
    with pytest.raises(UsageError, match=r"is no table of runs: .*can't decode byte 0x8b"):
        points_of_table(file)


@pytest.mark.parametrize(
    ("suffix", "contents"),
    [("parquet", b""), ("parquet", b"PAR1"), ("csv", b""), ("csv", b"arrival,a\n1\n2,3\n")],
    ids=["empty", "no footer", "empty csv", "ragged csv"],
)
def test_a_damaged_file_is_a_sentence(contents: bytes, suffix: str, tmp_path: Path) -> None:
    damaged = tmp_path / f"t.{suffix}"
    damaged.write_bytes(contents)
    with pytest.raises(ValueError, match=r"\S") as error:
        read_table(damaged)
    assert "\n" not in str(error.value)
