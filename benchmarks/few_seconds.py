"""How far a few seconds of a user's own server get: benchmarks/few_seconds.py [--write]

A card is fitted to the first seconds of one recording of a machine, whatever its model, and predicts each other
recording of that machine. Prints a table, and puts it into docs/accuracy.md with --write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from pages import with_rows
from predictions import PAGE, by_card, error, machine_of, own_card, recordings

from kvsim.calibration.card_factors import awake_times, factors_of
from kvsim.calibration.observed import Observed, observe_on
from kvsim.machines import is_in_process
from kvsim.machines.known_errors import FIGURES
from kvsim.recording import Recording
from kvsim.steptime.reduction import on_machine

SECONDS = (2, 5, 10, None)
"""How much of a recording is looked at; None: all of it."""
SOURCES = 2
"""Recordings of a machine that tell of each other one."""
LEAST_STEPS = 20
HEAD = "| seconds | predictions | throughput | TPOT | end to end | TTFT |"


def first_seconds(observed: Observed, seconds: float | None) -> Observed:
    """The steps that had ended by then, and at least `LEAST_STEPS`."""
    if seconds is None:
        return observed
    count = max(int(np.searchsorted(observed.end_s, observed.start_s[0] + seconds)), LEAST_STEPS)

    def cut(values: Any) -> Any:
        return values[:count] if np.ndim(values) else values

    return replace(
        observed,
        shape=type(observed.shape)(*map(cut, observed.shape)),
        start_s=cut(observed.start_s),
        end_s=cut(observed.end_s),
        last_launched_before_output=np.minimum(cut(observed.last_launched_before_output), count - 1),
        next_step=np.where(cut(observed.next_step) < count, cut(observed.next_step), -1),
        launch_s=cut(observed.launch_s),
        offload_s=cut(observed.offload_s),
    )


def fitted_factors(recording: Recording, seconds: float | None) -> dict[str, float]:
    card = replace(own_card(recording), factors={})
    in_process = is_in_process(recording.meta)
    times_with = partial(on_machine, awake_times(card, recording), card.launch_s, in_process=in_process)
    return factors_of([(times_with, first_seconds(observe_on(card, recording), seconds))])


def errors(everything: dict[str, Recording], seconds: float | None) -> Iterator[list[float]]:
    """Absolute errors of every prediction, in percent, figure by figure."""
    for name, recording in everything.items():
        others = [
            other
            for other_name, other in everything.items()
            if other_name != name
            and machine_of(other) == machine_of(recording)
            and is_in_process(other.meta) == is_in_process(recording.meta)
        ]
        for other in others[:SOURCES]:
            card = replace(own_card(recording), factors=fitted_factors(other, seconds))
            result = by_card(card, recording)
            yield [abs(error(result, figure)) for figure in FIGURES]


def main() -> None:
    everything, lines = recordings(), [HEAD, "|---|---:|" + "---:|" * len(FIGURES)]
    for seconds in SECONDS:
        columns = list(zip(*errors(everything, seconds), strict=True))
        cells = " | ".join(f"{median(column):.1f} ({max(column):.0f}) %" for column in columns)
        lines.append(f"| {seconds or 'all'} | {len(columns[0])} | {cells} |")
        print(lines[-1], flush=True)
    if "--write" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_rows(page, HEAD, lines[2:]), encoding="utf-8")


if __name__ == "__main__":
    main()
