"""Reader of a JSON list of objects, one at a time, because published conversations have hundreds of megabytes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kvsim.errors import WorkloadError, reason_of
from kvsim.files.json_text import check_limits, unique_keys
from kvsim.importers.source import SourceRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvsim.importers.source import TextSource

_AT_ONCE = 1 << 22
"""Number of characters that are read together. Most objects have fewer."""
_MOST = 1 << 26
"""Largest number of characters of an object."""
_CUT_OFF = "the file ends in the middle of a list"
_SPACE = re.compile(r"[ \t\r\n]*")


def entries(source: TextSource) -> Iterator[SourceRow]:
    """Yield the objects of the list, each with the line on which it begins.

    Raises:
        WorkloadError: the file is no list of objects, or too large.
    """
    text = _Position(source.path, source.lines)
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


class _Position:
    """Position in the lines of a JSON file. Only as many lines are joined as the next object needs."""

    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path, self._num_lines, self._pieces = path, len(lines), _pieces(lines)
        self._text, self._at, self._line = "", 0, 1
        self._decode = json.JSONDecoder(object_pairs_hook=unique_keys).raw_decode

    def error(self, sentence: str) -> WorkloadError:
        return WorkloadError(f"{self._path}, line {min(self._line, self._num_lines)}: {sentence}.")

    def next_letter(self) -> str:
        """Skip white space, and return the character after it without taking it; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space is not None
            self._go_to(space.end())
            if self._at < len(self._text) or not self._read_on(_AT_ONCE):
                return self._text[self._at : self._at + 1]

    def take(self, letter: str) -> None:
        """Skip white space and the character after it, which must be `letter`."""
        found = self.next_letter()
        if not found:
            raise self.error(_CUT_OFF)
        if found != letter:
            raise self.error(f"this is no JSON list of objects: there should be {letter!r}, not {found!r}")
        self._at += 1

    def row(self) -> SourceRow:
        """Return the next object of the list, and go to the character after it."""
        if not self.next_letter():
            raise self.error(_CUT_OFF)
        num_letters = _AT_ONCE
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                break
            except json.JSONDecodeError as error:
                # The object may continue after the text that was read. Doubling the amount keeps the total time linear.
                num_letters, wrong_at = 2 * num_letters, error.pos - self._at
                if len(self._text) - self._at > _MOST:
                    raise self.error(f"an object is longer than {_MOST:,} letters, or is no JSON") from error
                if not self._read_on(num_letters):
                    self._go_to(wrong_at)
                    raise self.error(f"this is no JSON: {error.msg}") from error
                self._check_extent()
            except ValueError as error:
                raise self.error(f"this is no JSON that can be read: {reason_of(error)}") from error
            except RecursionError as error:
                raise self.error("this is nested too deeply to be a request") from error
        if end - self._at > _MOST:
            raise self.error(f"an object is longer than {_MOST:,} letters")
        if not isinstance(value, dict):
            raise self.error(f"there should be a JSON object, not {json.dumps(value)[:40]}")
        row = SourceRow(path=self._path, line=self._line, fields=value)
        self._go_to(end)
        return row

    def _check_extent(self) -> None:
        try:
            check_limits(self._text)
        except ValueError as error:
            raise self.error(f"this is no request: {error}") from error

    def _go_to(self, at: int) -> None:
        self._line += self._text.count("\n", self._at, at)
        self._at = at

    def _read_on(self, num_letters: int) -> bool:
        """Join at least `num_letters` further characters, or all that are left, to the text; tell if there were any."""
        pieces, length = [self._text[self._at :]], 0
        while length < num_letters:
            piece = next(self._pieces, "")
            if not piece:
                break
            pieces.append(piece)
            length += len(piece)
        self._text, self._at = "".join(pieces), 0
        return length > 0


def _pieces(lines: list[str]) -> Iterator[str]:
    """Yield the text of `lines` in pieces, because the whole file may be one line."""
    for line in lines:
        for start in range(0, len(line), _AT_ONCE):
            yield line[start : start + _AT_ONCE]
