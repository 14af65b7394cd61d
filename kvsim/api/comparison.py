"""Result of `kvsim.compare`: runs of several policies with equal requests and equal memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvsim.api.finished_run import Run, draw, play
from kvsim.api.rows import Rows

if TYPE_CHECKING:
    import os

    from kvsim.plots import Picture, Purpose


class Comparison(Mapping[str, Run]):
    """Result of `kvsim.compare`: a run for each policy, by the name of the policy or by its index."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        """`runs` are keyed by the name of the policy."""
        self._runs = dict(runs)

    def __getitem__(self, name: str | int) -> Run:
        return list(self._runs.values())[name] if isinstance(name, int) else self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def summary(self) -> Rows:
        """Return a row per policy with the columns of `Run.summary`; shares of the pool are in percent."""
        return Rows([run.summary().as_row() | {"policy": name} for name, run in self._runs.items()])

    def plot(
        self,
        kind: str = "waste-bars",
        *,
        file: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        purpose: Purpose = "web",
    ) -> Picture:
        """Draw a figure that compares the runs, with the arguments and errors of `Run.plot`."""
        return draw(kind, tuple(self._runs.values()), file=file, overwrite=overwrite, purpose=purpose)

    def play(self, *, at_s: float | None = None) -> None:
        """Open the interface on all runs on one clock, with the errors of `Run.play`."""
        play(list(self._runs.values()), at_s=at_s)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self._runs)}>\n{self.summary()!r}"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()
