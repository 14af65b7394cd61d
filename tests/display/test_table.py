"""A table is laid out as rich would lay it out, and loses nothing where it does not fit."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvsim.display.table import cell_width, folded, table_lines

WORDS = st.lists(st.text("abcdefgh,.%é世", min_size=1, max_size=14), min_size=1, max_size=6).map(" ".join)
CELLS = st.lists(WORDS, min_size=1, max_size=2).map("\n".join)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]], list[int]]:
    num_columns = draw(st.integers(1, 4))
    columns = draw(st.lists(WORDS | st.just(""), min_size=num_columns, max_size=num_columns))
    rows = draw(st.lists(st.lists(CELLS, min_size=num_columns, max_size=num_columns), min_size=1, max_size=4))
    return columns, rows, draw(st.lists(st.integers(0, num_columns - 1), unique=True))


@given(tables())
def test_it_looks_as_rich_draws_it(table: tuple[list[str], list[list[str]], list[int]]) -> None:
    columns, rows, figures = table
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for index, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if index in figures else "left", no_wrap=index in figures)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=1_000, highlight=False)
    console.print(drawn)
    head, body = table_lines(columns, rows, width=1_000, figures=figures)
    assert isinstance(console.file, io.StringIO)
    assert [*head, *body] == console.file.getvalue().splitlines()


@given(tables(), st.integers(20, 120))
def test_what_folds_is_all_there_and_fits(table: tuple[list[str], list[list[str]], list[int]], width: int) -> None:
    columns, rows, _ = table
    head, body = table_lines(columns, rows, width=width)
    lines = [*head, *body]
    assert len({cell_width(line) for line in lines}) == 1
    needed = 2 + 3 * (len(columns) - 1) + 10 * len(columns)
    assert cell_width(lines[0]) <= max(width, needed)
    said = "".join([*columns, *(cell for row in rows for cell in row)]).split()
    assert sorted("".join(lines).replace(" ", "").replace("─", "")) == sorted("".join(said))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("throughput 2 % (44 %)", ["throughput", "2 % (44 %)"]),
        ("abcdefghijklmno pq", ["abcdefghij", "klmno pq"]),
        ("世界世界世界世界", ["世界世界世", "界世界"]),
        ("one\ntwo", ["one", "two"]),
        ("", [""]),
    ],
)
def test_folds_between_words_and_inside_longer_ones(text: str, lines: list[str]) -> None:
    assert folded(text, 10) == lines


def test_figures_stay_whole() -> None:
    head, body = table_lines(
        ["name", "bytes"], [["a model with a long name", "1,234,567,890 B"]], width=30, figures=[1]
    )
    assert any("1,234,567,890 B" in line for line in body)
    assert all(cell_width(line) == 30 for line in (*head, *body))
