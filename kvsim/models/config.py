"""Fields of a Hugging Face `config.json`, with checks. An error names the file, the field and its valid values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.errors import UsageError, shortened
from kvsim.files.values import is_integer, is_number

LARGEST = 1 << 27
"""Largest valid number in a field with a count."""
_MOST_SHOWN = 80
_TEXT_MODELS = ("text_config", "llm_config", "language_config")
"""Fields that hold the configuration of the text model of an image model."""
_INHERITED = ("architectures", "tie_word_embeddings", "dtype", "torch_dtype")
"""Fields of an image model that also apply to its text model."""


class Config:
    """Fields of one configuration. An image model has the fields of its text model inside one field, see `text`."""

    def __init__(self, fields: Mapping[str, Any], where: str, architecture: str = "") -> None:
        """`where` names the file in messages. `architecture` is the class of the text model; empty if unknown."""
        self.fields = fields
        self.where = where
        self.architecture = architecture

    def text(self, architecture: str) -> Config:
        """Return the configuration of the text model, whose class is `architecture`."""
        stated = [name for name in _TEXT_MODELS if self.states(name)]
        if not stated:
            return Config(self.fields, self.where, architecture)
        name = stated[0]
        nested = self.fields[name]
        if len(stated) > 1 or not isinstance(nested, dict) or not nested:
            raise self.wrong(name, "the one object with the fields of the text model")
        inherited = {key: self.fields[key] for key in _INHERITED if self.states(key)}
        return Config(inherited | nested, f"{name} of {self.where}", architecture)

    def states(self, name: str) -> bool:
        """Tell whether the field is there and not null."""
        return self.fields.get(name) is not None

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Return the whole number in the fields `names`, which are names of one quantity; `default` if none is stated.

        The number must be from `least` to `most`. If several of the fields are stated, they must have the same value.

        Raises:
            UsageError: a value is invalid, or none is stated and there is no default.
        """
        right = f"a whole number of at least {least}" + (f" and at most {most:,}" if most < LARGEST else "")
        stated = [name for name in names if self.states(name)]
        for name in stated:
            value = self.fields[name]
            if not is_integer(value, least):
                raise self.wrong(name, right)
            if value > most:
                raise self.wrong(name, f"at most {most:,}")
            if value != self.fields[stated[0]]:
                raise self.wrong(name, f"what {stated[0]} says, which is {self.fields[stated[0]]:,}")
        if stated:
            return int(self.fields[stated[0]])
        if default is None or not least <= default <= most:
            raise self.wrong(names[0], right)
        return default

    def positive(self, name: str, *, default: float | None = None) -> float:
        """Return the number in field `name`, or `default` if not stated. It must be above 0 and at most a million."""
        value = self.fields.get(name, default)
        if not is_number(value, 0, 1e6) or value == 0:
            raise self.wrong(name, "a number above 0 and at most 1,000,000")
        return value

    def indices(self, name: str, below: int, *, first: int = 0) -> frozenset[int]:
        """Return the indices, from 0, of the layers in the list of field `name`; an empty set without the list.

        The list itself counts layers from `first`. The model has `below` layers.
        """
        value = self.fields.get(name)
        if value is None:
            return frozenset()
        layers = range(first, below + first)
        is_list = isinstance(value, list | tuple) and all(type(item) is int and item in layers for item in value)
        if not is_list or len(set(value)) < len(value):
            raise self.wrong(name, f"a list of different layers, from {first} to {below + first - 1}")
        return frozenset(index - first for index in value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return the truth value in field `name`, or `default` if it is not stated."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def texts(self, name: str, length: int | None = None) -> tuple[str, ...] | None:
        """Return the texts in the list of field `name`; None without the field.

        The list must have `length` texts, or any number if that is None.
        """
        value = self.fields.get(name)
        if value is None:
            return None
        if (
            not isinstance(value, Sequence)
            or isinstance(value, str)
            or not all(isinstance(item, str) for item in value)
        ):
            raise self.wrong(name, "a list of texts")
        if length is not None and len(value) != length:
            raise self.wrong(name, f"a list of {length} texts, one for every layer", shown=f"{len(value)} texts")
        return tuple(value)

    def wrong(self, name: str, right: str, *, shown: str = "") -> UsageError:
        """Return the error for field `name`, whose value must be `right`.

        `shown` replaces the wrong value in the message, unless `shown` is empty.
        """
        value = shown or shortened(self.fields.get(name), _MOST_SHOWN)
        what = f"says {name} = {value}" if self.states(name) else f"does not say {name}"
        return UsageError(f"{self.where} {what}; it must be {right}.")
