"""`kvsim validate`: simulate a recording's own requests and compare the result with the measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.cli.show import json_option, overwrite_option, print_json, print_table, progress, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.experiments.validation import Validation, ValidationRow


@click.command("validate")
@click.argument("profile_name", metavar="PROFILE")
@click.argument("recordings", nargs=-1, required=True)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw occupancy and batch, measured and simulated (one recording).",
)
@click.option(
    "--vllm", metavar="VERSION", help="Release of vLLM whose rules the simulation follows.  [that of each recording]"
)
@overwrite_option("plot")
@json_option
def command(
    *,
    profile_name: str,
    recordings: tuple[str, ...],
    plot: Path | None,
    vllm: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Simulate the requests of RECORDINGS with PROFILE and print the errors.

    PROFILE is a file (a profile or a machine card), the name of a profile that comes with kvsim, or `auto` for the best
    that ships for each recording. Below the errors are the source of the times, and by how much the GPU and the host
    were slower or faster than predicted.
    """
    from kvsim.experiments.validation import times_of, validate
    from kvsim.recording import find, read

    _check_plot(plot, recordings, overwrite=overwrite)
    documents = []
    for name in recordings:
        recording = read(find(name))
        times = times_of(recording, None if profile_name == "auto" else profile_name)
        with progress(recording.name) as report:
            result = validate(times, recording, progress=report, vllm=vllm)
        documents.append(result.as_dict())
        if plot is not None:
            from kvsim.plots import FIGURES, save

            drawn = FIGURES["occupancy"](result.measured, result.simulated, names=("measured", "simulated"))
            save(drawn, plot, made_by="validate")
        if not as_json:
            _print_errors(recording.name, result)
    if as_json:
        print_json({"validations": documents})


def _check_plot(plot: Path | None, recordings: Sequence[str], *, overwrite: bool) -> None:
    if plot is None:
        return
    from kvsim.errors import UsageError
    from kvsim.plots import may_save

    if len(recordings) > 1:
        raise UsageError("--plot draws one recording; give one.")
    may_save(plot, "validate", overwrite=overwrite)


def _print_errors(name: str, result: Validation) -> None:
    from kvsim.calibration.clocks import in_words

    fitted = (
        "held out: the times were fitted without it" if result.held_out else "in sample: the times were fitted to it"
    )
    rows = [(row.name, _value(row.measured, row), _value(row.simulated, row), _error(row)) for row in result.rows]
    notes = [result.times_from, result.counts_from]
    notes += [f"extrapolates: {words}" for words in result.extrapolates]
    notes += [f"the recording does not say; assumed: {words}" for words in result.assumes]
    if result.clocks:
        notes.append(in_words(result.clocks))
    print_table(
        f"{name} ({fitted})", ["", "measured", "simulated", "error"], rows, figures=(1, 2, 3), note="\n".join(notes)
    )


def _value(value: float, row: ValidationRow) -> str:
    if value != value:
        return "–"
    if row.unit == "s":
        return seconds(value)
    return f"{value:,.0f}" if not row.unit or row.unit == "tok/s" else f"{value:.2f}"


def _error(row: ValidationRow) -> str:
    if row.error != row.error:
        return "–"
    return f"{row.error:+.1f} %" if row.relative else f"{row.error:+.2f} {row.unit}"
