"""Published figures: their numbers, their tolerances, and the outcome of a reproduction.

kvsim runs every published experiment itself, so that readers can see where it agrees and where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Function of the number of finished simulations of a row, and the number of all its simulations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Published number, and the range in which a simulated number counts as equal."""

    label: str
    published: float
    low: float
    high: float
    unit: str = ""

    @classmethod
    def of(cls, label: str, stated: float | Mapping[str, Any], row: Mapping[str, Any]) -> Figure:
        """Return a figure from `rows.toml`.

        `stated` is a number, which has the unit and tolerance of `row`, or a table with a unit or tolerance of its own.
        """
        own: Mapping[str, Any] = stated if isinstance(stated, dict) else {"published": stated}
        published, rule = own["published"], row if own.keys() <= {"published", "unit"} else own
        # A tolerance is relative (near), absolute (within), or a band with `low` and `high`.
        margin = rule["near"] * abs(published) if "near" in rule else rule.get("within")
        return cls(
            label=label,
            published=published,
            low=own["low"] if margin is None else published - margin,
            high=own["high"] if margin is None else published + margin,
            unit=own.get("unit", row.get("unit", "")),
        )

    def holds(self, ours: float) -> bool:
        """Tell whether the simulated number `ours` is within the tolerance."""
        return self.low <= ours <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """Published table, diagram or sentence, and the function that simulates it."""

    name: str
    """Name of the row on the command line."""
    title: str
    source: str
    band: str
    """Description of the tolerance, and the reason for its width."""
    figures: tuple[Figure, ...]
    reproduce: Callable[[ProgressCallback], Sequence[float]]
    """Function that returns the simulated numbers, in the order of `figures`."""
    note: str = ""
    """Assumptions, and parameters that were chosen to match the published figures."""
    ceilings: Callable[[], Sequence[float]] | None = None
    """Function that returns an upper bound of each figure; None without bounds.

    No engine on the source's GPU can exceed the bound, according to the GPU's data sheet and the row's assumptions.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Published row, and the numbers that kvsim simulated for it."""

    row: PublishedRow
    ours: tuple[float, ...]
    """Simulated numbers, in the order of `row.figures`."""
    ceilings: tuple[float, ...] = ()
    """Upper bound of each figure; empty without bounds."""

    @property
    def beyond(self) -> tuple[str, ...]:
        """Labels of the published figures that exceed their upper bound."""
        if not self.ceilings:
            return ()
        pairs = zip(self.row.figures, self.ceilings, strict=True)
        return tuple(figure.label for figure, most in pairs if figure.published > most)

    @property
    def is_refuted(self) -> bool:
        """True if a published figure is more than its GPU can do.

        Then an assumption of the published row is wrong, and kvsim need not reproduce it.
        """
        return bool(self.beyond)

    @property
    def passed(self) -> bool:
        """True if all simulated numbers are within their tolerance."""
        return all(figure.holds(ours) for figure, ours in zip(self.row.figures, self.ours, strict=True))

    @property
    def failed(self) -> bool:
        """True if a simulated number is outside its tolerance and no published figure exceeds its upper bound."""
        return not self.passed and not self.is_refuted

    def as_dict(self) -> dict[str, Any]:
        """Return the row and its outcome as nested dictionaries of strings and numbers."""
        return {
            "name": self.row.name,
            "title": self.row.title,
            "source": self.row.source,
            "band": self.row.band,
            "note": self.row.note,
            "passed": self.passed,
            "refuted": self.is_refuted,
            "beyond_the_gpu": list(self.beyond),
            "figures": [
                {
                    "label": figure.label,
                    "unit": figure.unit,
                    "published": figure.published,
                    "low": figure.low,
                    "high": figure.high,
                    "ours": ours,
                    "passed": figure.holds(ours),
                }
                for figure, ours in zip(self.row.figures, self.ours, strict=True)
            ],
        }


def reproduce(row: PublishedRow, progress: ProgressCallback = lambda done, total: None) -> Reproduction:  # noqa: ARG005
    """Run the simulations of `row`; return the row with the simulated numbers."""
    ours = tuple(float(number) for number in row.reproduce(progress))
    assert len(ours) == len(row.figures), f"{row.name} gave {len(ours)} numbers for {len(row.figures)} figures"
    ceilings = () if row.ceilings is None else tuple(row.ceilings())
    return Reproduction(row=row, ours=ours, ceilings=ceilings)
