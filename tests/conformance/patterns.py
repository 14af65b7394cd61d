"""Patterns of code: find the syntax trees that look like one, whatever their names, and write code with their names.

A name or an attribute of a pattern stands for the one at its place; builtins and literals stand for themselves. `...`
stands for one expression, or, as a statement, for any number of statements.
"""

from __future__ import annotations

import ast
import builtins
import copy
import operator
from collections.abc import Iterator, Set
from functools import cache
from typing import Any, TypeAlias

Found: TypeAlias = dict[str, Any]
"""What the parts of a pattern stand for, by `name`, `.attribute` and, for the nodes at `...`, by `...0`, `...1`."""
_BUILTINS = frozenset(dir(builtins))
_IDENTIFIERS = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr", ast.keyword: "arg"}
_WITHOUT_MEANING = ("ctx", "kind", "type_comment")


@cache
def parse(code: str, *, beside: str) -> list[Any]:
    """Parse one of two pieces of code: to an expression where both are one, else to statements."""
    body = ast.parse(code).body
    holes = [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.Constant) and node.value is ...]
    for number, hole in enumerate(sorted(holes, key=lambda hole: (hole.lineno, hole.col_offset))):
        hole.kind = str(number)
    if all(len(side) == 1 and isinstance(side[0], ast.Expr) for side in (body, ast.parse(beside).body)):
        return [body[0].value]  # type: ignore[attr-defined]
    return list(body)


def assigned(tree: ast.AST) -> set[str]:
    """List the names that a tree assigns to or has as parameters."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def matches(pattern: list[Any], function: ast.FunctionDef, found: Found) -> Iterator[tuple[list[Any], Found]]:
    """Find the expressions, or the runs of statements, that match, with all that is found by then."""
    for node in ast.walk(function):
        if isinstance(pattern[0], ast.expr):
            if isinstance(node, ast.expr):
                yield from (([node], known) for known in _match(pattern[0], node, found))
            continue
        for _, body in ast.iter_fields(node):
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                runs = (body[begin:end] for begin in range(len(body)) for end in range(begin + 1, len(body) + 1))
                yield from ((run, known) for run in runs for known in _match_all(pattern, run, found))


def fill(pattern: list[Any], found: Found, functions: Set[str]) -> list[Any]:
    """Write the pattern with what its parts stand for. It may also call `functions` and assign to names of its own.

    Raises:
        ValueError: nothing tells what a name stands for.
    """
    filling = _Filling(found, functions, assigned(ast.Module(pattern, [])))
    filled = [filling.visit(copy.deepcopy(node)) for node in pattern]
    return [node for part in filled for node in (part if isinstance(part, list) else [part])]


def replace(tree: Any, new: dict[int, list[Any]]) -> Any:
    """Return the tree with other nodes in the place of some, which are given by their ids. The tree itself stays; parts
    in which nothing changes are shared.
    """
    if isinstance(tree, list):
        return [node for each in tree for node in (new[id(each)] if id(each) in new else [replace(each, new)])]
    if id(tree) in new:
        return new[id(tree)][0]
    if not isinstance(tree, ast.AST):
        return tree
    changed = {}
    for name, value in vars(tree).items():
        if isinstance(value, list | ast.AST):
            replaced = replace(value, new)
            if isinstance(value, list):
                if len(replaced) != len(value) or any(map(operator.is_not, replaced, value)):
                    changed[name] = replaced
            elif replaced is not value:
                changed[name] = replaced
    if not changed:
        return tree
    if changed.get("body") == []:
        changed["body"] = [ast.Pass()]
    return type(tree)(**vars(tree) | changed)


def _key(node: Any) -> str:
    name = str(getattr(node, _IDENTIFIERS[type(node)]))
    return name if isinstance(node, ast.Name | ast.arg) else f".{name}"


def _hole(pattern: Any) -> str | None:
    """The key of a pattern that is `...`."""
    if isinstance(pattern, ast.Expr):
        pattern = pattern.value
    return f"...{pattern.kind}" if isinstance(pattern, ast.Constant) and pattern.value is ... else None


def _match(pattern: Any, node: Any, found: Found) -> Iterator[Found]:
    """Yield what is found for each way in which the pattern matches."""
    if isinstance(pattern, list):
        yield from _match_all(pattern, node, found)
    elif not isinstance(pattern, ast.AST):
        if type(pattern) is type(node) and pattern == node:
            yield found
    elif (hole := _hole(pattern)) is not None:
        if isinstance(node, ast.expr):
            yield found | {hole: node}
    elif type(pattern) is type(node):
        identifier = _IDENTIFIERS.get(type(pattern))
        fields = [field for field in pattern._fields if field != identifier and field not in _WITHOUT_MEANING]
        if identifier is None or (found := _match_identifier(pattern, node, found)):
            patterns, nodes = ([getattr(side, field) for field in fields] for side in (pattern, node))
            yield from _match_all(patterns, nodes, found)


def _match_identifier(pattern: ast.AST, node: ast.AST, found: Found) -> Found:
    """Return what is found with this name, nothing where it does not match."""
    key, name = _key(pattern), _key(node)
    if key in _BUILTINS or name in _BUILTINS:
        return found | {key: name} if key == name else {}
    name = name.removeprefix(".")
    if key not in found and key[0] == "." and any(known[0] == "." and found[known] == name for known in found):
        return {}  # attributes that a pattern tells apart are different
    return found | {key: name} if found.get(key, name) == name else {}


def _match_all(patterns: list[Any], nodes: list[Any], found: Found) -> Iterator[Found]:
    if not patterns:
        if not nodes:
            yield found
    elif isinstance(patterns[0], ast.Expr) and (hole := _hole(patterns[0])) is not None:
        for size in range(len(nodes) + 1):
            yield from _match_all(patterns[1:], nodes[size:], found | {hole: nodes[:size]})
    elif nodes:
        for known in _match(patterns[0], nodes[0], found):
            yield from _match_all(patterns[1:], nodes[1:], known)


class _Filling(ast.NodeTransformer):
    def __init__(self, found: Found, functions: Set[str], fresh: Set[str]) -> None:
        self._functions = functions
        self._found = {name: name for name in _BUILTINS | fresh} | found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name | ast.Attribute):
            name = _key(node.func).removeprefix(".")
            if name in self._functions:
                self._found.setdefault(_key(node.func), name)
        return self.generic_visit(node)

    def visit(self, node: ast.AST) -> Any:
        if (hole := _hole(node)) is not None:
            return copy.deepcopy(self._found[hole])
        if type(node) in _IDENTIFIERS:
            if _key(node) not in self._found:
                raise ValueError(f"nothing tells what `{_key(node)}` is")
            setattr(node, _IDENTIFIERS[type(node)], self._found[_key(node)])
        return super().visit(node)
