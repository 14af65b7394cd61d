"""`kvsim run`: simulate one policy, print a summary, and write a recording if -o is given."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import flag
from kvsim.cli.fleet_flags import (
    check_routes,
    disaggregation_options,
    fleet_of,
    has_several_servers,
    replicas_options,
    routed_words,
    servers_of,
)
from kvsim.cli.load import check_senders, sender_options, users_of
from kvsim.cli.options import POLICY_HELP, PolicyParam, check_policy_flags, engine_option
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.served_command import ServedCommand
from kvsim.cli.show import command_line, json_option, output_option, overwrite_option, progress
from kvsim.errors import UsageError
from kvsim.policies.settings import Reserve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.cli.scenario import Scenario
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import EngineName, Fleet, Machine, Measured, Options, Servers
    from kvsim.workload import Workload

_WORTH_PROCESSES = 50_000
"""Smallest number of requests for which a fleet is simulated in several processes."""


@click.command("run", cls=ServedCommand)
@click.option("--policy", type=PolicyParam(), default="paged", show_default=True, help=POLICY_HELP)
@scenario_options
@sender_options
@engine_option
@disaggregation_options
@replicas_options
@click.option(
    "--front-end",
    type=click.Choice(["none", "http"]),
    default="none",
    show_default=True,
    help="http: add the delay of vLLM's HTTP front end to TTFT and end to end, as clients see "
    "them. A written recording does not include it.",
)
@click.option(
    "--no-band",
    is_flag=True,
    help="Print no prediction intervals. They need repetitions of a run with preemptions, with other step times.",
)
@flag(
    "--all",
    "show_all",
    is_flag=True,
    excludes=("as_json",),
    help="Print every figure, and where the memory went, state by state; --json has them, too.",
)
@output_option("Write the recording to this folder.")
@overwrite_option("output")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    policy: str,
    engine: EngineName,
    front_end: str,
    no_band: bool,
    show_all: bool,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Simulate one policy and summarise the run.

    Without flags, the requests of a recorded ShareGPT run are served again, on the same machine with the same memory.
    With -o, the whole run is recorded; otherwise only the sums of the summary are kept, however long the run.
    """
    from kvsim.cli.run_answer import RunAnswer
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.machines import card_named

    check_policy_flags(context, [policy])
    check_routes(flags)
    check_senders(flags)
    _check_effects(flags | {"no_band": no_band})
    fleet_flags, users = fleet_of(flags), users_of(flags)
    if output is not None:
        may_replace(output, "run", overwrite=overwrite, is_folder=True)
    scenario = build_scenario(only_policy=policy, **flags)
    settings, workload = scenario.policy(policy), scenario.workload
    setup = (workload, settings, scenario.machine(settings))
    options = _options(flags, users, engine)
    with progress(policy) as report, ExitStack() as stack:
        options["progress"] = report
        folder = output and stack.enter_context(replacing_folder(output, "run", overwrite=overwrite))
        servers = servers_of(fleet_flags, *setup[1:])
        fleet = simulate_servers(setup, servers, options, folder)
    answer = RunAnswer(fleet, shows_fleet=servers is not None)
    if servers is None and not no_band:
        answer.add_band(*setup, options)
    answer.notes += _notes(scenario, policy, fleet.servers, flags)
    if front_end == "http":
        answer.add_front_end(card_named(flags["times"]), workload)
    routed = f"; {routed_words(servers)}" if servers else ""
    answer.show(_requests_in_words(workload, users, flags) + routed, show_all=show_all, as_json=as_json)


def _check_effects(flags: Mapping[str, Any]) -> None:
    """Check that --growth and --no-band have an effect if they are given.

    --growth needs reservations that double, and --no-band needs a single server.
    """
    if flags["growth"] is not None and flags["reserve"] != Reserve.DOUBLING.value:
        raise UsageError("--growth has no effect on reservations that do not grow; give --reserve doubling as well.")
    if flags["no_band"] and (has_several_servers(flags) or flags["prefix_store_gib"] is not None):
        raise UsageError("--no-band has no effect with several servers, whose runs are not repeated; leave it out.")


def _notes(scenario: Scenario, policy: str, runs: Sequence[Measured], flags: Mapping[str, Any]) -> list[str]:
    from kvsim.cli.answer import failure_notes
    from kvsim.machines import includes_drafting

    notes = list(scenario.notes) if policy in ("paged", "contiguous") else []
    notes += failure_notes([run.meta for run in runs])
    if policy == "paged" and flags["speculative_config"]:
        if not includes_drafting(str(runs[0].meta.engine["step_time"])):
            notes.append("Drafting takes no time of its own here, so this is an upper bound of its gain.")
        if not flags["acceptance"]:
            notes.append("An acceptance of 0.7 is assumed (--acceptance).")
    return notes


def _options(flags: Mapping[str, Any], users: int | None, engine: EngineName) -> Options:
    return {
        "refuse_misfits": flags["refuse_misfits"],
        "check": flags["check"],
        "engine": engine,
        "users": users,
        "max_concurrency": flags["max_concurrency"],
        "think_s": flags["think_s"] or 0.0,
        "users_per_s": flags["users_per_s"] or math.inf,
        "command": command_line(),
    }


def simulate_servers(
    setup: tuple[Workload, AnyPolicy, Machine], servers: Servers | None, options: Options, folder: Path | None
) -> Fleet:
    """Simulate `servers`; None simulates a single one. With `folder`, record each server into it.

    `setup` has the requests, the policy and the machine.
    """
    from kvsim.experiments.workers import on_all_cores
    from kvsim.simulation import Fleet, measure, measure_fleet, record, record_fleet
    from kvsim.simulation.fleet import in_turn

    if servers is None:
        return Fleet([measure(*setup, **options) if folder is None else record(*setup, folder, **options)])
    spread = on_all_cores if len(setup[0]) >= _WORTH_PROCESSES else in_turn
    if folder is None:
        return measure_fleet(*setup, servers, spread=spread, **options)
    return record_fleet(*setup, servers, folder, spread=spread, **options)


def _requests_in_words(workload: Workload, users: int | None, flags: Mapping[str, Any]) -> str:
    think_s, users_per_s = flags["think_s"], flags["users_per_s"]
    if flags["max_concurrency"] is not None:
        return f"{workload.description}; at most {flags['max_concurrency']:,} at once"
    if users is None:
        return workload.description
    begin = f", and {users_per_s:g} begin each second" if users_per_s else ""
    if workload.turns is not None:
        between = f", {think_s:g} s apart" if think_s else ""
        return f"{workload.description}; {users:,} users have one session after the other{between}{begin}"
    pause = f", {think_s:g} s after the answer before" if think_s else " as soon as the one before is answered"
    return f"{workload.description}; {users:,} users send each request{pause}{begin}"
