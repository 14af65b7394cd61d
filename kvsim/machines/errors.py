"""How far off predictions were for recordings that nothing was fitted to, by what they rested on.

`benchmarks/predictions.py --write` makes the table anew from all recordings that ship.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("errors.toml")
FIGURES = ("throughput", "tpot", "e2e", "ttft")
"""Figures of which every recording tells an error."""
TAILS = ("ttft_p99", "tpot_p99")
"""Figures of the slowest requests, which are further off than the means."""
PREEMPTIONS = "preemptions"
"""The figure of which only recordings with preemptions tell one."""


class Basis(Enum):
    """What step times rest on."""

    MODEL = "machine and model measured"
    FITTED_THERE = "machine measured and fitted with this model"
    FITTED = "machine measured and fitted with another model or engine"
    MACHINE = "machine measured, model not"
    GPU = "such a GPU measured on another host, model not"
    SHEET_FITTED = "data sheet, fitted to recordings of the machine"
    SHEET = "data sheet, at least in part"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """Errors of predictions with one basis, in percent."""

    num_recordings: int
    median: Mapping[str, float]
    """Median of the absolute errors, for each of `FIGURES` and `TAILS`, and for `PREEMPTIONS` where some recording had
    any."""
    worst: Mapping[str, float]
    clocks: Mapping[str, float]
    """Medians of the absolute errors of steps that waited for one clock, gpu or host, by the recorded decisions."""

    def words(self) -> str:
        """As one clause."""
        names = {"throughput": "throughput", "tpot": "TPOT", "e2e": "end to end", "ttft": "TTFT"}
        figures = ", ".join(f"{names[key]} {self.median[key]:.0f} % ({self.worst[key]:.0f} %)" for key in FIGURES)
        return f"typical (worst) error in {self.num_recordings} recordings left out: {figures}"


@cache
def known_errors() -> dict[Basis, KnownError]:
    """The table, for every basis that some recording tells of."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {
        basis: KnownError(
            num_recordings=document[basis.name]["num_recordings"],
            median=document[basis.name]["median"],
            worst=document[basis.name]["worst"],
            clocks=document[basis.name]["clocks"],
        )
        for basis in Basis
        if basis.name in document
    }


def basis_of(label: str) -> Basis | None:
    """What the times with that label rest on; None where it does not say."""
    return next((basis for basis in Basis if basis.value in label), None)


def with_error(label: str, basis: Basis) -> str:
    """`label` with what it rests on, and how far off that usually is."""
    known = known_errors().get(basis)
    return f"{label}; {basis.value}" + (f"; {known.words()}" if known else "")
