"""The ways in which the engine can run, each of which a test goes through.

With KVSIM_TEST_ENGINE, which is `interpreted` or `compiled`, only one of them is: mutations are looked for in each.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

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
