"""`kvsim run`: one policy, one summary, and a recording if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvsim.cli.scenario import build_scenario, scenario_options
from kvsim.cli.show import json_option, print_json, progress
from kvsim.policies import POLICY_NAMES


@click.command("run")
@click.option("--policy", type=click.Choice(POLICY_NAMES), default="paged", show_default=True)
@scenario_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the recording to this folder.")
@json_option
def command(*, policy: str, output: Path | None, as_json: bool, **flags: Any) -> None:
    """Simulate one policy and summarise what happened.

    Without flags, it serves the requests of a recorded ShareGPT run again, on the same machine with the same memory.
    """
    from kvsim.cli.summary import print_summaries
    from kvsim.metrics import summarize

    scenario = build_scenario(**flags)
    with progress(policy) as report:
        recording = scenario.simulate(policy, progress=report)
    if output is not None:
        from kvsim.recording import write

        write(recording, output)
    summary = summarize(recording)
    if as_json:
        print_json(summary.as_dict())
    else:
        print_summaries(f"{policy}: {scenario.workload.description}", [recording], [summary])
