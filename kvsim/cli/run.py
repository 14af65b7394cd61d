"""`kvsim run`: one policy, one summary, and a recording if asked for."""

from __future__ import annotations

import math
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.apart import apart_of, apart_options
from kvsim.cli.load import check_senders, check_users, users_of, users_options
from kvsim.cli.options import POLICY_HELP, PolicyParam, check_policy_flags, engine_option
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.server_lines import ServedCommand
from kvsim.cli.show import json_option, overwrite_option, progress
from kvsim.policies.routers import ROUTE_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.cli.scenario import Scenario
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Disaggregation, EngineName, Fleet, Machine, Measured, Options
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
    from kvsim.cli.run_answer import RunAnswer
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.machines import card_named
    from kvsim.simulation import measure, record

    check_policy_flags(context, [policy])
    apart = apart_of(flags, others=replicas > 1 or route_lag_s > 0)
    _check_load(flags)
    if output is not None:
        may_replace(output, "run", overwrite=overwrite, is_folder=True)
    scenario = build_scenario(**flags)
    settings, workload = scenario.policy(policy), scenario.workload
    setup = (workload, settings, scenario.machine(settings))
    options = _options(flags, engine)
    with progress(policy) as options["progress"], ExitStack() as stack:
        folder = output and stack.enter_context(replacing_folder(output, "run", overwrite=overwrite))
        fleet = _serve(setup, folder, apart, (replicas, route, route_lag_s), options)
        runs = fleet.servers if fleet else [record(*setup, folder, **options) if folder else measure(*setup, **options)]
    answer = RunAnswer(runs, fleet)
    if fleet is None and not no_band:
        answer.add_band(*setup, options)
    answer.notes += _notes(scenario, policy, runs, flags)
    if front_end == "http":
        answer.add_front_end(card_named(flags["times"]), workload)
    routed = f"; routed by {route}{f', {route_lag_s:g} s late' if route_lag_s else ''}" if fleet else ""
    answer.show(_requests(workload, flags) + routed, show_all=show_all, as_json=as_json)


_WORTH_PROCESSES = 50_000
"""Requests of a fleet from which on several cores save more time than it takes to start processes."""


def _check_load(flags: dict[str, Any]) -> None:
    """Check who sends the requests, and settle the number of users."""
    check_users(flags)
    check_senders(flags)
    flags["users"] = users_of(flags)


def _notes(scenario: Scenario, policy: str, runs: Sequence[Measured], flags: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the figures must know: about the machine, failures of vLLM, and drafts."""
    from kvsim.cli.answer import failure_notes

    notes = list(scenario.notes) if policy in ("paged", "contiguous") else []
    notes += failure_notes([run.meta for run in runs])
    if policy == "paged" and flags["speculative_config"]:
        assumed = "" if flags["acceptance"] else ", at an acceptance of 0.7, which is assumed (--acceptance)"
        notes.append(f"Drafting takes no time of its own here, so this is an upper bound of its gain{assumed}.")
    return notes


def _options(flags: Mapping[str, Any], engine: EngineName) -> Options:
    return {
        "refuse_misfits": flags["refuse_misfits"],
        "check": flags["check"],
        "engine": engine,
        "users": flags["users"],
        "max_concurrency": flags["max_concurrency"],
        "think_s": flags["think_s"] or 0.0,
        "users_per_s": flags["users_per_s"] or math.inf,
        "command": shlex.join(["kvsim", *sys.argv[1:]]),
    }


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
