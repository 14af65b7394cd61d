"""What a footer declares is read without pyarrow, which ends the process over some of them."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.files.parquet_footer import declared, oversized
from kvsim.recording import find

if TYPE_CHECKING:
    from pathlib import Path

RECORDING = find("vllm-h200-granite-350m-gsm8k")


@pytest.mark.parametrize("name", ["memory", "requests", "schedule", "steps"])
def test_it_says_what_pyarrow_says(name: str) -> None:
    file = RECORDING / f"{name}.parquet"
    metadata, sizes = pq.read_metadata(file), declared(file)
    assert sizes is not None
    columns = [metadata.row_group(0).column(column) for column in range(metadata.num_columns)]
    assert metadata.num_row_groups == 1
    assert sizes.num_rows == metadata.num_rows
    assert sizes.num_values == [column.num_values for column in columns]
    assert sizes.unpacked_bytes == sum(column.total_uncompressed_size for column in columns)


def test_row_groups_add_up(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": list(range(1000)), "y": [[1, 2]] * 1000}), file, row_group_size=100)
    sizes = declared(file)
    assert sizes is not None
    assert (sizes.num_rows, sizes.num_values) == (1000, [1000, 2000])


def test_what_a_small_file_may_declare(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": list(range(1000))}), file)
    assert oversized(file) is None
    pq.write_table(pa.table({"x": pa.nulls(50_000_000, pa.int8())}), file)
    assert "values in" in str(oversized(file))


@given(st.binary(max_size=200))
def test_any_footer_is_followed_to_its_end_or_given_up(footer: bytes) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.NamedTemporaryFile() as file:
        file.write(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        file.flush()
        oversized(Path(file.name))


FLIPPED = """
import sys
from pathlib import Path
from kvsim.errors import KvsimError
from kvsim.importers import read_workload

for file in sorted(Path(sys.argv[1]).glob("*.parquet")):
    try:
        read_workload(file)
    except KvsimError:
        pass
"""


def test_a_damaged_footer_does_not_end_the_process(tmp_path: Path) -> None:
    """Statistics of a list that contradict its type, among others."""
    from kvsim.importers import workload_of, write_workload
    from kvsim.recording import read

    rng = random.Random(2)
    good = write_workload(workload_of(read(RECORDING)), tmp_path / "good").read_bytes()
    length = int.from_bytes(good[-8:-4], "little")
    for nth in range(1500):
        bad = bytearray(good)
        bad[len(bad) - 9 - rng.randrange(length)] = rng.randrange(256)
        (tmp_path / f"{nth:04}.parquet").write_bytes(bad)
    done = subprocess.run([sys.executable, "-c", FLIPPED, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
