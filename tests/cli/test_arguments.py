"""An argument that is empty, as an unset variable of a shell leaves it, or no text: nothing is run in its place."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--workload", "", "--json"), "--workload is empty"),
        (("run", "--workload=", "--json"), "--workload= is empty"),
        (("info", ""), "the argument behind info is empty"),
        (("run", "-o", ""), "-o is empty"),
    ],
)
def test_it_is_named(
    type_command: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], sentence: str
) -> None:
    code, output, complaint = type_command(*arguments)
    assert (code, output) == (2, "")
    assert complaint == f"kvsim: {sentence}; give it a value, or leave it out.\n"


def test_a_name_that_is_no_text_is_refused(type_command: Callable[..., tuple[int, str, str]]) -> None:
    code, output, complaint = type_command("run", "-o", "caf\udce9")
    assert (code, output) == (2, "")
    assert complaint == "kvsim: the argument 'caf\\udce9' is not UTF-8; give a name that is.\n"


def test_a_name_with_the_end_of_a_line_in_it_stays_on_one(type_command: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = type_command("import", "a\nb.csv")
    assert code == 1
    assert complaint == "kvsim: a\\nb.csv cannot be read: No such file or directory.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fit", "--rate", "nan"), "rate"),
        (("fit", "--rate=-inf"), "rate"),
        (("fit", "--rate=-1e308"), "rate"),
        (
            ("fit", "--rate", "2", "--num-requests", "4", "--replicas", "5"),
            "the flags ask for 5 servers, and there are 4 requests",
        ),
        (("compare", "--vllm", "0.25.1", "--vllm=0.33.0"), "compare two values with --vllm 0.25.1 0.33.0."),
        (("sweep", "-o", "s.parquet", "--figure", "f.png"), "draws against the first flag that varies; give --vary"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    type_command: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], sentence: str
) -> None:
    code, output, complaint = type_command(*arguments)
    assert (code, output) == (2, "")
    assert complaint.startswith("kvsim: ")
    assert sentence in complaint


@pytest.mark.parametrize(
    ("command", "names"), [("size", ["GPUs", "models"]), ("reproduce", ["rows"])], ids=["size", "reproduce"]
)
def test_a_list_for_machines(type_command: Callable[..., tuple[int, str, str]], command: str, names: list[str]) -> None:
    code, output, _ = type_command(command, "--list", "--json")
    assert code == 0
    document = json.loads(output)
    assert list(document) == names
    assert all(document.values())


def test_a_machine_without_memory_ends_in_a_sentence(
    type_command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("kvsim.importers.read_workload", full)
    code, _, complaint = type_command("import", "w.csv")
    assert code == 1
    assert complaint == "kvsim: there is not enough memory for this; ask for less of it, such as fewer requests.\n"
