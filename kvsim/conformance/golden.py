"""Golden workloads that are part of the package: each is small and shows one rule in which releases of vLLM differ."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.conformance.generated import Document


def golden_workloads() -> list[tuple[str, Document]]:
    """Return all golden workloads, each with its name."""
    text = files(__package__).joinpath("golden.json").read_text(encoding="utf-8")
    return list(json.loads(text).items())
