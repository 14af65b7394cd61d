"""A command replaces what it wrote itself, and nothing else unless it is told to."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kvsim
from kvsim.errors import RecordingError, UsageError
from kvsim.files.overwriting import MARK_KEY, MARKED, mark, marked_png, may_replace, replacing_folder

FLAG = "--overwrite replaces it"


def recording(folder: Path, source: str = "simulation", command: str = "kvsim run -o x", *others: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"format": "kvsim-recording", "version": 1, "source": source, "command": command}
    (folder / "meta.json").write_text(json.dumps(document))
    for name in ("steps.parquet", *others):
        (folder / name).write_text("")
    return folder


def refusal(path: Path, command: str, **options: Any) -> str:
    with pytest.raises(UsageError) as raised:
        may_replace(path, command, **({"overwrite": False} | options))
    return str(raised.value)


def test_where_nothing_is_everything_may_be_written(tmp_path: Path) -> None:
    may_replace(tmp_path / "new", "run", overwrite=False, is_folder=True)
    may_replace(tmp_path / "new", "plot", overwrite=False)


def test_a_run_replaces_an_earlier_run(tmp_path: Path) -> None:
    may_replace(recording(tmp_path / "rec"), "run", overwrite=False, is_folder=True)
    offloaded = recording(tmp_path / "offloaded", "simulation", "kvsim run -o x", "copies.parquet")
    may_replace(offloaded, "run", overwrite=False, is_folder=True)


def test_a_run_replaces_the_servers_of_an_earlier_one_and_no_collection(tmp_path: Path) -> None:
    for number in range(3):
        recording(tmp_path / "servers" / str(number), "simulation", "kvsim run --replicas 3 -o servers")
        recording(tmp_path / "mine" / str(number), "simulation", f"kvsim run -o mine/{number}")
        recording(tmp_path / "named" / f"a{number}", "simulation", "kvsim run --replicas 3 -o servers")
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
def test_a_run_replaces_no_other_recording_unasked(tmp_path: Path, source: str, command: str) -> None:
    rec = recording(tmp_path / "rec", source, command)
    assert FLAG in refusal(rec, "run", is_folder=True)
    may_replace(rec, "run", overwrite=True, is_folder=True)


def test_a_real_run_is_not_even_replaced_by_the_command_that_recorded_it(tmp_path: Path) -> None:
    rec = recording(tmp_path / "rec", "vllm", "kvsim capture vllm -o x")
    assert "a recording of a real run of vLLM" in refusal(rec, "capture", is_folder=True)


def test_notes_in_a_recordings_folder_are_the_users(tmp_path: Path) -> None:
    rec = recording(tmp_path / "rec", "simulation", "kvsim run -o x", "notes.txt")
    said = refusal(rec, "run", is_folder=True)
    assert "'notes.txt'" in said
    assert FLAG in said


def test_a_meta_that_is_no_json_is_not_replaced_unasked(tmp_path: Path) -> None:
    rec = recording(tmp_path / "rec")
    (rec / "meta.json").write_text("{" * 10_000)
    assert FLAG in refusal(rec, "run", is_folder=True)


def test_compare_replaces_what_it_wrote_for_all_policies(tmp_path: Path) -> None:
    for policy in ("paged", "static"):
        recording(tmp_path / "runs" / policy, "simulation", "kvsim compare -o runs")
    may_replace(tmp_path / "runs", "compare", overwrite=False, is_folder=True)
    recording(tmp_path / "runs" / "mine", "vllm", "")
    assert "nothing was overwritten" in refusal(tmp_path / "runs", "compare", is_folder=True, overwrite=True)


@pytest.mark.parametrize("names", [["thesis.tex"], ["requests.csv", "thesis.tex"], [".git"]])
def test_a_folder_that_kvsim_did_not_write_stays_in_any_case(tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("mine")
    assert "nothing was overwritten" in refusal(folder, "report", overwrite=True, is_folder=True)


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("a.png", marked_png(b"\x89PNG\r\n\x1a\n" + b"\0" * 25 + b"rest", "tui"), "tui"),
        ("a.svg", f"<svg><!-- {mark('plot')} --></svg>".encode(), "plot"),
        ("a.toml", f"# {mark('calibrate')} a b\n".encode() + b"#" * 200_000, "calibrate"),
        ("a.mp4", b"\0" * 200_000 + mark("animate").encode(), "animate"),
    ],
)
def test_a_file_says_which_command_wrote_it(tmp_path: Path, name: str, content: bytes, command: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    may_replace(file, command, overwrite=False)
    assert FLAG in refusal(file, "sweep")
    may_replace(file, "sweep", overwrite=True)


@pytest.mark.parametrize("command", ["sweep", "import"])
def test_a_table_says_it_in_its_metadata(tmp_path: Path, command: str) -> None:
    file = tmp_path / "t.parquet"
    table = pa.table({"x": list(range(50_000))})
    pq.write_table(table.replace_schema_metadata({MARK_KEY: mark(command)}), file)
    may_replace(file, command, overwrite=False)
    pq.write_table(table, file)
    assert FLAG in refusal(file, command)


def test_a_file_without_a_mark_is_not_replaced_unasked(tmp_path: Path) -> None:
    file = tmp_path / "thesis.png"
    file.write_bytes(b"thesis")
    assert FLAG in refusal(file, "plot")
    may_replace(file, "plot", overwrite=True)


def test_a_file_is_no_folder_and_a_folder_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "it is a file; name a folder" in refusal(tmp_path / "file", "run", is_folder=True, overwrite=True)
    assert "it is a folder; name a file" in refusal(tmp_path, "plot", overwrite=True)


@pytest.mark.parametrize("command", MARKED)
def test_a_mark_is_known_whatever_stands_behind_it(tmp_path: Path, command: str) -> None:
    """A checksum does, in a PNG, and it may be a letter."""
    file = tmp_path / "a.png"
    for behind in (b"w", b"_", b"\xff", b"-it"):
        file.write_bytes(b"\x89PNG" + mark(command).encode() + behind)
        may_replace(file, command, overwrite=False)


def test_every_command_that_marks_its_files_is_known() -> None:
    source = "".join(file.read_text(encoding="utf-8") for file in Path(kvsim.__file__).parent.rglob("*.py"))
    marking = set(re.findall(r"""(?:mark\(|made_by=|may_save\(\w+, |marked_\w+\(\w+, )['"](\w+)['"]""", source))
    assert marking == {*MARKED, "report"}  # which is a folder


def test_a_marked_png_is_still_one() -> None:
    chunk = b"IHDR" + b"\0" * 13
    png = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
    marked = marked_png(png + b"rest", "tui")
    assert marked.startswith(png)
    assert marked.endswith(b"rest")
    text = marked[len(png) : -len(b"rest")]
    assert int.from_bytes(text[:4]) == len(text) - 12
    assert int.from_bytes(text[-4:]) == zlib.crc32(text[4:-4])
    assert text[8:-4] == b"Software\0" + mark("tui").encode()


def test_a_sentence_names_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    def write() -> None:
        with replacing_folder(tmp_path / "rec", "run", overwrite=False) as folder:
            raise RecordingError(f"cannot write {folder}/steps.parquet: No space left on device.")

    with pytest.raises(RecordingError, match=f"^cannot write {tmp_path}/rec/steps.parquet: No space"):
        write()


def test_what_came_to_be_in_the_way_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "rec"

    def write() -> None:
        with replacing_folder(target, "run", overwrite=False) as folder:
            recording(folder)
            recording(target, "vllm", "")

    with pytest.raises(UsageError, match=FLAG):
        write()
    assert json.loads((target / "meta.json").read_text())["source"] == "vllm"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]
