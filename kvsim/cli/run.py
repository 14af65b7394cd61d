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

from kvsim.cli.apart import apart_of, apart_options
from kvsim.cli.load import check_senders, check_users, users_of, users_options
from kvsim.cli.options import POLICY_HELP, PolicyParam, check_policy_flags, engine_option
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.server_lines import ServedCommand
from kvsim.cli.show import json_option, overwrite_option, print_json, progress
from kvsim.policies.routers import ROUTE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.metrics import Summary
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Disaggregation, EngineName, Fleet, Machine, Options
    from kvsim.workload import Workload


class RouteParam(click.ParamType[str]):
    """The name of a router, or a Python file with one."""

    name = "route"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` if it is a route or a file that ends in .py."""
        if value not in ROUTE_NAMES and not (value.endswith(".py") and Path(value).is_file()):
            self.fail(f"{value!r} is none of {', '.join(ROUTE_NAMES)}, and no Python file.", param, ctx)
        return value


@click.command("run", cls=ServedCommand)
@click.option("--policy", type=PolicyParam(), default="paged", show_default=True, help=POLICY_HELP)
@scenario_options
@users_options
@engine_option
@apart_options
@click.option(
    "--replicas", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Servers behind one router."
)
@click.option(
    "--route",
    type=RouteParam(),
    default="shortest",
    show_default=True,
    help="Router in front of the replicas, or a Python file with a function route(request, servers).",
)
@click.option(
    "--route-lag",
    "route_lag_s",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Age in seconds of what the router knows of the servers' prefix caches.",
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
    route: str,
    route_lag_s: float,
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
    from kvsim.cli.fleet_answer import print_fleet
    from kvsim.cli.summary_lines import print_summaries, summary_document
    from kvsim.experiments.bands import band_of, is_worth_a_band
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.machines import card_named
    from kvsim.simulation import measure, record
    from kvsim.simulation.front_end import behind, http

    check_policy_flags(context, [policy])
    apart = apart_of(flags, others=replicas > 1 or route_lag_s > 0)
    _check_load(flags)
    if output is not None:
        may_replace(output, "run", overwrite=overwrite, is_folder=True)
    scenario = build_scenario(**flags)
    settings, workload = scenario.policy(policy), scenario.workload
    setup = (workload, settings, scenario.machine(settings))
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
        fleet = _serve(setup, folder, apart, (replicas, route, route_lag_s), options)
        runs = fleet.servers if fleet else [record(*setup, folder, **options) if folder else measure(*setup, **options)]
    summaries, band = [run.summary for run in runs], None
    wants_band = fleet is None and not no_band and is_worth_a_band(summaries[0], len(workload))
    if fleet is not None:
        summaries = [replace(summary, policy=f"server {number}") for number, summary in enumerate(summaries)]
    elif wants_band:
        with progress("band") as report:
            options["progress"] = report
            band = band_of(*setup, summaries[0], **options)
    notes = band_notes(band) if wants_band else []
    notes += (scenario.notes if policy in ("paged", "contiguous") else []) + failure_notes([run.meta for run in runs])
    if policy == "paged" and flags["speculative_config"]:
        assumed = "" if flags["acceptance"] else ", at an acceptance of 0.7, which is assumed (--acceptance)"
        notes.append(f"Drafting takes no time of its own here, so this is an upper bound of its gain{assumed}.")
    if front_end == "http":
        server = http(card_named(flags["times"]))
        summaries, note = behind(server, summaries, float(workload.prompt_tokens.mean()))
        notes.append(note)
    totals = _totals_of(fleet, summaries) if fleet else None
    if as_json:
        documents = [summary_document(run, summary) for run, summary in zip(runs, summaries, strict=True)]
        print_json(
            {"fleet": totals.as_dict(), "servers": documents}
            if totals
            else documents[0] | ({"band": band.as_dict()} if band else {})
        )
        return
    if totals:
        routed = f"{_requests(workload, flags)}; routed by {route}{f', {route_lag_s:g} s late' if route_lag_s else ''}"
        print_fleet(runs[0].meta, totals, summaries, routed, notes)
    else:
        print_answer(runs, summaries, _requests(workload, flags), band=band, notes=notes)
    if show_all:
        print_summaries("every figure", runs, summaries, names_evidence=True)


_WORTH_PROCESSES = 50_000
"""Requests of a fleet from which on several cores save more time than it takes to start processes."""


def _check_load(flags: dict[str, Any]) -> None:
    """Check who sends the requests, and settle the number of users."""
    check_users(flags)
    check_senders(flags)
    flags["users"] = users_of(flags)


def _serve(
    setup: tuple[Workload, AnyPolicy, Machine],
    folder: Path | None,
    apart: Disaggregation | None,
    routing: tuple[int, str, float],
    options: Options,
) -> Fleet | None:
    """Serve on several servers, if there are several."""
    if apart is not None:
        return _serve_apart(setup, folder, apart, routing[1], options)
    return _serve_fleet(setup, folder, routing, options) if routing[0] > 1 else None


def _serve_fleet(
    setup: tuple[Workload, AnyPolicy, Machine], folder: Path | None, routing: tuple[int, str, float], options: Options
) -> Fleet:
    """Serve on several servers behind one router, and record each if there is a folder."""
    from kvsim.experiments.workers import on_all_cores
    from kvsim.simulation import measure_replicas, record_replicas
    from kvsim.simulation.fleet import in_turn

    spread = on_all_cores if len(setup[0]) >= _WORTH_PROCESSES else in_turn
    if folder is None:
        return measure_replicas(*setup, *routing, spread=spread, **options)
    return record_replicas(*setup, folder, *routing, spread=spread, **options)


def _serve_apart(
    setup: tuple[Workload, AnyPolicy, Machine], folder: Path | None, apart: Disaggregation, route: str, options: Options
) -> Fleet:
    """Serve on prefill and decode servers, and record each if there is a folder."""
    from kvsim.simulation import measure_apart, record_apart

    if folder is None:
        return measure_apart(*setup, apart, route, **options)
    return record_apart(*setup, folder, apart, route, **options)


def _totals_of(fleet: Fleet, summaries: Sequence[Summary]) -> FleetTotals:
    from kvsim.metrics.fleet_totals import fleet_totals

    return fleet_totals(
        fleet.servers[0].meta,
        summaries,
        [run.requests for run in fleet.servers],
        mean_duplicate_blocks=fleet.mean_duplicate_blocks,
        most_duplicate_blocks=fleet.most_duplicate_blocks,
        num_prefill=fleet.num_prefill,
        clients=fleet.clients,
        fetched_blocks=fleet.fetched_blocks,
    )


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
