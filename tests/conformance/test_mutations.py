"""The mutations are aimed at rules that are there, and a rename breaks no aim."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import pytest

import kvsim

from .mutations import MUTATIONS, Mutation, Trees, functions_in, parse_rooms, read, text_of
from .patterns import assigned

FILE = "engine/pool.py"
ALLOCATE = """
def allocate(pool, wanted):
    if pool.num_free < wanted:
        return False
    if pool.num_left < 0:
        return False
    pool.num_free -= wanted
    return True
"""


@pytest.fixture(scope="module")
def trees() -> Trees:
    return parse_rooms(Path(kvsim.__file__).parent)


@pytest.fixture(scope="module")
def texts(trees: Trees) -> dict[str, str]:
    """Each module as it is written where nothing is mutated."""
    return {path: text_of(module) for path, module in trees.items()}


@pytest.fixture(scope="module")
def renamed(trees: Trees) -> Trees:
    """All names but those of functions and builtins are other ones: in each function, and for attributes."""
    renamed = parse_rooms(Path(kvsim.__file__).parent)
    kept = {name.rpartition(".")[2] for _, name, _ in functions_in(trees)} | set(dir(builtins))
    for number, (_, _, function) in enumerate(functions_in(renamed)):
        own = assigned(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in own:
                node.id += f"_renamed{number}"
            elif isinstance(node, ast.arg):
                node.arg += f"_renamed{number}"
    nodes = [node for module in renamed.values() for node in ast.walk(module)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in kept and "_renamed" not in node.id:
            node.id += "_renamed"
        elif isinstance(node, ast.Attribute) and not (id(node) in called and node.attr in kept):
            node.attr += "_renamed"
        elif isinstance(node, ast.keyword) and node.arg is not None:
            node.arg += "_renamed"
    return renamed


def test_every_rule_is_broken_once() -> None:
    assert len({mutation.rule for mutation in MUTATIONS}) == len(MUTATIONS) > 0


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_mutation_breaks_a_rule_that_is_there(
    mutation: Mutation, trees: Trees, renamed: Trees, texts: dict[str, str]
) -> None:
    mutated = mutation.apply(trees)
    assert mutated
    assert all(text != texts[path] for path, text in mutated.items())
    assert mutated == {path: re.sub(r"_renamed\d*", "", text) for path, text in mutation.apply(renamed).items()}


def apply(diff: str, source: str = ALLOCATE) -> str:
    (mutation,) = read(diff)
    return mutation.apply({FILE: ast.parse(source)})[FILE]


def test_a_mutation_changes_only_what_it_is_aimed_at() -> None:
    mutated = apply("@@ allocate: all is left\n-pool.num_free -= wanted")
    assert mutated == ast.unparse(ast.parse(ALLOCATE.replace("    pool.num_free -= wanted\n", "")))


def test_a_mutation_of_code_that_is_gone_says_so() -> None:
    with pytest.raises(
        ValueError, match=r"all is taken: .* `allocate` \(defined in engine/pool.py\) and is found nowhere"
    ):
        apply("@@ allocate: all is taken\n-pool.num_free += wanted")


def test_a_mutation_of_a_function_that_is_gone_says_so() -> None:
    with pytest.raises(ValueError, match=r"all is taken: .*defined in no module"):
        apply("@@ take: all is taken\n-pool.num_free -= wanted")


def test_a_mutation_that_could_change_several_places_says_where() -> None:
    with pytest.raises(ValueError, match=r"it never fails: .* engine/pool\.py:4, engine/pool\.py:6"):
        apply("@@ allocate: it never fails\n-return False\n+return True")


def test_a_mutation_uses_no_name_that_the_old_code_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"what is held counts: .* nothing tells what `\.num_held` is"):
        apply("@@ allocate: what is held counts\n-pool.num_free < wanted\n+pool.num_free < pool.num_held")
