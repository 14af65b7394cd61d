"""Escaping of untrusted text: names, notes and labels in recordings, workloads, profiles, lessons and server responses
may contain anything. Each kind of output has its functions:

    a terminal, a figure, the interface    printable, printable_values
    a page                                 html_text, script_json, filled
    Markdown                               markdown_text, markdown_code
    the name of a file                     file_stem
    a digest of a value                    in_full

Only output is escaped; data keeps its names unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control, bidirectional and invisible characters, except line feed and tab."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~])")
_NO_FILE = re.compile(r"[^A-Za-z0-9_.+=@-]+")
_STEM_LETTERS = 100
_MESSAGE_LETTERS = 2_000
_VALUE_LETTERS = 400
_LONG_VALUE = re.compile(rf"\S{{{_VALUE_LETTERS},}}")


def printable(text: str) -> str:
    r"""Escape control characters and line breaks in `text`; for example, ESC becomes `\x1b`."""
    return _CONTROL.sub(_written_out, text).replace("\n", "\\n").replace("\t", "\\t")


def printable_lines(text: str) -> str:
    """Escape control characters in `text`, except line feeds and tabs."""
    return _CONTROL.sub(_written_out, text)


def printable_values(value: Any, make: Callable[[str], str] = printable) -> Any:
    """Apply `make` to every string in a JSON `value`, including keys."""
    match value:
        case str():
            return make(value)
        case Mapping():
            return {make(str(key)): printable_values(item, make) for key, item in value.items()}
        case list() | tuple():
            return [printable_values(item, make) for item in value]
        case _:
            return value


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 block`, `1,204 blocks`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size_words(num_bytes: float) -> str:
    """Format a number of bytes, such as `3.12 GiB`."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:,.2f} {unit}"
    return f"{num_bytes:,.0f} B"


def size_column(sizes: Iterable[float]) -> list[str]:
    """Format numbers of bytes in one unit, so that they can be added: GiB, or MiB if all are below 1 GiB."""
    sizes = list(sizes)
    unit, scale = ("GiB", 1 << 30) if max(map(abs, sizes), default=0) >= 1 << 30 else ("MiB", 1 << 20)
    return [f"{round(size / scale, 2) + 0.0:,.2f} {unit}" for size in sizes]  # + 0.0: no minus before 0.00


def abridged(text: str, length: int) -> str:
    """Shorten `text` to about `length` characters. Leave out the middle, because names often differ at their ends."""
    return text if len(text) <= length else f"{text[: length // 2]} … {text[-length // 3 :]}"


def message(text: str) -> str:
    """Escape an error message, and shorten it to about `_MESSAGE_LETTERS` characters.

    First, words of `_VALUE_LETTERS` or more characters are shortened.
    """
    text = _LONG_VALUE.sub(lambda value: abridged(value[0], _VALUE_LETTERS), printable(text))
    return abridged(text, _MESSAGE_LETTERS)


def html_text(text: str) -> str:
    """Escape `text` for an HTML element or a quoted attribute."""
    from html import escape  # noqa: PLC0415  terminals do not need it

    return escape(printable_lines(text), quote=True)


def script_json(value: Any) -> str:
    """Format `value` as JSON for an HTML script element. No value can end the element, because `<` is escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Replace marks such as `@TITLE@` in `template` by `parts`, in one pass: a mark inside a part stays as it is."""
    return re.sub("|".join(map(re.escape, parts)), lambda mark: parts[mark[0]], template)


def markdown_text(text: str) -> str:
    """Escape `text` for one line of Markdown."""
    return _MARKDOWN.sub(r"\\\1", printable(text.replace("\n", " ")))


def markdown_code(text: str, *, least: int = 1) -> str:
    """Format `text` as Markdown code, or with `least` above 1 as a block of code.

    The fence has at least `least` backticks, and one more than the longest run of backticks in `text`.
    """
    longest = max(map(len, re.findall("`+", text)), default=0)
    ticks = "`" * max(longest + 1, least)
    return f"{ticks}\n{text}\n{ticks}" if least > 1 else f"{ticks}{text}{ticks}"


def file_stem(text: str) -> str:
    """Convert `text` to a safe file name without extension; "kvsim" if nothing is left."""
    stem = _NO_FILE.sub("-", text).strip("-.")
    return stem[-_STEM_LETTERS:].lstrip("-.") or "kvsim"


def _written_out(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode("ascii")


def in_full(value: Any) -> str:
    """Format `value` completely: of dataclasses, also within lists and tuples, every field with `repr=True`."""
    if isinstance(value, (float, int, str)):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        shown = (f"{field.name}={in_full(getattr(value, field.name))}" for field in fields(value) if field.repr)
        return f"{type(value).__qualname__}({', '.join(shown)})"
    if isinstance(value, list):
        return f"[{', '.join(map(in_full, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(in_full, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
