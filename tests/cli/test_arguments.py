"""An argument that is empty, as an unset variable of a shell leaves it, or no text: nothing is run in its place."""

from __future__ import annotations

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
