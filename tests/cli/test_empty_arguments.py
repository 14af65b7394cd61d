"""An empty argument, as a shell variable that was never set leaves it, is refused: nothing is run in its place."""

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


def test_a_name_with_the_end_of_a_line_in_it_stays_on_one(type_command: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = type_command("import", "a\nb.csv")
    assert code == 1
    assert complaint == "kvsim: a\\nb.csv cannot be read: No such file or directory.\n"
