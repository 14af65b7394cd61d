"""`kvsim import`, and --workload FILE where requests are served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.cli.import_ import _FORMAT_NAMES
from kvsim.importers import FORMATS, read_workload

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,37,4\n2023-11-16 18:15:50.9951690,39,9\n"
TALK = [{"from": "human", "value": "a question of 30 letters?!"}, {"from": "gpt", "value": "an answer of 24 letters"}]
LENGTHS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "XXX,30,4\n" * 20 + "XXX,90000,4\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two traces, one with a mistake, and a conversation of ShareGPT."""
    (tmp_path / "azure.csv").write_text(AZURE)
    (tmp_path / "lengths.csv").write_text(LENGTHS)
    (tmp_path / "wrong.csv").write_text(AZURE.replace("39", "many"))
    (tmp_path / "talk.json").write_text(json.dumps([{"id": "talk", "conversations": TALK}]))
    return tmp_path


def test_the_formats_of_the_help_are_those_that_there_are() -> None:
    assert set(_FORMAT_NAMES) == set(FORMATS)


def test_a_trace_becomes_a_workload_that_every_command_serves(kvsim: Run, folder: Path) -> None:
    done = kvsim("import", "azure.csv", "--as", "azure", "-o", "w.parquet", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the 2 requests of azure.csv (Azure LLM inference trace)" in done.stdout
    assert "w.parquet" in done.stdout
    assert list(read_workload(folder / "w.parquet")) == list(read_workload(folder / "azure.csv"))
    summaries = []
    for file in ("w.parquet", "azure.csv"):
        run = kvsim("run", "--workload", file, "--json", folder=folder)
        assert (run.returncode, run.stderr) == (0, "")
        summaries.append(json.loads(run.stdout))
    first, second = summaries
    assert first["num_finished"] == 2
    assert first["output_tokens"] == 13
    assert first["e2e_s"] == second["e2e_s"]


def test_lengths_get_limits_and_arrivals(kvsim: Run, folder: Path) -> None:
    limits = ("--max-total-tokens", "2048", "--num-requests", "10")
    arguments = (*limits, "--arrivals", "poisson", "--rate", "2", "--seed", "3")
    done = kvsim("import", "lengths.csv", *arguments, "--json", "-o", "w.parquet", folder=folder)
    summary = json.loads(done.stdout)
    assert summary["num_requests"] == 10
    assert 0.5 < summary["rate_per_s"] < 8
    assert "without 1 outside these limits" in summary["description"]
    again = kvsim("import", "lengths.csv", *arguments, "--json", "-o", "v.parquet", folder=folder)
    assert again.stdout == done.stdout
    assert (folder / "v.parquet").read_bytes() == (folder / "w.parquet").read_bytes()
    at_once = kvsim("run", "--workload", "lengths.csv", "--rate", "2", "--refuse-misfits", folder=folder)
    assert at_once.returncode == 2
    assert "kvsim import FILE --arrivals poisson --rate PER_S gives them new ones" in at_once.stderr


def test_the_length_of_a_token_is_for_the_conversations_without_counts(kvsim: Run, folder: Path) -> None:
    arguments = ("import", "talk.json", "--chars-per-token", "2", "--json")
    summary = json.loads(kvsim(*arguments, folder=folder).stdout)
    assert summary["mean_prompt_tokens"] > 1.9 * len(TALK[0]["value"]) / 4


def test_a_recording_is_a_workload_too(kvsim: Run, folder: Path) -> None:
    assert kvsim("run", "--workload", "azure.csv", "-o", "rec", folder=folder).returncode == 0
    done = kvsim("import", "rec", "--json", folder=folder)
    assert json.loads(done.stdout)["description"] == "the 2 requests of the recording rec"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("import", "wrong.csv"), 1, "wrong.csv, line 3: ContextTokens should be a whole number"),
        (("run", "--workload", "wrong.csv"), 1, "wrong.csv, line 3: ContextTokens should be a whole number"),
        (("import", "nowhere.csv"), 1, "nowhere.csv cannot be read: No such file or directory."),
        (("import", "azure.csv", "--as", "azur"), 2, "there is no format 'azur'; did you mean azure"),
        (("import", "azure.csv", "--rate", "2"), 2, "--rate is the rate of new arrivals; say which with --arrivals."),
        (("import", "azure.csv", "--chars-per-token", "3"), 2, "--chars-per-token is for ShareGPT conversations"),
        (
            ("import", "talk.json", "--as", "sharegpt", "--columns", "arrival_s=ts"),
            2,
            "--columns are those of a CSV file, not of the format sharegpt; leave them out.",
        ),
        (
            ("import", "talk.json", "--chars-per-token", "3", "--columns", "arrival_s=ts"),
            2,
            "--columns are those of a CSV file, not of the format sharegpt; leave them out.",
        ),
        (("import", "azure.csv", "--min-tokens", "99"), 1, "no request of 'azure' keeps these limits"),
        (("run", "--workload", "nosuch.csv"), 2, "there is no file or recording 'nosuch.csv'"),
        (("run", "--workload", "no/such"), 2, "there is no file or recording 'no/such'"),
        (("import", "wrong.csv", "--columns", "id=a,id=b"), 2, "--columns names a column of kvsim twice: 'id=a,id=b'"),
        (
            ("run", "--prompt-tokens", "3000:1", "--model", "Llama-2-7b-hf", "--gpu", "H200", "--num-requests", "100"),
            2,
            "18 of the 100 requests are longer than 4,096 tokens, the model's longest sequence; ask for shorter ones",
        ),
        (("import", "azure.csv", "-o", "no/w.parquet"), 2, "cannot write no/w.parquet: No such file or directory"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(
    kvsim: Run, folder: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    before = sorted(folder.iterdir())
    done = kvsim(*arguments, folder=folder)
    assert done.returncode == code
    assert done.stderr.startswith(f"kvsim: {sentence}")
    assert done.stderr.count("\n") == 1
    assert sorted(folder.iterdir()) == before
