"""`kvsim run`: one policy, one summary, and a recording if asked for."""

from __future__ import annotations

import math
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.load import check_senders, check_users, users_of, users_options
from kvsim.cli.options import check_policy_flags, engine_option
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.server_lines import ServedCommand
from kvsim.cli.show import json_option, overwrite_option, print_json, progress
from kvsim.policies import EVERY_POLICY, Radix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.simulation import EngineName, RouteName
    from kvsim.workload import Workload


@click.command("run", cls=ServedCommand)
@click.option("--policy", type=click.Choice(EVERY_POLICY), default="paged", show_default=True)
@scenario_options
@users_options
@engine_option
@click.option(
    "--replicas", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Servers behind one queue."
)
@click.option(
    "--route",
    type=click.Choice(["shortest", "round-robin"]),
    default="shortest",
    show_default=True,
    help="Choice of the replica for the next request.",
)
@click.option(
    "--front-end",
    type=click.Choice(["none", "http"]),
    default="none",
    show_default=True,
    help="http: TTFT and end to end as a client of vLLM's server sees them, with what its front end adds.",
)
@click.option("--no-band", is_flag=True, help="Do not repeat a run with preemptions to see how far its figures move.")
@click.option("--all", "show_all", is_flag=True, help="Every figure, and where the memory went, state by state.")
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
    replicas: int,
    route: RouteName,
    front_end: str,
    no_band: bool,
    show_all: bool,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Simulate one policy and summarise the run.

    Only what goes into the summary is kept, however long the run, unless a recording is asked for.
    Without flags, it serves the requests of a recorded ShareGPT run again, on the same machine with the same memory.
    """
    from kvsim.cli.answer import band_notes, failure_notes, print_answer
    from kvsim.cli.summary import print_summaries, summary_document
    from kvsim.experiments.bands import band_of, is_worth_a_band
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.machines import card_named
    from kvsim.simulation import Options, measure, measure_replicas, record, record_replicas
    from kvsim.simulation.front_end import behind, http

    check_policy_flags(context, [policy])
    check_users(flags)
    check_senders(flags)
    flags["users"] = users_of(flags)
    if output is not None:
        may_replace(output, "run", overwrite=overwrite, is_folder=True)
    scenario = build_scenario(**flags)
    settings, workload = scenario.policy(policy), scenario.workload
    machine = scenario.machine(settings)
    with progress(policy) as report, ExitStack() as stack:
        options: Options = {
            "refuse_misfits": flags["refuse_misfits"],
            "check": flags["check"],
            "engine": engine,
            "users": flags["users"],
            "max_concurrency": flags["max_concurrency"],
            "think_s": flags["think_s"] or 0.0,
            "users_per_s": flags["users_per_s"] or math.inf,
            "progress": report,
            "command": shlex.join(["kvsim", *sys.argv[1:]]),
        }
        folder = output and stack.enter_context(replacing_folder(output, "run", overwrite=overwrite))
        if replicas > 1 and folder:
            runs = record_replicas(workload, settings, machine, folder, replicas, route, **options)
        elif replicas > 1:
            runs = measure_replicas(workload, settings, machine, replicas, route, **options)
        elif folder:
            runs = [record(workload, settings, machine, folder, **options)]
        else:
            runs = [measure(workload, settings, machine, **options)]
    summaries, band = [run.summary for run in runs], None
    wants_band = replicas == 1 and not no_band and is_worth_a_band(summaries[0], len(workload))
    if replicas > 1:
        summaries = [replace(summary, policy=f"server {number}") for number, summary in enumerate(summaries)]
    elif wants_band:
        with progress("band") as report:
            options["progress"] = report
            band = band_of(workload, settings, machine, summaries[0], **options)
    notes = band_notes(band) if wants_band else []
    notes += (scenario.notes if policy in ("paged", "contiguous") else []) + failure_notes(runs[0].meta)
    if policy == Radix.name:
        notes.append("Steps take the time of vLLM's host and kernels; the pace of SGLang's host is not measured.")
    if front_end == "http":
        server = http(card_named(flags["times"]))
        summaries, note = behind(server, summaries, float(workload.prompt_tokens.mean()))
        notes.append(note)
    if as_json:
        documents = [summary_document(run, summary) for run, summary in zip(runs, summaries, strict=True)]
        print_json(
            {"servers": documents} if replicas > 1 else documents[0] | ({"band": band.as_dict()} if band else {})
        )
        return
    print_answer(runs, summaries, _requests(workload, flags), band=band, notes=notes)
    if show_all:
        print_summaries("every figure", runs, summaries, names_evidence=True)


def _requests(workload: Workload, flags: Mapping[str, Any]) -> str:
    """Describe the requests that were served, and who sent them when."""
    users, think_s, users_per_s = flags["users"], flags["think_s"], flags["users_per_s"]
    if flags["max_concurrency"] is not None:
        return f"{workload.description}; at most {flags['max_concurrency']:,} at once"
    if users is None:
        return workload.description
    pause = f", {think_s:g} s after the answer before" if think_s else " as soon as the one before is answered"
    if workload.turns is not None:
        between = f", {think_s:g} s apart" if think_s else ""
        begin = f", and {users_per_s:g} begin each second" if users_per_s else ""
        return f"{workload.description}; {users:,} users have one session after the other{between}{begin}"
    come = f", and {users_per_s:g} begin each second" if users_per_s else ""
    return f"{workload.description}; {users:,} users send each request{pause}{come}"
