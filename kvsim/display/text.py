"""Text from outside as data: names, notes and labels that stand in a recording, a workload, a profile, a lesson or a
server's answer may hold anything. Whatever shows them makes them safe here, each place in its own way:

    a terminal, a figure, the interface    printable, printable_values
    a page                                 html_text, script_json, filled
    Markdown                               markdown_text, markdown_code
    the name of a file                     file_stem
    a digest of a value                    in_full

Nothing is lost by it: what is read, computed with and written keeps its names as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that move a cursor, change colours, turn the direction of writing, or cannot be seen; but for the ends of
lines and tabulators.
"""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~])")
_NO_FILE = re.compile(r"[^A-Za-z0-9_.+=@-]+")
_STEM_LETTERS = 100
_MESSAGE_LETTERS = 2_000
_VALUE_LETTERS = 400
_LONG_VALUE = re.compile(rf"\S{{{_VALUE_LETTERS},}}")


def printable(text: str) -> str:
    r"""`text` on one line, with `\x1b` written out for an escape character, and others alike."""
    return _CONTROL.sub(_written_out, text).replace("\n", "\\n").replace("\t", "\\t")


def printable_lines(text: str) -> str:
    """`text` with its lines and tabulators, and otherwise `printable`."""
    return _CONTROL.sub(_written_out, text)


def printable_values(value: Any, make: Callable[[str], str] = printable) -> Any:
    """`value`, as JSON has it, with every text in it `printable`, keys too; or as `make` makes it."""
    match value:
        case str():
            return make(value)
        case Mapping():
            return {make(str(key)): printable_values(item, make) for key, item in value.items()}
        case list() | tuple():
            return [printable_values(item, make) for item in value]
        case _:
            return value


def abridged(text: str, length: int) -> str:
    """`text` in about `length` letters: names differ in their ends, so the middle is left out."""
    return text if len(text) <= length else f"{text[: length // 2]} … {text[-length // 3 :]}"


def message(text: str) -> str:
    """A sentence for a person, `printable` and without the middle of values that fill the screen."""
    text = _LONG_VALUE.sub(lambda value: abridged(value[0], _VALUE_LETTERS), printable(text))
    return abridged(text, _MESSAGE_LETTERS)


def html_text(text: str) -> str:
    """`text` as it stands in a page, inside an element or an attribute in quotes."""
    from html import escape  # noqa: PLC0415  a terminal needs no page

    return escape(printable_lines(text), quote=True)


def script_json(value: Any) -> str:
    """`value` as JSON inside a page's script: no `<` is left, so nothing in it can end the script or open another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def filled(template: str, parts: Mapping[str, str]) -> str:
    """`template` with each mark such as `@TITLE@` replaced, in one pass: a mark inside what is put in stays text."""
    return re.sub("|".join(map(re.escape, parts)), lambda mark: parts[mark[0]], template)


def markdown_text(text: str) -> str:
    """`text` on one line of Markdown, where none of its characters has a meaning."""
    return _MARKDOWN.sub(r"\\\1", printable(text.replace("\n", " ")))


def markdown_code(text: str, *, least: int = 1) -> str:
    """`text` as code in Markdown, between more backticks than it has in a row, and at least `least`."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks = "`" * max(longest + 1, least)
    return f"{ticks}\n{text}\n{ticks}" if least > 1 else f"{ticks}{text}{ticks}"


def file_stem(text: str) -> str:
    """`text` as the name of a file in the folder where it is written, without an ending."""
    stem = _NO_FILE.sub("-", text).strip("-.")
    return stem[-_STEM_LETTERS:].lstrip("-.") or "kvsim"


def _written_out(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")


def in_full(value: Any) -> str:
    """`value` with everything that it is made of: field by field where its `repr` is short, for people."""
    if isinstance(value, (float, int, str)):  # which most of it is
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f"{field.name}={in_full(getattr(value, field.name))}" for field in fields(value) if field.repr)
        return f"{type(value).__qualname__}({', '.join(shown)})"
    if isinstance(value, list):
        return f"[{', '.join(map(in_full, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(in_full, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
