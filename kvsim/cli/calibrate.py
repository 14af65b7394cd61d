"""`kvsim calibrate`: fit step times to recordings of real engines."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.cli.show import json_option, overwrite_option, print_json, print_table, progress


@click.command("calibrate")
@click.argument("recordings", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="PROFILE.toml", help="The profile."
)
@click.option(
    "--gpu-from",
    metavar="PROFILE",
    help="Keep what the GPU does as in this profile, and fit only how fast the host is: one short recording is enough.",
)
@click.option("--no-held-out", is_flag=True, help="Do not fit again without each recording in turn (faster).")
@overwrite_option
@json_option
def command(
    *,
    recordings: tuple[str, ...],
    output: Path,
    gpu_from: str | None,
    no_held_out: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Fit step times to RECORDINGS of one GPU, model and engine, and write a profile.

    Prints how far the model is from each recording, step by step, fitted with it and without it.
    """
    from kvsim.calibration import calibrate, calibrate_host
    from kvsim.overwriting import mark, may_replace
    from kvsim.profiles import find as find_profile
    from kvsim.profiles import save
    from kvsim.recording import find, read

    may_replace(output, "calibrate", overwrite=overwrite)
    read_recordings = [read(find(name)) for name in recordings]
    header = "Step times of {0.engine} with {0.model} on {0.gpu}, fitted to recordings.\n" + mark("calibrate")
    if gpu_from is not None:
        profile = calibrate_host(find_profile(gpu_from), read_recordings)
        header += f" --gpu-from {gpu_from}"
    else:
        with progress("fitting") as report:
            profile = calibrate(read_recordings, held_out=not no_held_out, progress=report)
    header = " ".join((header.format(profile), *(item.name for item in read_recordings)))
    save(profile, output, header)
    if as_json:
        residuals = [
            {
                "recording": item.recording,
                "num_steps": item.num_steps,
                "mean_percent": item.mean_percent,
                "median_abs_us": item.median_abs_us,
                "held_out_percent": item.held_out_percent,
            }
            for item in profile.residuals
        ]
        print_json({"profile": str(output), "residuals": residuals})
        return
    rows = [
        (
            item.recording,
            f"{item.num_steps:,}",
            f"{item.mean_percent:+.2f} %",
            "–" if item.held_out_percent is None else f"{item.held_out_percent:+.2f} %",
            f"{item.median_abs_us:.0f} µs",
        )
        for item in profile.residuals
    ]
    columns = ["recording", "steps", "mean error of a step", "when left out", "median error"]
    print_table(f"{output}: {profile.label}", columns, rows, figures=(1, 2, 3, 4))
