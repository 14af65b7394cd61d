"""`kvsim run`: one policy, one summary, and a recording if asked for."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.ranges import check_policy_flags
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.sections import SectionedCommand
from kvsim.cli.show import json_option, overwrite_option, print_json, progress
from kvsim.policies import POLICY_NAMES

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import EngineName, Measured


@click.command("run", cls=SectionedCommand)
@click.option("--policy", type=click.Choice(POLICY_NAMES), default="paged", show_default=True)
@scenario_options
@click.option(
    "--engine",
    type=click.Choice(["auto", "compiled", "python"]),
    default="auto",
    show_default=True,
    help="Machine code, with kvsim[fast], or Python: the same result. auto: compiled for long runs, where it can be.",
)
@click.option("--no-leap", is_flag=True, help="Take every step by itself, in Python: slower, and the same result.")
@click.option(
    "--front-end",
    type=click.Choice(["none", "http"]),
    default="none",
    show_default=True,
    help="http: TTFT and end to end as a client of vLLM's server sees them, with what its front end adds.",
)
@click.option("--no-band", is_flag=True, help="Do not repeat a run with preemptions to see how far its figures move.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the recording to this folder.")
@overwrite_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    policy: str,
    engine: EngineName,
    no_leap: bool,
    front_end: str,
    no_band: bool,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Simulate one policy and summarise what happened.

    Only what goes into the summary is kept, however long the run, unless a recording is asked for.
    Without flags, it serves the requests of a recorded ShareGPT run again, on the same machine with the same memory.
    """
    from kvsim.bands import band_of, is_worth_a_band
    from kvsim.cli.summary import band_words, print_summaries, summary_document
    from kvsim.front_end import behind, http_s
    from kvsim.machines import card_named
    from kvsim.metrics import summarize
    from kvsim.overwriting import may_replace, replacing_folder
    from kvsim.recording import read
    from kvsim.simulation import Options, measure, record

    check_policy_flags(context, [policy])
    if output is not None:
        may_replace(output, "run", overwrite=overwrite, is_folder=True)
    scenario = build_scenario(**flags)
    settings = scenario.policy(policy)
    machine = scenario.machine(settings)
    run: Recording | Measured
    with progress(policy) as report:
        options: Options = {
            "refuse_misfits": flags["refuse_misfits"],
            "check": flags["check"],
            "engine": engine,
            "leap": not no_leap,
            "progress": report,
            "command": shlex.join(["kvsim", *sys.argv[1:]]),
        }
        if output is None:
            run = measure(scenario.workload, settings, machine, **options)
            summary = run.summary
        else:
            with replacing_folder(output, "run", overwrite=overwrite) as folder:
                record(scenario.workload, settings, machine, folder, **options)
            run = read(output)
            summary = summarize(run)
    band = None
    if not no_band and is_worth_a_band(summary, len(scenario.workload)):
        with progress("band") as report:
            options["progress"] = report
            band = band_of(scenario.workload, settings, machine, summary, **options)
    notes = [band_words(band)] if band else []
    if front_end == "http":
        delay_s = http_s(scenario.gpu, card_named(flags["profile"]))
        summary = behind(summary, delay_s)
        notes.append(f"front end: HTTP, {1e3 * delay_s:.1f} ms a request in TTFT and end to end (the band is without)")
    if as_json:
        print_json(summary_document(run, summary) | ({"band": band.as_dict()} if band else {}))
    else:
        print_summaries(f"{policy}: {scenario.workload.description}", [run], [summary], note="\n".join(notes))
