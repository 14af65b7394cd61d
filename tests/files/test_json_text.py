"""JSON says how much it unfolds to before memory is taken, and says one thing of each key."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from kvsim.conformance.oracle_files import read_workload as read_oracle
from kvsim.errors import KvsimError, WorkloadError
from kvsim.files import json_text
from kvsim.files.json_text import parse
from kvsim.importers import json_list, read_workload
from kvsim.models.huggingface import read_config
from kvsim.recording.provenance import read_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST = '{"timestamp": 0, "input_length": 10, "output_length": 5, "x": '


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[], [], [], [], []]", "it has 6 lists and objects, more than 5"),
        ('[{}, {}, {"a": {}}, {}]', "it has 6 lists and objects, more than 5"),
        ("[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]", "it has 9 values, more than 8"),
    ],
)
def test_what_unfolds_to_too_much_is_not_begun(monkeypatch: pytest.MonkeyPatch, text: str, sentence: str) -> None:
    monkeypatch.setattr(json_text, "MOST_CONTAINERS", 5)
    monkeypatch.setattr(json_text, "MOST_VALUES", 8)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(ValueError, match=sentence):
        parse(text)


def test_brackets_without_end_are_an_error_of_the_text() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse("[" * 200_000)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"x": {"a": 1, "\\u0061": 2}}]'])
def test_a_key_is_there_once(text: str) -> None:
    with pytest.raises(ValueError, match="an object has the key 'a' more than once"):
        parse(text)


BOMBS = {
    "lists": FIRST + "[" + "[]," * 3_000 + "[]]}",
    "objects": FIRST + "[" + "{}," * 3_000 + "{}]}",
    "keys": FIRST + "{" + ",".join(f'"{n}":[]' for n in range(3_000)) + "}}",
    "depth": FIRST + "[" * 100_000,
    "numbers": FIRST + "[" + "1.5," * 30_000 + "1]}",
    "conversations": '[{"conversations": [' + "[]," * 30_000 + "[]]}]",
    "benchmark": '{"total_input_tokens": 1, "itls": [' + "[]," * 3_000 + "[]]}",
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("read", [read_workload, read_config, read_document, read_oracle])
def test_no_reader_unfolds_what_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object], bomb: str
) -> None:
    monkeypatch.setattr(json_text, "MOST_CONTAINERS", 2_000)
    monkeypatch.setattr(json_text, "MOST_VALUES", 20_000)
    monkeypatch.setattr(json_list, "_AT_ONCE", 1_000)
    file = tmp_path / "config.json"
    file.write_text(BOMBS[bomb])
    with pytest.raises(KvsimError, match=r"more than|nested too deeply"):
        read(file)


def test_an_object_of_a_list_ends_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_list, "_MOST", 10_000)
    monkeypatch.setattr(json_list, "_AT_ONCE", 1_000)
    file = tmp_path / "w.json"
    file.write_text('[{"conversations": "' + "x" * 30_000)
    with pytest.raises(WorkloadError, match="an object is longer than 10,000 letters, or is no JSON"):
        read_workload(file)


def test_a_packed_file_does_not_become_a_thousand_times_as_long(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"x": [' + b"[]," * 30_000_000 + b"[]]}", 6))
    assert file.stat().st_size < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(WorkloadError, match="It has more than"):
            read_workload(file)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", [0, 1])
def test_a_line_of_commas_is_no_row(tmp_path: Path, place: int) -> None:
    lines = ["arrival_s,prompt_tokens,output_tokens", "0,1,1"]
    lines[place] += "," * 3_000_000
    file = tmp_path / "w.csv"
    file.write_text("\n".join(lines))
    tracemalloc.start()
    try:
        with pytest.raises(WorkloadError, match=r"line [12]: "):
            read_workload(file)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
