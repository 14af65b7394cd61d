"""Tables of a lesson file, read so that no key is missed, mistyped or left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import KvsimError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LessonError(KvsimError):
    """A lesson file that cannot be right; the sentence names the file and the key."""


class Table:
    """A table of the file, from which every key is taken once; a key that is not taken is a mistake."""

    def __init__(self, file: Path, key: str, values: dict[str, Any]) -> None:
        self.key = key
        self._file = file
        self._values = dict(values)
        self._asked: list[str] = []

    def error(self, key: str, sentence: str) -> LessonError:
        """What is wrong with a key, as an error to raise."""
        where = f"{self.key}.{key}" if self.key else key
        return LessonError(f"{self._file}, {where}: {sentence}.")

    def text(self, key: str, otherwise: str | None = None) -> str:
        """A text; required unless there is something `otherwise`."""
        return str(self._take(key, str, "text", otherwise))

    def whole(self, key: str, otherwise: int | None = None) -> int:
        """A whole number; required unless there is something `otherwise`."""
        return int(self._take(key, int, "a whole number", otherwise))

    def number(self, key: str, otherwise: float) -> float:
        """A number."""
        return float(self._take(key, (int, float), "a number", otherwise))

    def flag(self, key: str, *, default: bool) -> bool:
        """A truth value."""
        return bool(self._take(key, bool, "true or false", default))

    def choice(self, key: str, allowed: list[str] | tuple[str, ...], otherwise: str | None = None) -> str:
        """One of the texts that are `allowed`."""
        value = self.text(key, otherwise)
        if value not in allowed:
            raise self.error(key, f"should be {' or '.join(allowed)}, not {value!r}")
        return value

    def named(self, key: str, find: Callable[[str], Any]) -> Any:
        """What `find` finds under a name."""
        try:
            return find(self.text(key))
        except UnknownNameError as error:
            raise self.error(key, str(error).rstrip(".")) from error

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def table(self, key: str) -> Table:
        """A table inside this one."""
        return Table(self._file, key, self._take(key, dict, "a table", None))

    def tables(self, key: str) -> list[Table]:
        """A list of tables, at least one."""
        values = self._take(key, list, "a list of tables", None)
        if not values or not all(isinstance(value, dict) for value in values):
            raise self.error(key, f"should be tables, each under [[{key}]]")
        return [Table(self._file, f"{key} {number}", value) for number, value in enumerate(values, start=1)]

    def end(self) -> None:
        """Complain about the first key that was never asked for."""
        for key in self._values:
            raise self.error(key, f"is not a key of this table; there are {', '.join(self._asked)}")

    def _take(self, key: str, kind: Any, name: str, otherwise: Any) -> Any:
        self._asked.append(key)
        value = self._values.pop(key, otherwise)
        if value is None:
            raise self.error(key, f"is missing; it should be {name}")
        # A truth value counts as a number in Python, and as nothing but a mistake here.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"should be {name}, not {value!r}")
        return value
