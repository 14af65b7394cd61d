"""Docstrings of attributes and constants are read alone, in an editor's tooltip: each says what it is about."""

from __future__ import annotations

import ast
from itertools import pairwise

from .conftest import REPOSITORY

PREPOSITIONS = "Above After As At Before Behind Below Beside Beyond By For From In Of On Since To Until Up With Without"
QUESTIONS = "How What When Where Which Who Whom Whose Why"
POINTERS = "Also And Have Is It Likewise None Not Only That These They Those"
UNPLAIN = frozenset(f"{PREPOSITIONS} {QUESTIONS} {POINTERS}".split())


def attribute_docstrings(source: str) -> list[tuple[int, str]]:
    """Line and text of every string that stands behind the assignment that it documents."""
    found = []
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, here in pairwise(body):
            is_string = isinstance(here, ast.Expr) and isinstance(here.value, ast.Constant)
            if is_string and isinstance(here.value.value, str) and isinstance(before, ast.Assign | ast.AnnAssign):
                found.append((here.lineno, " ".join(here.value.value.split())))
    return found


def test_docstrings_of_attributes_are_found() -> None:
    source = 'SIZE_BYTES = 1\n"""Bytes of\n\na page."""\nclass A:\n    b: int\n    """A number."""'
    assert attribute_docstrings(source) == [(2, "Bytes of a page."), (7, "A number.")]


def test_a_docstring_of_an_attribute_begins_with_what_it_names() -> None:
    unplain = [
        f"{file.relative_to(REPOSITORY)}:{line}: {text}"
        for file in sorted((*REPOSITORY.glob("kvsim/**/*.py"), *REPOSITORY.glob("tui/**/*.py")))
        for line, text in attribute_docstrings(file.read_text())
        if text.split()[0] in UNPLAIN or text[-1] not in ".:?!`)"
    ]
    assert unplain == []
