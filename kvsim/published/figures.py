"""What was published, and whether ours agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Called now and then with how many of a row's simulations are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published number, and the interval around it in which ours counts as the same."""

    label: str
    published: float
    low: float
    high: float
    unit: str = ""

    @classmethod
    def within(cls, label: str, published: float, margin: float, unit: str = "") -> Figure:
        """A number that ours may miss by `margin`, in its own unit."""
        return cls(label=label, published=published, low=published - margin, high=published + margin, unit=unit)

    @classmethod
    def near(cls, label: str, published: float, share: float, unit: str = "") -> Figure:
        """A number that ours may miss by a `share` of it."""
        return cls.within(label, published, share * abs(published), unit)

    @classmethod
    def exactly(cls, label: str, published: float, unit: str = "") -> Figure:
        """A number that ours must be, to the last digit."""
        return cls.within(label, published, 0, unit)

    def holds(self, ours: float) -> bool:
        """Whether `ours` is inside the band."""
        return self.low <= ours <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published table, diagram or sentence, and the run that reproduces it."""

    name: str
    """The name of the row on the command line."""
    title: str
    source: str
    band: str
    """The band within which ours must lie, and the reason for its width, in words."""
    figures: tuple[Figure, ...]
    reproduce: Callable[[ProgressCallback], Sequence[float]]
    """Our numbers, in the order of `figures`."""
    note: str = ""
    """Assumptions, and what was chosen in the light of the published figures themselves."""
    ceilings: Callable[[], Sequence[float]] | None = None
    """The most that the data sheet of the source's own GPU allows of each figure, whatever the engine, by what the row
    assumes; None where nothing that is assumed limits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One row beside ours."""

    row: Row
    ours: tuple[float, ...]
    """Our figures, in the order of `row.figures`."""
    ceilings: tuple[float, ...] = ()
    """The most that the GPU allows of each, see `Row.ceilings`; empty where that is not known."""

    @property
    def beyond(self) -> tuple[str, ...]:
        """The labels of the published figures that no engine can reach on that GPU under the row's assumptions."""
        if not self.ceilings:
            return ()
        pairs = zip(self.row.figures, self.ceilings, strict=True)
        return tuple(figure.label for figure, most in pairs if figure.published > most)

    @property
    def is_refuted(self) -> bool:
        """Whether what the row assumes cannot be: the source's own GPU refutes it, so our figures are of another load
        than the published ones, and say nothing of the speed of either."""
        return bool(self.beyond)

    @property
    def passed(self) -> bool:
        """Whether every number is inside its band."""
        return all(figure.holds(ours) for figure, ours in zip(self.row.figures, self.ours, strict=True))

    @property
    def failed(self) -> bool:
        """Whether a figure is outside its band, by assumptions that can be."""
        return not self.passed and not self.is_refuted

    def as_dict(self) -> dict[str, Any]:
        """Everything as nested dictionaries of strings and numbers."""
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


def reproduce(row: Row, progress: ProgressCallback = lambda done, total: None) -> Outcome:  # noqa: ARG005
    """Run what `row` needs and put our numbers beside its own."""
    ours = tuple(float(number) for number in row.reproduce(progress))
    assert len(ours) == len(row.figures), f"{row.name} gave {len(ours)} numbers for {len(row.figures)} figures"
    ceilings = () if row.ceilings is None else tuple(row.ceilings())
    return Outcome(row=row, ours=ours, ceilings=ceilings)
