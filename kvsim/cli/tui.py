"""`kvsim tui`: the terminal interface over a recording or a fresh simulation."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.scenario import build_scenario, scenario_options
from kvsim.cli.show import progress
from kvsim.errors import UsageError
from kvsim.policies import POLICY_NAMES

if TYPE_CHECKING:
    from kvsim.recording import Recording


@click.command("tui")
@click.argument("recording_name", metavar="[RECORDING]", required=False)
@click.option(
    "--policy", type=click.Choice(POLICY_NAMES), help="Simulate this policy instead of replaying a recording."
)
@scenario_options
@click.option("--at", "at_s", type=float, metavar="SECONDS", help="Begin at this time of the recording.")
@click.option(
    "--screenshot",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Write a picture and leave; needs no terminal.",
)
@click.option("--size", default="120x40", show_default=True, metavar="COLUMNSxROWS", help="Of the screenshot.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with plain characters.")
def command(
    *,
    recording_name: str | None,
    policy: str | None,
    at_s: float | None,
    screenshot: Path | None,
    size: str,
    ascii_only: bool,
    **flags: Any,
) -> None:
    """Watch the memory pool of RECORDING, or of a simulation with --policy.

    RECORDING is a folder or the name of a recording that comes with kvsim; with neither, a real vLLM run is shown.
    """
    if recording_name is not None and policy is not None:
        raise UsageError("give a recording to replay or --policy to simulate, not both.")
    if at_s is not None and not 0 <= at_s < float("inf"):
        raise UsageError(f"--at should be a time of 0 seconds or more, not {at_s}.")
    columns_rows = _size(size)
    if screenshot is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("kvsim tui needs a terminal; without one, --screenshot FILE.svg writes a picture.")
    recording = _recording(recording_name, policy, flags)
    tui = import_module("tui")
    ascii_only = ascii_only or os.environ.get("TERM") == "dumb"
    if screenshot is None:
        tui.run(recording, at_s=at_s, ascii=ascii_only)
    else:
        tui.screenshot(recording, screenshot, at_s=at_s, size=columns_rows, ascii=ascii_only)
        click.echo(screenshot)


def _recording(name: str | None, policy: str | None, flags: dict[str, Any]) -> Recording:
    if policy is not None:
        scenario = build_scenario(**flags)
        with progress(f"simulating {policy}") as report:
            return scenario.simulate(policy, progress=report)
    from kvsim.cli.workload import DEFAULT_WORKLOAD
    from kvsim.recording import find, read

    return read(find(name or DEFAULT_WORKLOAD))


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    columns, rows = map(int, match.groups()) if match else (0, 0)
    if not (1 <= columns <= 1000 and 1 <= rows <= 1000):
        raise UsageError(f"--size should be columns and rows such as 120x40, not {text!r}.")
    return columns, rows
