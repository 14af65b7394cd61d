"""Every rule of the engine, broken once. The rules are in `mutations.diff`; this module aims and applies them.

The file is a list of hunks: `@@ function: rule`, then lines as in a diff. The old lines are a pattern (`patterns`), so
they are aimed at the syntax tree of a function, wherever it is defined: formatting, comments, other names and another
file break no aim. The new lines are written with the names found. They must match in one place.

A head without a rule begins another hunk of the same mutation. Where no line of a hunk changes, it only tells names
that the others need.
"""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from . import patterns
from .patterns import Found

ROOMS = ("engine", "policies", "conformance")
"""Folders of the package that define what is mutated."""
Trees: TypeAlias = Mapping[str, ast.Module]
"""Syntax trees of modules by their paths in the package."""
_Defined: TypeAlias = tuple[str, str, ast.FunctionDef]
"""A function: the path of its module, its qualified name and its tree."""


def parse_rooms(package: Path) -> Trees:
    """Parse the modules that mutations are aimed at, in the folder of the package."""
    files = sorted(file for room in ROOMS for file in (package / room).rglob("*.py"))
    return {str(file.relative_to(package)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@dataclass(frozen=True, slots=True)
class Hunk:
    """Code to find in a function and the code that replaces it."""

    function: str
    """With its class, if it has one."""
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class _Place:
    """The code that a hunk was aimed at, and what its names stand for there."""

    path: str
    function: ast.FunctionDef
    nodes: list[Any]
    found: Found


@dataclass(frozen=True, slots=True)
class Mutation:
    """One broken rule."""

    rule: str
    """What the engine does instead."""
    hunks: tuple[Hunk, ...]

    def apply(self, trees: Trees) -> dict[str, str]:
        """Break the rule; return the new source text of the modules that change, by path.

        Raises:
            ValueError: the old code of a hunk is nowhere or in several places, or its new code has a name that no old
                code has.
        """
        defined = _functions_of(tuple(trees.items()))
        places, shared, local = self._aim(defined)
        functions = {name.rpartition(".")[2] for _, name, _ in defined}
        edits: defaultdict[str, dict[int, list[Any]]] = defaultdict(dict)
        for hunk, place in zip(self.hunks, places, strict=True):
            if hunk.new == hunk.old:
                continue
            try:
                new = patterns.parse(hunk.new, beside=hunk.old)
                new = patterns.fill(new, place.found | shared | local[hunk.function], functions)
            except ValueError as error:
                raise ValueError(f"{self.rule}: in the new code of `{hunk.function}` {error}") from error
            edits[place.path] |= {id(node): new if node is place.nodes[0] else [] for node in place.nodes}
        functions_of_places = {id(place.function) for place in places}
        return {path: text_of(_edited(trees[path], functions_of_places, edit)) for path, edit in edits.items()}

    def _aim(self, defined: Sequence[_Defined]) -> tuple[list[_Place], Found, Mapping[str, Found]]:
        """Find the function of each hunk, and the meaning of names: in the package, and in each function."""
        places: list[_Place] = []
        shared: Found = {}
        local: defaultdict[str, Found] = defaultdict(dict)
        for hunk in self.hunks:
            functions = [(path, node) for path, name, node in defined if name == hunk.function]
            chosen = {id(place.function) for place in places} & {id(node) for _, node in functions}
            pattern, found = patterns.parse(hunk.old, beside=hunk.new), shared | local[hunk.function]
            matched = [
                _Place(path, node, *match)
                for path, node in functions
                if not chosen or id(node) in chosen
                for match in patterns.matches(pattern, node, found)
            ]
            if len(matched) != 1:
                lines = ", ".join(f"{place.path}:{place.nodes[0].lineno}" for place in matched) or "nowhere"
                modules = ", ".join(path for path, _ in functions) or "no module"
                raise ValueError(
                    f"{self.rule}: this code should be in one place of `{hunk.function}` (defined in {modules}) and is "
                    f"found {lines}:\n{hunk.old}"
                )
            places += matched
            own = patterns.assigned(matched[0].function)
            for key, meant in matched[0].found.items():
                if not key.startswith("..."):
                    (local[hunk.function] if key[0] != "." and meant in own else shared)[key] = meant
        return places, shared, local


def _edited(module: ast.Module, functions: set[int], edit: dict[int, list[Any]]) -> ast.Module:
    """The module with other nodes in the place of some, which are in these functions; the rest is shared."""
    body = [
        patterns.replace(each, edit) if functions & {id(each), *map(id, getattr(each, "body", ()))} else each
        for each in module.body
    ]
    return ast.Module(body, module.type_ignores)


def text_of(module: ast.Module) -> str:
    """The source of a module; what it shares with another one is written once."""
    return "\n".join(map(_text_of, module.body))


@cache
def _text_of(statement: ast.stmt) -> str:
    return ast.unparse(statement)


def read(text: str) -> tuple[Mutation, ...]:
    """Read mutations from hunks."""
    mutations: list[tuple[str, list[Hunk]]] = []
    for block in ("\n" + text).split("\n@@ ")[1:]:
        head, *lines = block.splitlines()
        function, _, rule = head.partition(": ")
        old, new = ("\n".join(line[1:] for line in lines if line[:1] in kept) for kept in ((" ", "-"), (" ", "+")))
        if rule:
            mutations.append((rule, []))
        mutations[-1][1].append(Hunk(function, textwrap.dedent(old), textwrap.dedent(new)))
    return tuple(Mutation(rule, tuple(hunks)) for rule, hunks in mutations)


@cache
def _functions_of(modules: tuple[tuple[str, ast.Module], ...]) -> tuple[_Defined, ...]:
    return tuple(functions_in(dict(modules)))


def functions_in(trees: Trees) -> Iterator[_Defined]:
    """Path, qualified name and tree of every function and method."""
    for path, module in trees.items():
        for node in module.body:
            if isinstance(node, ast.FunctionDef):
                yield path, node.name, node
            elif isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        yield path, f"{node.name}.{inner.name}", inner


MUTATIONS = read(Path(__file__).with_suffix(".diff").read_text(encoding="utf-8"))
