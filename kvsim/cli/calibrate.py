"""`kvsim calibrate`: fit step times to recordings of real engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.cli.flag import flag
from kvsim.cli.show import json_option, output_option, overwrite_option, print_json, print_table, progress

if TYPE_CHECKING:
    from kvsim.profiles import Residual
    from kvsim.recording import Recording
    from kvsim.steptime.card import Card


@click.command("calibrate")
@click.argument("recordings", nargs=-1, required=True)
@output_option("Profile to write, or with --card the machine card.", required=True, metavar="PROFILE.toml")
@flag(
    "--gpu-from",
    metavar="PROFILE",
    excludes=("card", "no_held_out"),
    help="Take the GPU's times from this profile (auto: the one that comes with kvsim), and fit "
    "only the host's. A recording of a few seconds is enough.",
)
@flag(
    "--card",
    metavar="CARD",
    excludes=("no_held_out",),
    help="Fit three factors by which the machine's GPU and host are slower than CARD (auto: the "
    "card that comes with kvsim). Recordings may be of any models, and the result is valid "
    "for all models.",
)
@click.option("--no-held-out", is_flag=True, help="Do not predict each recording from a fit to the others (faster).")
@overwrite_option()
@json_option
def command(
    *,
    recordings: tuple[str, ...],
    output: Path,
    gpu_from: str | None,
    card: str | None,
    no_held_out: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Fit step times to RECORDINGS of one GPU, model and engine, and write them to a file: a profile.

    With --card, write a machine card instead: the measured speeds of a machine, for any model. Then RECORDINGS may be
    of any models. They determine how many times longer an engine takes than the given card says.

    The output has the error of the fitted step times on each recording. For a profile of several recordings, it also
    has the error on each recording of a fit to all others, unless --no-held-out is given.
    """
    from kvsim.calibration import calibrate, calibrate_host
    from kvsim.experiments.validation import matching_profile
    from kvsim.files.overwriting import may_write
    from kvsim.profiles import find as find_profile
    from kvsim.profiles import save
    from kvsim.recording import find, read

    may_write(output, "calibrate", overwrite=overwrite)
    read_recordings = [read(find(name)) for name in recordings]
    if card is not None:
        fitted, residuals = _fit_card(card, read_recordings, output)
        _show(output, f"machine card of {fitted.gpu}", residuals, fitted.factors, as_json=as_json)
        return
    command, factors = "kvsim calibrate", {}
    if gpu_from is not None:
        source = matching_profile(read_recordings[0]) if gpu_from == "auto" else find_profile(gpu_from)
        profile = calibrate_host(source, read_recordings)
        factors["host"] = profile.times.host_step_s / source.times.host_step_s
        command += f" --gpu-from {gpu_from}"
    else:
        with progress("fitting") as report:
            profile = calibrate(read_recordings, held_out=not no_held_out, progress=report)
    fitted_to = f"Step times of {profile.engine} with {profile.model} on {profile.gpu}, fitted to recordings."
    header = f"{fitted_to}\nMade by: {' '.join((command, *(item.name for item in read_recordings)))}"
    save(profile, output, header, made_by="calibrate")
    _show(output, profile.label, profile.residuals, factors, as_json=as_json)


def _fit_card(name: str, recordings: Sequence[Recording], output: Path) -> tuple[Card, Sequence[Residual]]:
    """Write the machine card `name` with its factors fitted to `recordings`. Return it, and its error on each."""
    from kvsim.calibration import calibrate_card
    from kvsim.hardware import find_gpu
    from kvsim.machines import card_of, served_model
    from kvsim.steptime.card import load_card, save_card

    first = recordings[0].meta
    size = served_model(first).tensor_parallel_size
    card = card_of(find_gpu(first.gpu), size) if name == "auto" else load_card(name)
    fitted, residuals = calibrate_card(card, recordings)
    command = " ".join(("Made by: kvsim calibrate --card", name, *(item.name for item in recordings)))
    save_card(fitted, output, command, made_by="calibrate")
    return fitted, residuals


def _show(
    output: Path, label: str, residuals: Sequence[Residual], factors: Mapping[str, float], *, as_json: bool
) -> None:
    if as_json:
        documents = [asdict(item) for item in residuals]
        print_json({"profile": str(output), "factors": dict(factors), "residuals": documents})
        return
    rows = [
        (
            item.recording,
            f"{item.num_steps:,}",
            f"{item.mean_percent:+.2f} %",
            "–" if item.held_out_percent is None else f"{item.held_out_percent:+.2f} %",
            f"{item.median_abs_us:.0f} µs",
        )
        for item in residuals
    ]
    columns = ["recording", "steps", "mean error of a step", "when left out", "median error"]
    found = ", ".join(f"{part} {value:.2f}" for part, value in factors.items())
    fitted = f"Times longer than before: {found}. " if found else ""
    print_table(
        f"{output}: {label}", columns, rows, figures=(1, 2, 3, 4), note=f"{fitted}Use it with --profile {output}."
    )
