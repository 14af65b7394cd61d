"""Reads the fields of a Hugging Face `config.json`, and says which one is missing or cannot be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.errors import UsageError

LARGEST = 10**12
"""No count in a configuration is larger."""
_MOST_SHOWN = 80
"""Characters of a wrong value that a message shows."""


class Config:
    """The fields of one configuration. Text models inside of wrappers for images have theirs in `text_config`."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        """`where` names the file in messages."""
        self.fields = fields
        self.where = where

    def text(self) -> Config:
        """The fields of the text model."""
        for name in ("text_config", "llm_config", "language_config"):
            nested = self.fields.get(name)
            if isinstance(nested, dict):
                return Config({"architectures": self.fields.get("architectures")} | nested, f"{name} of {self.where}")
        return self

    def states(self, name: str) -> bool:
        """Whether the field is there, and not null."""
        return self.fields.get(name) is not None

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number in the first of `names` that is there, or `default`.

        Raises:
            UsageError: if there is none and no default, or if it is no whole number from `least` to `most`.
        """
        right = f"a whole number of at least {least}" + (f" and at most {most:,}" if most < LARGEST else "")
        for name in names:
            value = self.fields.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                    raise self.wrong(name, right)
                return value
        if default is None or default < least:
            raise self.wrong(names[0], right)
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """The truth value of a field.

        Raises:
            UsageError: if it is neither true nor false.
        """
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def texts(self, name: str, length: int | None = None) -> tuple[str, ...] | None:
        """The list of texts in a field; None if it is not there.

        Raises:
            UsageError: if it is no list of texts, or not of `length`.
        """
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
            raise self.wrong(name, "a list of texts")
        if length is not None and len(value) != length:
            raise self.wrong(name, f"a list of {length} texts, one for every layer", shown=f"{len(value)} texts")
        return tuple(value)

    def wrong(self, name: str, right: str, *, shown: str = "") -> UsageError:
        """The error that says what is wrong with a field."""
        value = shown or repr(self.fields.get(name))
        value = value if len(value) <= _MOST_SHOWN else f"{value[: _MOST_SHOWN - 1]}…"
        what = f"says {name} = {value}" if self.states(name) else f"does not say {name}"
        return UsageError(f"{self.where} {what}; it must be {right}.")
