"""Mark some test cases as slow, so that they run only with `./test -m ''`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(every: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """Return all `cases`. Those at index `first`, `first + every`, ... run with every change; the others are slow."""
    return [
        case if number % every == first else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
