"""Text files of requests as numbered lines, so that every error of a reader names the line."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.errors import WorkloadError, reason_of, shortened
from kvsim.files.contents import TABLE_BYTES, UNPACKED_TABLE_BYTES, content_of, unpacked
from kvsim.files.json_text import parse
from kvsim.importers.column_names import rivals

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

_MOST_DIGITS = 20
"""Largest number of digits of a whole number that fits into some column."""
_FEW_DIGITS = 9
"""Largest number of digits with which every number fits into every column."""
_ROWS_AT_ONCE = 1 << 13
_MOST_UNPACKED_LINES = 1 << 23
_LONGEST_LINE = 1 << 20
"""Limit for the number of characters of a CSV line. A line of commas would have a field for each."""
_GZIP = b"\x1f\x8b"
_UNREADABLE = {
    b"\x28\xb5\x2f\xfd": "packed with zstd", b"BZh": "packed with bzip2", b"\xfd7zXZ\0": "packed with xz",
    b"\x04\x22\x4d\x18": "packed with lz4", b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"7z\xbc\xaf\x27\x1c": "packed with 7z", b"\xd0\xcf\x11\xe0": "a spreadsheet", b"SQLite format 3": "a database",
    b"\xff\xfe": "text in UTF-16", b"\xfe\xff": "text in UTF-16", b"ARROW1": "an Arrow file", b"%PDF": "a PDF document",
}  # fmt: skip
"""First bytes of kinds of files that are not supported, and words for each kind in errors."""
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Text file that was read completely, without blank lines at its end."""

    path: Path
    lines: list[str]
    """Lines with their line breaks, because a quoted CSV field may contain line breaks."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TextSource:
        """Read `path`, and decompress it if its first bytes are those of gzip.

        Raises:
            WorkloadError: the file cannot be read, is not text, or is empty.
        """
        file = Path(path)
        try:
            content = content_of(file, TABLE_BYTES)
            if content.startswith(_GZIP):
                content = unpacked(content, UNPACKED_TABLE_BYTES, most_lines=_MOST_UNPACKED_LINES)
        except (EOFError, zlib.error) as error:
            raise WorkloadError(f"{file} is a damaged or truncated gzip file: {error}.") from error
        except OSError as error:
            raise WorkloadError(f"{file} cannot be read: {reason_of(error)}.") from error
        kind = next((kind for magic, kind in _UNREADABLE.items() if content.startswith(magic)), None)
        if kind is not None:
            raise WorkloadError(f"{file} is {kind}; give it as text in UTF-8, plain or packed with gzip.")
        lines = list(_decoded(file, content.removeprefix(codecs.BOM_UTF8)))
        while lines and not lines[-1].strip():
            lines.pop()
        if not lines:
            raise WorkloadError(f"{file} is empty; it should have a line for each request or rate.")
        return cls(path=file, lines=lines)

    @property
    def name(self) -> str:
        """The file's name without its endings: `conversation_trace.jsonl.gz` is `conversation_trace`."""
        return self.path.name.partition(".")[0] or self.path.name

    @cached_property
    def header(self) -> tuple[str, ...]:
        """Names of the CSV columns in the first line; empty if it is no CSV."""
        if len(self.lines[0]) > _LONGEST_LINE:
            return ()
        try:
            return tuple(field.strip() for field in next(csv.reader(self.lines[:1], delimiter=self.delimiter), []))
        except csv.Error:  # such as a field that is longer than any name
            return ()

    @property
    def delimiter(self) -> str:
        """Separator of the CSV fields: comma, semicolon or tab, whichever is most frequent in the first line."""
        return max(",;\t", key=self.lines[0].count)

    def first_object(self) -> dict[str, Any]:
        """Return the first line as a JSON object; an empty object if it is none."""
        if not self.lines[0].lstrip().startswith("{"):
            return {}
        try:
            document: dict[str, Any] = parse(self.lines[0])
        except json.JSONDecodeError:
            return {}
        except ValueError as error:
            raise WorkloadError(f"{self.path}, line 1: this is no JSON that can be read: {error}.") from error
        return document

    def csv_rows(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[SourceRow]:
        """Yield the rows of a CSV file that has at least the columns `required`, in any order.

        `optional` are further columns to read, if the file has them.

        Raises:
            WorkloadError: a column is missing, or a line is no CSV row.
        """
        for block in self.csv_blocks(required, optional):
            yield from block.rows()

    def csv_blocks(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[CsvBlock]:
        """Yield the rows of a CSV file in blocks of some thousands; see `csv_rows`."""
        columns = self.header
        missing = [name for name in required if name not in columns]
        if missing:
            wanted = ",".join(required) + (f", and may have {', '.join(optional)}" if optional else "")
            raise WorkloadError(
                f"{self.path}, line 1: the column {missing[0]} is missing; the first line should name {wanted}."
            )
        twice = [name for name in columns if name and columns.count(name) > 1]
        if twice:
            raise WorkloadError(f"{self.path}, line 1: the column {twice[0]} is there more than once.")
        long = next((number for number, line in enumerate(self.lines, 1) if len(line) > _LONGEST_LINE), None)
        if long is not None:
            raise WorkloadError(f"{self.path}, line {long}: it has more than {_LONGEST_LINE:,} letters.")
        reader = csv.reader(self.lines[1:], delimiter=self.delimiter, strict=True)
        more = True
        while more:
            block, wrong = CsvBlock(self.path, columns, [], []), None
            try:
                for fields in islice(reader, _ROWS_AT_ONCE):
                    block.fields.append(fields)
                    block.lines.append(reader.line_num + 1)
                    if len(fields) != len(columns):
                        break  # an error, reported by `rows`; more rows with it would only use memory
            except csv.Error as error:
                wrong = error
            yield block  # before the error, because an earlier line may have another one
            if wrong is not None:
                raise WorkloadError(f"{self.path}, line {reader.line_num + 1}: this is no CSV: {wrong}.") from wrong
            more = len(block.lines) == _ROWS_AT_ONCE

    def json_rows(self) -> Iterator[SourceRow]:
        """Yield the objects of a JSON Lines file, one per line.

        Raises:
            WorkloadError: a line is no JSON object, or two of its keys denote one quantity.
        """
        for number, line in enumerate(self.lines, 1):
            try:
                document = parse(line)
            except ValueError as error:
                raise WorkloadError(
                    f"{self.path}, line {number}: this is no JSON object: {reason_of(error)}."
                ) from error
            if not isinstance(document, dict):
                raise WorkloadError(
                    f"{self.path}, line {number}: there should be a JSON object, not {line.strip()[:40]!r}."
                )
            row = SourceRow(path=self.path, line=number, fields=document)
            twice = rivals(tuple(document))
            if twice:
                raise row.error(f"{twice[1]!r} and {twice[2]!r} both say {twice[0]}; leave one out")
            yield row

    def json_document(self) -> Any:
        """Return the whole file as one JSON value."""
        try:
            return parse("".join(self.lines))
        except json.JSONDecodeError as error:
            raise WorkloadError(f"{self.path}, line {error.lineno}: this is no JSON: {error.msg}.") from error
        except ValueError as error:
            raise WorkloadError(f"{self.path} is no JSON that can be read: {reason_of(error)}.") from error


def _decoded(file: Path, content: bytes) -> Iterator[str]:
    """Yield the decoded lines of `content`.

    Lines are decoded one by one, because Python stores a text with a single rare character in four bytes per character.
    `str.splitlines` would split at more separators than editors count as lines.
    """
    for number, line in enumerate(io.BytesIO(content), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise WorkloadError(
                f"{file} is no text: line {number} is not UTF-8; requests are imported from CSV and JSON."
            ) from error


class CsvBlock(NamedTuple):
    """Some thousand rows of a CSV file, column by column."""

    path: Path
    columns: tuple[str, ...]
    fields: list[list[str]]
    lines: list[int]
    """Line in which each row ends."""

    def rows(self) -> Iterator[SourceRow]:
        """Yield the rows.

        Raises:
            WorkloadError: a row has more or fewer fields than there are columns.
        """
        for line, fields in zip(self.lines, self.fields, strict=True):
            if len(fields) != len(self.columns):
                raise WorkloadError(
                    f"{self.path}, line {line}: there are {len(fields)} fields, not {len(self.columns)}, one per "
                    "column."
                )
            yield SourceRow(path=self.path, line=line, fields=dict(zip(self.columns, fields, strict=True)))

    def texts(self, name: str) -> list[str] | None:
        """Return the column `name`; None if a row has more or fewer fields than there are columns."""
        if any(len(fields) != len(self.columns) for fields in self.fields):
            return None
        nth = self.columns.index(name)
        return [fields[nth] for fields in self.fields]

    def whole(self, name: str) -> list[int] | None:
        """Return the whole numbers of the column `name`; None if a field needs the checks of `SourceRow.whole`."""
        texts = self.texts(name)
        if not texts or min(map(len, texts)) == 0 or max(map(len, texts)) > _FEW_DIGITS:
            return None
        digits = "".join(texts)
        return list(map(int, texts)) if digits.isascii() and digits.isdigit() else None


class SourceRow(NamedTuple):
    """One request of a file, with its line. It is a tuple, because a file may have ten million."""

    path: Path
    line: int
    fields: Mapping[str, Any]

    def error(self, sentence: str) -> WorkloadError:
        """Return an error that names the file and this row's line."""
        return WorkloadError(f"{self.path}, line {self.line}: {sentence}.")

    def whole(self, name: str, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """Return the whole number in field `name`, from text or JSON.

        Raises:
            WorkloadError: it is no whole number from `minimum` to `maximum`.
        """
        value = self.value(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS:
            number: int | None = int(value)
        elif isinstance(value, str):
            # pandas writes whole numbers of a column with empty cells as 472.0.
            digits = value.strip().removesuffix(".0")
            # Python's int() would also accept 1_000 and digits of other scripts.
            is_whole = digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) <= _MOST_DIGITS
            number = int(digits) if is_whole else None
        else:
            number = value if isinstance(value, int) and not isinstance(value, bool) else None
        if number is None or not minimum <= number <= maximum:
            raise self.error(f"{name} should be a whole number from {minimum} to {maximum}, not {shortened(value)}")
        return number

    def number(self, name: str) -> float:
        """Return the finite number of at least 0 in the text of field `name`."""
        text = self.value(name).strip()
        # Python's float() would also accept 1_000, digits of other scripts and infinity.
        number = float(text) if _NUMBER.fullmatch(text) else -1.0
        if not 0 <= number < float("inf"):
            raise self.error(f"{name} should be a finite number of at least 0, not {shortened(text)}")
        return number

    def value(self, name: str) -> Any:
        """Return the content of field `name`; raise an error if it is missing."""
        if name not in self.fields:
            raise self.error(f"{name} is missing")
        return self.fields[name]
