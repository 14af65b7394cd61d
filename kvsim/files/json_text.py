"""Parse untrusted JSON with limits on memory, and refuse an object that has a key twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

MOST_CONTAINERS = 1 << 21
"""Limit for the number of lists and objects in a JSON text. Each takes some hundred bytes of memory when parsed."""
MOST_VALUES = 1 << 24
"""Limit for the number of commas in a JSON text, which bounds the number of its values. Commas in strings count too."""


def parse(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of a JSON text. The functions are those of `json.loads`.

    Raises:
        ValueError: the text is no JSON, too large, or has a key twice in an object.
    """
    text = text.decode() if isinstance(text, bytes) else text
    check_limits(text)
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=parse_constant, parse_float=parse_float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_limits(text: str) -> None:
    """Check that a JSON text has no more than `MOST_CONTAINERS` lists and objects, and `MOST_VALUES` commas.

    Raises:
        ValueError: it has more.
    """
    num_containers = text.count("[") + text.count("{")
    if num_containers > MOST_CONTAINERS:
        raise ValueError(f"it has {num_containers:,} lists and objects, more than {MOST_CONTAINERS:,}")
    num_values = text.count(",")
    if num_values > MOST_VALUES:
        raise ValueError(f"it has {num_values:,} values, more than {MOST_VALUES:,}")


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these (key, value) pairs. `json.loads` calls this for every object.

    Raises:
        ValueError: a key is repeated, so that the object would be ambiguous.
    """
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {twice[:60]!r} more than once")
    return document
