"""Columns of pyarrow that are made without pandas are those that pyarrow would have made."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kvsim.files.arrow_columns import from_numpy, from_texts, from_values

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize(
    "values",
    [
        [], [None, None], ["a", None, "ü€", ""], [True, None, False] * 5, [1, 2, None, -5], [2**63 - 1],
        [1.5, None, 2, float("inf")], [0, 1.0],
    ],
    ids=str,
)  # fmt: skip
def test_values_become_what_pyarrow_makes_of_them(values: list[Any]) -> None:
    made = from_values(values)
    made.validate(full=True)
    assert made.equals(pa.array(values))


@pytest.mark.parametrize("values", [["a", 1], [True, 1], [2**70], [[1]]], ids=str)
def test_values_of_several_types_are_refused_as_pyarrow_does(values: list[Any]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        from_values(values)


def test_texts_are_texts_where_there_is_none() -> None:
    assert from_texts([]).equals(pa.array([], pa.string()))
    assert from_texts(["", "b"]).equals(pa.array(["", "b"]))


def test_an_unknown_number_is_missing_where_it_should_be() -> None:
    values = np.array([1.0, np.nan, 3.0] * 7)
    assert from_numpy(values, pa.float64(), nan_is_missing=True).equals(pa.array(values, from_pandas=True))
    assert from_numpy(values, pa.float64()).null_count == 0
    assert from_numpy(np.arange(3), pa.int64(), nan_is_missing=True).equals(pa.array([0, 1, 2]))


def test_what_is_written_loads_no_pandas(run_python: RunPython, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from kvsim.cli import cli\n"
        "cli.main(['run', '--num-requests', '5', '-o', 'run'], standalone_mode=False)\n"
        "cli.main(['export', 'run', '--to', 'csv', '-o', 'tables'], standalone_mode=False)\n"
        "print('pandas' in sys.modules)"
    )
    assert run_python("-c", code, folder=tmp_path).stdout.splitlines()[-1] == "False"
