"""Read TOML documents, and check their values. Here True and False are no numbers, although they are in Python."""

from __future__ import annotations

import tomllib
from math import inf
from typing import TYPE_CHECKING, Any, TypeGuard

from kvsim.errors import UsageError, reason_of
from kvsim.files.contents import TOML_BYTES, content_of

if TYPE_CHECKING:
    from pathlib import Path


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """Read a TOML file. `what` is its name in errors, such as "the profile".

    Raises:
        UsageError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(content_of(file, TOML_BYTES).decode())
    except OSError as error:
        raise UsageError(f"{what} {file} cannot be read: {reason_of(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} {file} is not TOML: {reason_of(error)}.") from error


def is_integer(value: object, low: float = -inf, high: float = inf) -> TypeGuard[int]:
    """Tell whether `value` is an integer from `low` to `high`, both included."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: object, low: float = -inf, high: float = inf) -> TypeGuard[float]:
    """Tell whether `value` is a number from `low` to `high`, both included. NaN is in no range."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
