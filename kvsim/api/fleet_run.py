"""Result of a simulated fleet (several servers with one router): a run for each server, and figures of all together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.api.finished_run import Run, RunsFigure, play
from kvsim.api.rows import Rows
from kvsim.display.text import html_text
from kvsim.metrics import summarize
from kvsim.metrics.fleet_totals import FleetTotals
from kvsim.recording import Recording, write
from kvsim.setting_fields import check_instance

if TYPE_CHECKING:
    from kvsim.simulation import Fleet


class FleetRun(RunsFigure, Sequence[Run]):
    """Result of `kvsim.simulate` with several servers: the sequence of their runs, by the servers' numbers."""

    def __init__(self, recordings: Iterable[Recording], fleet: Fleet) -> None:
        """Store one recording for each server, and `fleet`, which has the figures of all servers together."""
        self._runs, self._fleet = tuple(map(Run.of, recordings)), fleet

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, number: Any) -> Any:
        return self._runs[number]

    def summary(self) -> FleetTotals:
        """Return throughput, latencies, hits and imbalance of all servers together. The names end in the units."""
        return self._fleet.totals()

    def servers(self) -> Rows:
        """Return a row per server, with the columns of `Run.summary`. Shares of the pool are in percent."""
        rows = [summarize(run).as_row() | {"server": number} for number, run in enumerate(self._runs)]
        return Rows(rows, ("server",))

    def play(self, *, at_s: float | None = None) -> None:
        """Open the interface on the pools of all servers, which share one clock. The errors are those of `Run.play`."""

        def fleet(report: object) -> object:
            del report
            from kvsim_tui import fleet_of  # noqa: PLC0415  the interface is loaded when it is needed

            return fleet_of(self._runs, self._fleet.names)

        play(fleet, at_s=at_s)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write a folder for each server into `path`, with the names that `kvsim run -o` gives; see `kvsim.write`."""
        check_instance("the folder of a fleet", path, str | os.PathLike, "a path")
        for name, run in zip(self._fleet.names, self._runs, strict=True):
            write(run, Path(path) / name, overwrite=overwrite)
        return Path(path)

    def __repr__(self) -> str:
        totals = self.summary()
        return (
            f"<FleetRun: {totals.num_servers} servers, {totals.num_finished:,} requests, "
            f"{totals.output_tokens_per_s:,.0f} output tokens/s>\n{self.servers()!r}"
        )

    def _repr_html_(self) -> str:
        return f"<p>{html_text(repr(self).partition(chr(10))[0])}</p>{self.servers()._repr_html_()}"
