"""Cases of which some run with every change, and all others by ./test -m ''."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(every: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """Every so many-th of `cases` from the `first` on, and the others as slow ones."""
    return [
        case if number % every == first else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
