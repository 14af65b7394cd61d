"""Requests in other formats come back through our own importers; tables hold what the recording holds."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvsim.errors import UsageError
from kvsim.exporters import EXPORTERS, write_azure, write_mooncake, write_tables
from kvsim.importers import read_workload, workload_of
from kvsim.metrics import latencies, waste
from kvsim.workload import Ragged, Workload

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.recording import Recording


@pytest.mark.parametrize(("form", "resolution_s"), [("azure", 1e-7), ("burstgpt", 1e-6), ("mooncake", 1e-3)])
def test_a_stream_comes_back(run: Recording, tmp_path: Path, form: str, resolution_s: float) -> None:
    path = EXPORTERS[form](run, tmp_path / "stream")
    again, once = read_workload(path, form=form), workload_of(run)
    assert again.prompt_tokens.tolist() == once.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == once.output_tokens.tolist()
    assert again.arrival_s.tolist() == pytest.approx(once.arrival_s.tolist(), abs=0.51 * resolution_s)
    assert EXPORTERS[form](run, tmp_path / "again").read_bytes() == path.read_bytes()


def test_azure_days_pass(tmp_path: Path) -> None:
    workload = Workload(arrival_s=[0.0, 86_400.123_456_7], prompt_tokens=[1, 2], output_tokens=[3, 4])
    assert write_azure(workload, tmp_path / "a").read_text().splitlines()[-1] == "1970-01-02 00:00:00.1234567,2,4"


def test_mooncake_ids_are_shared_where_512_tokens_are(tmp_path: Path) -> None:
    shared = list(range(32))
    workload = Workload(
        arrival_s=[0.0, 1.0, 2.0],
        prompt_tokens=[1040, 1024, 600],
        output_tokens=[1, 1, 1],
        prompt_hashes=Ragged.from_rows([[*shared, *range(100, 133)], [*shared, *range(200, 232)], []], np.int64),
        hash_unit_tokens=16,
    )
    lines = write_mooncake(workload, tmp_path / "m").read_text().splitlines()
    assert [json.loads(line)["hash_ids"] for line in lines] == [[0, 1, 2], [0, 3], [4, 5]]


def test_mooncake_units_larger_than_512_are_split(tmp_path: Path) -> None:
    workload = Workload(
        arrival_s=[0.0, 1.0], prompt_tokens=[2048, 1600], output_tokens=[1, 1],
        prompt_hashes=Ragged.from_rows([[5, 6], [5]], np.int64), hash_unit_tokens=1024,
    )  # fmt: skip
    lines = write_mooncake(workload, tmp_path / "m").read_text().splitlines()
    assert [json.loads(line)["hash_ids"] for line in lines] == [[0, 1, 2, 3], [0, 1, 4, 5]]


def test_mooncake_cannot_say_other_units(tmp_path: Path) -> None:
    workload = Workload(
        arrival_s=[0.0], prompt_tokens=[48], output_tokens=[1],
        prompt_hashes=Ragged.from_rows([[1]], np.int64), hash_unit_tokens=48,
    )  # fmt: skip
    with pytest.raises(UsageError, match="hashed in units of 48 tokens, and Mooncake's are of 512"):
        write_mooncake(workload, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_tables_hold_the_recording(run: Recording, tmp_path: Path) -> None:
    folder = write_tables(run, tmp_path / "tables", form="parquet")
    assert sorted(path.stem for path in folder.iterdir()) == ["memory", "pool", "requests", "schedule", "steps"]
    requests = pq.read_table(folder / "requests.parquet")
    times = latencies(run)
    assert np.asarray(requests["ttft_s"])[times.request].tolist() == times.ttft_s.tolist()
    assert requests["prompt_hashes"].to_pylist()[0] == run.requests.prompt_hashes[0].tolist()
    assert requests["status"].to_pylist()[-1] == "refused"
    assert requests["ttft_s"].null_count == 1
    pool = pq.read_table(folder / "pool.parquet")
    total = np.sum([np.asarray(pool[name]) for name in pool.column_names if name.endswith("_slots")], axis=0)
    assert set(total.tolist()) == {waste(run).capacity}


def test_csv_is_readable_by_anything(run: Recording, tmp_path: Path) -> None:
    folder = write_tables(run, tmp_path / "tables", form="csv")
    with (folder / "requests.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["finished"] * 12 + ["refused"]
    assert [int(value) for value in rows[0]["prompt_hashes"].split()] == run.requests.prompt_hashes[0].tolist()
    assert rows[-1]["ttft_s"] == "", "an empty cell, not the word nan"
    assert float(rows[0]["ttft_s"]) == latencies(run).ttft_s[0]
    with (folder / "memory.csv").open(encoding="utf-8", newline="") as file:
        assert sum(1 for _ in csv.reader(file)) == len(run.memory) + 1


def test_a_folder_that_is_there_is_left_alone(run: Recording, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="mine exists; name a new folder, nothing was overwritten"):
        write_tables(run, tmp_path / "mine", form="csv")
    assert not list((tmp_path / "mine").iterdir())


def test_a_spreadsheet_is_given_no_formula(run: Recording, tmp_path: Path) -> None:
    """An id comes from whoever sent the request."""
    ids = np.array(["=HYPERLINK(1)", "plain", *(f"r{row}" for row in range(2, len(run.requests)))])
    renamed = replace(run, requests=replace(run.requests, id=ids))
    folder = write_tables(renamed, tmp_path / "csv", form="csv")
    rows = list(csv.DictReader((folder / "requests.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["id"] for row in rows[:2]] == ["'=HYPERLINK(1)", "plain"]
    assert rows[0]["request"] == "0"
    parquet = write_tables(renamed, tmp_path / "parquet", form="parquet")
    assert pq.read_table(parquet / "requests.parquet")["id"].to_pylist() == ids.tolist()
