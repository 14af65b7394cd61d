"""A command replaces what it wrote itself, and nothing else unless it is told to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import RecordingError, UsageError
from kvsim.files.overwriting import may_replace, replacing_folder
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import write
from kvsim.simulation import simulate
from kvsim.workload import Workload

FLAG = "--overwrite replaces it"
Record = Callable[..., Path]


@pytest.fixture(scope="session")
def record(make_machine: Callable[[int], Any]) -> Record:
    """Writes a small recording that names its source and its command."""
    workload = Workload(arrival_s=np.zeros(3), prompt_tokens=[20] * 3, output_tokens=[5] * 3)
    run = simulate(workload, Paged(scheduler=ContinuousSettings(max_model_len=64)), make_machine(640))

    def written(folder: Path, source: str = "simulation", command: str = "kvsim run -o x") -> Path:
        meta = replace(run.meta, source=source, command=command)
        return write(replace(run, meta=meta), folder, overwrite=True)

    return written


def refusal(path: Path, command: str, **options: Any) -> str:
    with pytest.raises(UsageError) as raised:
        may_replace(path, command, **({"overwrite": False} | options))
    return str(raised.value)


def test_where_nothing_is_everything_may_be_written(tmp_path: Path) -> None:
    may_replace(tmp_path / "new", "run", overwrite=False, is_folder=True)
    may_replace(tmp_path / "new", "plot", overwrite=False)


def test_a_run_replaces_an_earlier_run(record: Record, tmp_path: Path) -> None:
    may_replace(record(tmp_path / "rec"), "run", overwrite=False, is_folder=True)


def _edit(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def _flip(content: bytes) -> bytes:
    middle = len(content) // 3
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("meta.json", lambda text: text.replace(b'"notes": ""', b'"notes": "the run for figure 3"')),
        ("meta.json", lambda text: text.replace(b'"gpu"', b'"GPU"')),
        ("meta.json", lambda text: text.replace(b',\n "identity"', b',\n "id"')),
        ("steps.parquet", _flip),
        ("requests.parquet", lambda content: content[:-100]),
        ("memory.parquet", lambda _: b"mine"),
        ("copies.parquet", lambda _: b"mine"),
        ("allocator.parquet", lambda _: b"mine"),
        ("notes.txt", lambda _: b"mine"),
    ],
)
def test_what_was_edited_in_a_recordings_folder_is_the_users(
    record: Record, tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    rec = record(tmp_path / "rec")
    (rec / name).touch()
    _edit(rec / name, change)
    before = {file.name: file.read_bytes() for file in rec.iterdir()}
    assert FLAG in refusal(rec, "run", is_folder=True)
    assert {file.name: file.read_bytes() for file in rec.iterdir()} == before
    may_replace(rec, "run", overwrite=True, is_folder=True)


def test_a_run_replaces_the_servers_of_an_earlier_one_and_no_collection(record: Record, tmp_path: Path) -> None:
    for number in range(3):
        record(tmp_path / "servers" / str(number), "simulation", "kvsim run --replicas 3 -o servers")
        record(tmp_path / "mine" / str(number), "simulation", f"kvsim run -o mine/{number}")
        record(tmp_path / "named" / f"a{number}", "simulation", "kvsim run --replicas 3 -o servers")
    may_replace(tmp_path / "servers", "run", overwrite=False, is_folder=True)
    for kept in ("mine", "named"):
        assert "nothing was overwritten" in refusal(tmp_path / kept, "run", is_folder=True, overwrite=True)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("vllm", ""),
        ("vllm", "kvsim run -o x"),
        ("hf", "kvsim capture hf --model m -o x"),
        ("simulation", "kvsim compare -o x"),
        ("simulation", ""),
        ("simulation", "kvsim"),
        ("simulation", "kvsim 'unfinished"),
    ],
)
def test_a_run_replaces_no_other_recording_unasked(record: Record, tmp_path: Path, source: str, command: str) -> None:
    rec = record(tmp_path / "rec", source, command)
    assert FLAG in refusal(rec, "run", is_folder=True)
    may_replace(rec, "run", overwrite=True, is_folder=True)


def test_a_real_run_is_not_even_replaced_by_the_command_that_recorded_it(record: Record, tmp_path: Path) -> None:
    rec = record(tmp_path / "rec", "vllm", "kvsim capture vllm -o x")
    assert "a recording of a real run of vLLM" in refusal(rec, "capture", is_folder=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("meta.json", "{" * 10_000),
        ("meta.json", '{"source": "simulation", "command": "kvsim run -o x"}'),
        ("events.jsonl", '{"user": 1}\n'),
        ("report.html", "<html>mine, not by: <!-- Made by: kvsim report 00112233445566778899aabbccddeeff -->\n"),
    ],
)
def test_a_folder_of_another_program_with_a_file_of_such_a_name_stays_in_any_case(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text(text)
    for command in ("run", "report"):
        said = refusal(tmp_path / "data", command, is_folder=True, overwrite=True)
        assert "nothing was overwritten" in said


def test_a_log_of_a_real_run_is_replaced_when_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "events.jsonl").write_text('{"format": "kvsim-recording", "version": 1, "source": "vllm"}\n')
    assert FLAG in refusal(tmp_path / "log", "tui", is_folder=True)
    may_replace(tmp_path / "log", "tui", overwrite=True, is_folder=True)


def test_compare_replaces_what_it_wrote_for_all_policies(record: Record, tmp_path: Path) -> None:
    for policy in ("paged", "static"):
        record(tmp_path / "runs" / policy, "simulation", "kvsim compare -o runs")
    may_replace(tmp_path / "runs", "compare", overwrite=False, is_folder=True)
    record(tmp_path / "runs" / "mine", "vllm", "")
    assert "nothing was overwritten" in refusal(tmp_path / "runs", "compare", is_folder=True, overwrite=True)


@pytest.mark.parametrize("names", [["thesis.tex"], ["requests.csv", "thesis.tex"], [".git"]])
def test_a_folder_that_kvsim_did_not_write_stays_in_any_case(tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("mine")
    assert "nothing was overwritten" in refusal(folder, "report", overwrite=True, is_folder=True)


def test_a_file_without_a_mark_is_not_replaced_unasked(tmp_path: Path) -> None:
    file = tmp_path / "thesis.png"
    file.write_bytes(b"thesis")
    assert FLAG in refusal(file, "plot")
    may_replace(file, "plot", overwrite=True)


def test_a_file_is_no_folder_and_a_folder_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "it is a file; name a folder" in refusal(tmp_path / "file", "run", is_folder=True, overwrite=True)
    assert "it is a folder; name a file" in refusal(tmp_path, "plot", overwrite=True)


def test_a_sentence_names_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    def write_nothing() -> None:
        with replacing_folder(tmp_path / "rec", "run", overwrite=False) as folder:
            raise RecordingError(f"cannot write {folder}/steps.parquet: No space left on device.")

    with pytest.raises(RecordingError, match=f"^cannot write {tmp_path}/rec/steps.parquet: No space"):
        write_nothing()


def test_what_came_to_be_in_the_way_meanwhile_stays(record: Record, tmp_path: Path) -> None:
    target = tmp_path / "rec"

    def write_both() -> None:
        with replacing_folder(target, "run", overwrite=False) as folder:
            record(folder)
            record(target, "vllm", "")

    with pytest.raises(UsageError, match=FLAG):
        write_both()
    assert json.loads((target / "meta.json").read_text())["source"] == "vllm"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]
