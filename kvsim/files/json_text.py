"""Parse untrusted JSON with limits on memory, and refuse an object that has a key twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

MOST_NESTED = 1 << 21
"""Maximum number of lists and objects in a JSON text; each takes some hundred bytes of memory when parsed."""
MOST_VALUES = 1 << 24
"""Maximum number of commas in a JSON text, an upper bound on its values. Commas in strings count too."""


def parse(
    text: str | bytes,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of a JSON text, or raise a ValueError. The functions are those of `json.loads`."""
    text = text.decode() if isinstance(text, bytes) else text
    check_extent(text)
    try:
        return json.loads(text, object_pairs_hook=each_once, parse_constant=parse_constant, parse_float=parse_float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_extent(text: str) -> None:
    """Raise `ValueError` if `text` exceeds `MOST_NESTED` or `MOST_VALUES`."""
    num_nested = text.count("[") + text.count("{")
    if num_nested > MOST_NESTED:
        raise ValueError(f"it has {num_nested:,} lists and objects, more than {MOST_NESTED:,}")
    num_values = text.count(",")
    if num_values > MOST_VALUES:
        raise ValueError(f"it has {num_values:,} values, more than {MOST_VALUES:,}")


def each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values. Refuse a repeated key, whose meaning JSON leaves open."""
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {twice[:60]!r} more than once")
    return document
