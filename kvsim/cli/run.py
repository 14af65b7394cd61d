"""`kvsim run`: one policy, one summary, and a recording if asked for."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.scenario import build_scenario, scenario_options
from kvsim.cli.show import json_option, print_json, progress
from kvsim.policies import POLICY_NAMES

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import Measured


@click.command("run")
@click.option("--policy", type=click.Choice(POLICY_NAMES), default="paged", show_default=True)
@scenario_options
@click.option("--no-leap", is_flag=True, help="Take every step by itself: slower, and the same result.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the recording to this folder.")
@json_option
def command(*, policy: str, no_leap: bool, output: Path | None, as_json: bool, **flags: Any) -> None:
    """Simulate one policy and summarise what happened.

    Only what goes into the summary is kept, however long the run, unless a recording is asked for.
    Without flags, it serves the requests of a recorded ShareGPT run again, on the same machine with the same memory.
    """
    from kvsim.cli.summary import print_summaries
    from kvsim.metrics import summarize
    from kvsim.simulation import Measured, measure, simulate

    scenario = build_scenario(**flags)
    settings = scenario.policy(policy)
    with progress(policy) as report:
        run: Recording | Measured = (measure if output is None else simulate)(
            scenario.workload,
            settings,
            scenario.machine(settings),
            refuse_misfits=flags["refuse_misfits"],
            check=flags["check"],
            leap=not no_leap,
            progress=report,
            command=shlex.join(["kvsim", *sys.argv[1:]]),
        )
    if isinstance(run, Measured):
        summary = run.summary
    else:
        from kvsim.recording import write

        assert output is not None
        write(run, output)
        summary = summarize(run)
    if as_json:
        print_json(summary.as_dict())
    else:
        print_summaries(f"{policy}: {scenario.workload.description}", [run], [summary])
