"""A file that is one JSON list of objects, one object at a time: published conversations have hundreds of megabytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kvsim.errors import WorkloadError
from kvsim.importers.source import Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from kvsim.importers.source import Source

_LINES_AT_ONCE = 4096
_CUT_OFF = "the file ends in the middle of a list"
_SPACE = re.compile(r"[ \t\r\n]*")


def entries(source: Source) -> Iterator[Row]:
    """The objects of the list, each with the line on which it begins.

    Raises:
        WorkloadError: it is no list of objects; the message names the line.
    """
    text = _Reading(source.path, source.lines)
    text.take("[")
    if text.next_letter() == "]":
        text.take("]")
    else:
        yield text.row()
        while text.next_letter() == ",":
            text.take(",")
            yield text.row()
        text.take("]")
    if text.next_letter():
        raise text.error("the list has ended, and something follows")


class _Reading:
    """Lines of JSON, joined only as far as they are needed, and a place in them."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path, self._lines, self._num_read = path, lines, 0
        self._text, self._at, self._line = "", 0, 1
        self._decode = json.JSONDecoder().raw_decode

    def error(self, sentence: str) -> WorkloadError:
        """The error that says what is wrong at this place."""
        return WorkloadError(f"{self._path}, line {min(self._line, len(self._lines))}: {sentence}.")

    def next_letter(self) -> str:
        """The letter at this place, behind any space; an empty string at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space is not None
            self._go_to(space.end())
            if self._at < len(self._text) or not self._read_on(_LINES_AT_ONCE):
                return self._text[self._at : self._at + 1]

    def take(self, letter: str) -> None:
        """Step over `letter`, which should be the next one."""
        found = self.next_letter()
        if not found:
            raise self.error(_CUT_OFF)
        if found != letter:
            raise self.error(f"this is no JSON list of objects: there should be {letter!r}, not {found!r}")
        self._at += 1

    def row(self) -> Row:
        """Step over an object."""
        if not self.next_letter():
            raise self.error(_CUT_OFF)
        num_lines = _LINES_AT_ONCE
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                break
            except json.JSONDecodeError as error:
                # What is cut off here may go on in the lines to come; twice as many each time, so that it ends soon.
                num_lines, wrong_at = 2 * num_lines, error.pos - self._at
                if not self._read_on(num_lines):
                    self._go_to(wrong_at)
                    raise self.error(f"this is no JSON: {error.msg}") from error
            except ValueError as error:
                raise self.error("there is a number of thousands of digits, which no request has") from error
            except RecursionError as error:
                raise self.error("this is nested too deeply to be a request") from error
        row = Row(path=self._path, line=self._line, fields=self._object(value))
        self._go_to(end)
        return row

    def _object(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(f"there should be a JSON object, not {json.dumps(value)[:40]}")
        return value

    def _go_to(self, at: int) -> None:
        self._line += self._text.count("\n", self._at, at)
        self._at = at

    def _read_on(self, num_lines: int) -> bool:
        """Join more lines behind what is left; False where there are none."""
        more = self._lines[self._num_read : self._num_read + num_lines]
        self._text, self._at = self._text[self._at :] + "".join(f"{line}\n" for line in more), 0
        self._num_read += len(more)
        return bool(more)
