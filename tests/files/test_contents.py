"""What is read is an ordinary file of a size that fits, and unpacks to one that does."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import WorkloadError, shortened
from kvsim.files.contents import content_of, unpacked
from kvsim.importers import read_workload

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert content_of(file, 100) == b"x" * 100
    with pytest.raises(OSError, match="more than 99 bytes"):
        content_of(file, 99)


def test_a_small_file_takes_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        assert len(content_of(file, 1 << 31)) == 100
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe or a device"):
        content_of(tmp_path / "pipe", 100)
    with pytest.raises(WorkloadError, match="a pipe or a device"):
        read_workload(tmp_path / "pipe")


@pytest.mark.parametrize("members", [1, 2])
def test_gzip_comes_back_up_to_its_limit(members: int) -> None:
    content = gzip.compress(b"x" * 1000) * members + b"\0" * 8
    assert unpacked(content, 1000 * members) == b"x" * 1000 * members
    with pytest.raises(OSError, match="more than"):
        unpacked(content, 1000 * members - 1)


def test_a_gzip_that_is_cut_or_damaged(tmp_path: Path) -> None:
    content = gzip.compress(os.urandom(1000))
    with pytest.raises(EOFError):
        unpacked(content[:-20], 2000)
    with pytest.raises(zlib.error):
        unpacked(content[:-8] + b"12345678", 2000)
    (tmp_path / "w.csv.gz").write_bytes(content[:500])
    with pytest.raises(WorkloadError, match="damaged or truncated gzip"):
        read_workload(tmp_path / "w.csv.gz")


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "'a'"), (3, "3"), ("x" * 3000, "'" + "x" * 59 + "…"), (10**5000, "a whole number of some 5,000 digits")],
    ids=["text", "number", "long text", "long number"],
)
def test_a_long_value_is_shortened_in_a_sentence(value: object, text: str) -> None:
    assert shortened(value) == text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("header.csv", "x" * 200_000 + ",prompt_tokens,output_tokens\n1,2,3\n"),
        ("digits.csv", f"arrival_s,prompt_tokens,output_tokens\n0,{'9' * 5000},3\n"),
        ("digits.jsonl", f'{{"timestamp": 0, "input_length": {"9" * 5000}, "output_length": 3}}\n'),
        ("digits.json", f'[{{"conversations": [{{"from": "human", "tokens": {"9" * 5000}}}]}}]'),
        ("starts.json", '{"total_input_tokens": 1, "input_lens": [1], "output_lens": [1], "start_times": [1e309]}'),
        ("far.csv", "arrival_s,prompt_tokens,output_tokens\n1e300,2,3\n"),
    ],
)
def test_numbers_and_names_of_thousands_of_letters(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(WorkloadError) as raised:
        read_workload(tmp_path / name)
    assert len(str(raised.value)) < 600 + len(str(tmp_path))
