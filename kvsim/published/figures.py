"""Data classes of published figures: the numbers, their tolerance bands, and the outcome of a reproduction.

kvsim runs every published experiment itself, so that readers can see where it agrees and where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Function called with the number of finished simulations of a row, and of all its simulations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published number, and the band in which a simulated number counts as equal."""

    label: str
    published: float
    low: float
    high: float
    unit: str = ""

    @classmethod
    def of(cls, label: str, stated: float | Mapping[str, Any], row: Mapping[str, Any]) -> Figure:
        """Build a figure from `rows.toml`.

        `stated` is a number, which has the unit and tolerance of its row, or a table that may state others.
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
        """Tell whether `ours` is inside the band."""
        return self.low <= ours <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A published table, diagram or sentence, and the function that reproduces it."""

    name: str
    """The name of the row on the command line."""
    title: str
    source: str
    band: str
    """Description of the band and the reason for its width."""
    figures: tuple[Figure, ...]
    reproduce: Callable[[ProgressCallback], Sequence[float]]
    """Function that returns our numbers, in the order of `figures`."""
    note: str = ""
    """Assumptions, and parameters that were chosen to match the published figures."""
    ceilings: Callable[[], Sequence[float]] | None = None
    """Function that returns an upper bound of each figure: under the row's assumptions, no engine can exceed it on the
    source's GPU, by the GPU's data sheet. None if there is no bound.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A row and the simulated numbers."""

    row: PublishedRow
    ours: tuple[float, ...]
    """Simulated numbers, in the order of `row.figures`."""
    ceilings: tuple[float, ...] = ()
    """Upper bound of each figure, see `PublishedRow.ceilings`; empty if there are none."""

    @property
    def beyond(self) -> tuple[str, ...]:
        """Labels of the published figures that exceed their upper bound."""
        if not self.ceilings:
            return ()
        pairs = zip(self.row.figures, self.ceilings, strict=True)
        return tuple(figure.label for figure, most in pairs if figure.published > most)

    @property
    def is_refuted(self) -> bool:
        """True if a published figure exceeds its upper bound, so that the assumptions of the row must be wrong."""
        return bool(self.beyond)

    @property
    def passed(self) -> bool:
        """True if all numbers are inside their bands."""
        return all(figure.holds(ours) for figure, ours in zip(self.row.figures, self.ours, strict=True))

    @property
    def failed(self) -> bool:
        """True if a number is outside its band and the row is not refuted."""
        return not self.passed and not self.is_refuted

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as nested dictionaries of strings and numbers."""
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
    """Run the simulations of `row` and return our numbers."""
    ours = tuple(float(number) for number in row.reproduce(progress))
    assert len(ours) == len(row.figures), f"{row.name} gave {len(ours)} numbers for {len(row.figures)} figures"
    ceilings = () if row.ceilings is None else tuple(row.ceilings())
    return Reproduction(row=row, ours=ours, ceilings=ceilings)
