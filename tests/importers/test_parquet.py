"""A workload in a file comes back to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers import read_workload, write_workload
from kvsim.workload import Request, SharedPrefix, Workload

if TYPE_CHECKING:
    from pathlib import Path


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    rows = []
    for number in range(draw(st.integers(1, 12))):
        prompt, output = draw(st.integers(1, 64)), draw(st.integers(1, 9))
        shared = draw(st.integers(0, prompt))
        rows.append(
            Request(
                id=f"{draw(st.text(max_size=3))}{number}",
                arrival_s=draw(st.floats(0, 1e6)),
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output + draw(st.integers(0, 5)),
                priority=draw(st.integers(-(2**31), 2**31 - 1)),
                prefix=SharedPrefix(group=draw(st.text(max_size=2)), tokens=shared) if shared else None,
                prompt_hashes=tuple(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=prompt // 8))),
                prompt_token_ids=tuple(range(prompt)) if draw(st.booleans()) else None,
            )
        )
    return rows


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=requests(), name=st.text(max_size=5), description=st.text(max_size=20))
def test_every_field_comes_back(rows: list[Request], name: str, description: str, tmp_path: Path) -> None:
    workload = Workload.from_requests(rows, hash_unit_tokens=8, name=name, description=description)
    again = read_workload(write_workload(workload, tmp_path / "w.parquet"))
    assert list(again) == list(workload)
    assert (again.name, again.description, again.hash_unit_tokens) == (name, description, 8)
    assert tuple(again.prefix_names) == tuple(workload.prefix_names)
    assert again.arrival_s.tobytes() == workload.arrival_s.tobytes()


def test_numbered_ids_cost_nothing_and_come_back(tmp_path: Path) -> None:
    workload = Workload(arrival_s=[0.0, 1.0], prompt_tokens=[1, 2], output_tokens=[3, 4])
    path = write_workload(workload, tmp_path / "w.parquet")
    assert "id" not in pq.read_schema(path).names
    assert list(read_workload(path).ids) == ["r0", "r1"]
    assert write_workload(workload, tmp_path / "v.parquet").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda table: table.replace_schema_metadata({}), "is no workload of version 1"),
        (lambda table: table.drop(["priority"]), "the column priority should be there"),
        (lambda table: table.set_column(0, "arrival_s", pa.array([1, 2])), "arrival_s should be there, be double"),
        (lambda table: table.set_column(1, "prompt_tokens", pa.array([1, None], pa.int32())), "have no empty field"),
        (lambda table: table.set_column(1, "prompt_tokens", pa.array([1, 0], pa.int32())), "it must be at least 1"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_workload(tmp_path: Path, change: object, sentence: str) -> None:
    workload = Workload(arrival_s=[0.0, 1.0], prompt_tokens=[1, 2], output_tokens=[3, 4])
    path = write_workload(workload, tmp_path / "w.parquet")
    pq.write_table(change(pq.read_table(path)), path)  # type: ignore[operator]
    with pytest.raises(WorkloadError, match=sentence):
        read_workload(path)


def test_one_long_id_of_all_requests_is_not_written_out(tmp_path: Path) -> None:
    """A file of some kilobytes that would take gigabytes."""
    number = 20_000
    path = write_workload(
        Workload(arrival_s=np.arange(float(number)), prompt_tokens=[1] * number, output_tokens=[1] * number),
        tmp_path / "w.parquet",
    )
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(number, np.int32)), pa.array(["x" * 50_000]))
    table = pq.read_table(path).append_column("id", ids)
    pq.write_table(table, path, store_schema=False)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(WorkloadError, match="the texts of column 'id' have 1,000,000,000 bytes"):
        read_workload(path)


def test_columns_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    path = write_workload(Workload(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[3]), tmp_path / "w.parquet")
    table = pq.read_table(path).append_column("more", pa.array([b"x"], pa.binary(1)))
    pq.write_table(table, path)
    assert len(read_workload(path)) == 1


def test_a_truncated_file(tmp_path: Path) -> None:
    path = write_workload(Workload(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[3]), tmp_path / "w.parquet")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(WorkloadError, match=r"w\.parquet is damaged or no Parquet file"):
        read_workload(path)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    workload = Workload(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[3])
    with pytest.raises(UsageError, match="it is a folder; name a file"):
        write_workload(workload, tmp_path)
    with pytest.raises(UsageError, match=r"cannot write .*nowhere"):
        write_workload(workload, tmp_path / "nowhere" / "w.parquet")
    assert not list(tmp_path.iterdir())


def test_hashes_keep_all_64_bits(tmp_path: Path) -> None:
    hashes = (2**63 - 1, -(2**63))
    request = Request(id="a", arrival_s=0.0, prompt_tokens=32, output_tokens=1, max_tokens=1, prompt_hashes=hashes)
    again = read_workload(write_workload(Workload.from_requests([request]), tmp_path / "w.parquet"))
    assert tuple(again[0].prompt_hashes) == hashes
    assert again.prompt_hashes.values.dtype == np.int64
