"""The ways in which the engine can run, each of which a test goes through.

With KVSIM_TEST_ENGINE, which is `interpreted` or `compiled`, only one of them is: mutations are looked for in each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NAMES = ("interpreted", "compiled")
CHOSEN = os.environ.get("KVSIM_TEST_ENGINE", "")
assert CHOSEN in ("", *NAMES), f"KVSIM_TEST_ENGINE should be one of {NAMES}, not {CHOSEN!r}"

COMPILED = tuple(
    pytest.param(
        name == "compiled",
        id=name,
        marks=[] if name == "interpreted" else pytest.mark.skipif(find_spec("numba") is None, reason="without numba"),
    )
    for name in NAMES
    if CHOSEN in ("", name)
)
"""What a parameter `compiled` should be."""
in_every_way = pytest.mark.parametrize("compiled", COMPILED)
"""For tests that take `compiled` as an argument."""
FASTEST = CHOSEN != "interpreted" and find_spec("numba") is not None
"""What `compiled` should be where one of them has to do, because both would take long."""


def both_engines(files: Sequence[Path]) -> list[Any]:
    """Return the parameters `workload` and `compiled` of a test that runs every workload interpreted, with its asserts.

    The workloads in `covering` are also compiled. Slow tests compile every workload.
    """
    compiled_always = {*covering(files), *files[::4]}
    return [
        pytest.param(
            file,
            *each.values,
            id="-".join((*file.relative_to(Path(__file__).parent).with_suffix("").parts, str(each.id))),
            marks=[
                *each.marks,
                *([pytest.mark.slow] if each.values == (True,) and file not in compiled_always else []),
            ],
        )
        for file in files
        for each in COMPILED
    ]


def covering(files: Sequence[Path]) -> list[Path]:
    """The workloads that have something that none before them has: a folder, a field, a flag or a word."""
    seen: set[tuple[Any, ...]] = set()
    kept = []
    for file in files:
        has = {file.parts[-3:-1], *_features(json.loads(file.read_text(encoding="utf-8")))}
        if not has <= seen:
            kept.append(file)
            seen |= has
    return kept


def _features(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield from _features(value, (*path, name))
    elif isinstance(document, list):
        for value in document:
            yield from _features(value, path)
    else:
        is_word = isinstance(document, bool | str) and path[-1:] != ("id",)
        yield (*path, document if is_word else type(document).__name__)
