"""Result of `kvsim.compare`: runs of several policies with equal requests and equal memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvsim.api.finished_run import Run, RunsFigure, play
from kvsim.api.rows import Rows
from kvsim.setting_fields import check_instance


class Comparison(RunsFigure, Mapping[str, Run]):
    """Result of `kvsim.compare`: a run for each policy. `result[key]` takes the name of a policy or its index."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        """Store `runs`, whose keys are the names of the policies."""
        check_instance("runs", runs, Mapping, "a mapping from names to runs")
        self._by_name, self._runs = dict(runs), tuple(runs.values())

    def __getitem__(self, name: str | int) -> Run:
        return self._runs[name] if isinstance(name, int) else self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._runs)

    def summary(self) -> Rows:
        """Return a row per policy, with the columns of `Run.summary`. Shares of the pool are in percent."""
        return Rows([run.summary().as_row() | {"policy": name} for name, run in self._by_name.items()])

    def play(self, *, at_s: float | None = None) -> None:
        """Open the interface on all runs, which share one clock. The errors are those of `Run.play`."""
        play(list(self._runs), at_s=at_s)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self)}>\n{self.summary()!r}"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()
