"""Reads the tables of a lesson file. Missing keys, unknown keys and values of the wrong type are errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LessonError(KvsimError):
    """Error in a lesson file. The sentence names the file and the key."""


class TomlTable:
    """A table of the file. Each key is read once, and `end` refuses keys that were not read."""

    def __init__(self, file: Path, key: str, values: dict[str, Any]) -> None:
        self.key = key
        self._file = file
        self._values = dict(values)
        self._asked: list[str] = []

    def error(self, key: str, sentence: str) -> LessonError:
        """Return an error about a key of this table."""
        return LessonError(f"{self._file}, {self._path_of(key)}: {sentence}.")

    def _path_of(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def text(self, key: str, otherwise: str | None = None) -> str:
        """Return the text at `key`. The key is required if `otherwise` is None."""
        return str(self._take(key, str, "text", otherwise))

    def whole(self, key: str, otherwise: int | None = None) -> int:
        """Return the whole number at `key`. The key is required if `otherwise` is None."""
        return int(self._take(key, int, "a whole number", otherwise))

    def number(self, key: str, otherwise: float) -> float:
        """Return the number at `key`, or `otherwise` if the key is missing."""
        return float(self._take(key, (int, float), "a number", otherwise))

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the truth value at `key`, or `default` if the key is missing."""
        return bool(self._take(key, bool, "true or false", default))

    def choice(self, key: str, allowed: list[str] | tuple[str, ...], otherwise: str | None = None) -> str:
        """Return the text at `key`, one of `allowed`. The key is required if `otherwise` is None."""
        value = self.text(key, otherwise)
        if value not in allowed:
            raise self.error(key, f"should be {' or '.join(allowed)}, not {value!r}")
        return value

    def named(self, key: str, find: Callable[[str], Any]) -> Any:
        """Return what `find` returns for the text at `key`. An unknown name is a `LessonError`."""
        try:
            return find(self.text(key))
        except UnknownNameError as error:
            raise self.error(key, str(error).rstrip(".")) from error

    def has(self, key: str) -> bool:
        """Tell whether `key` is in the table. This does not count as reading it."""
        return key in self._values

    def table(self, key: str) -> TomlTable:
        """Return the nested table at `key`."""
        return TomlTable(self._file, self._path_of(key), self._take(key, dict, "a table", None))

    def tables(self, key: str) -> list[TomlTable]:
        """Return the list of tables at `key`.

        Raises:
            LessonError: there is none.
        """
        values = self._take(key, list, "a list of tables", None)
        if not values or not all(isinstance(value, dict) for value in values):
            raise self.error(key, f"should be tables, each under [[{key}]]")
        path = self._path_of(key)
        return [TomlTable(self._file, f"{path} {number}", value) for number, value in enumerate(values, start=1)]

    def end(self) -> None:
        """Raise a `LessonError` if a key was not read."""
        if self._values:
            key = next(iter(self._values))
            raise self.error(key, f"is not a key of this table; there are {', '.join(self._asked)}")

    def _take(self, key: str, kind: Any, name: str, otherwise: Any) -> Any:
        self._asked.append(key)
        value = self._values.pop(key, otherwise)
        if value is None:
            raise self.error(key, f"is missing; it should be {name}")
        # bool is a subclass of int; `true` in the place of a number is a mistake.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"should be {name}, not {value!r}")
        return value
