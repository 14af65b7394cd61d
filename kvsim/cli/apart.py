"""Flags of prefill and decode servers, for `kvsim run` and `kvsim compare`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvsim.cli.show import print_json, print_table, progress, seconds, size
from kvsim.errors import UsageError
from kvsim.policies.connectors import MOST_TRANSFERS

if TYPE_CHECKING:
    from kvsim.cli.scenario import Scenario
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Disaggregation, Options

Command = TypeVar("Command", bound=Callable[..., Any])
_SERVERS = click.IntRange(1, 1_000)
_OF_TRANSFERS = ("kv_link_gb_per_s", "kv_link_latency_s", "kv_transfers", "failed_loads", "load_failure_policy")


def apart_options(command: Command) -> Command:
    """Add the flags."""
    for option in reversed(
        (
            click.option("--prefill", type=_SERVERS, help="Servers that compute prompts, apart from --decode."),
            click.option("--decode", type=_SERVERS, help="Servers that fetch the KV of prompts, and answer."),
            click.option(
                "--kv-link-gb-per-s",
                type=click.FloatRange(0, min_open=True),
                default=None,
                help="Speed of a decode server's link for KV, in 10^9 bytes a second on each GPU.  [50]",
            ),
            click.option(
                "--kv-link-latency",
                "kv_link_latency_s",
                type=click.FloatRange(0),
                default=None,
                help="Seconds that a transfer of KV takes however small it is.  [0.001]",
            ),
            click.option(
                "--kv-transfers",
                type=click.IntRange(1, MOST_TRANSFERS),
                default=None,
                help="Transfers at a time on such a link, each over an equal share.  [1]",
            ),
            click.option(
                "--failed-loads",
                type=click.FloatRange(0, 1),
                default=None,
                help="Share of the transfers of which a block does not arrive.  [0]",
            ),
            click.option(
                "--kv-load-failure-policy",
                "load_failure_policy",
                type=click.Choice(["fail", "recompute"]),
                default=None,
                help="Policy after a failed transfer: an error for the client, or tokens that are computed.  [fail]",
            ),
        )
    ):
        command = option(command)
    return command


def apart_of(flags: dict[str, Any], *, others: bool = False) -> Disaggregation | None:
    """Take the flags of prefill and decode servers out of `flags`; return what they ask for, None for nothing.

    `others` tells that there are flags of equal servers behind one router.

    Raises:
        UsageError: some of the flags are there, and others that they need are not.
    """
    prefill, decode = flags.pop("prefill"), flags.pop("decode")
    given = {name: value for name in _OF_TRANSFERS if (value := flags.pop(name)) is not None}
    if prefill is None and decode is None:
        if given:
            raise UsageError("a link for KV is between prefill and decode servers; give --prefill and --decode.")
        return None
    if others:
        raise UsageError("prefill and decode servers take the place of equal ones; leave --replicas and --route-lag.")
    if prefill is None or decode is None:
        missing = "--decode" if decode is None else "--prefill"
        raise UsageError(f"prompts are computed on some servers and decoded on others; give {missing}, too.")
    from kvsim.policies.connectors import KvLink
    from kvsim.simulation import Disaggregation

    names = {"kv_link_gb_per_s": "gb_per_s", "kv_link_latency_s": "latency_s", "kv_transfers": "num_transfers"}
    return Disaggregation(
        num_prefill=prefill,
        num_decode=decode,
        link=KvLink(**{names[name]: value for name, value in given.items() if name in names}),
        failed_share=given.get("failed_loads", 0.0),
        recomputes=given.get("load_failure_policy") == "recompute",
    )


def compare_apart(scenario: Scenario, apart: Disaggregation, policy: AnyPolicy, *, as_json: bool) -> None:
    """Serve on prefill and decode servers, and on as many servers that do both; print both."""
    from kvsim.metrics.fleet_totals import fleet_totals
    from kvsim.simulation import measure_apart, measure_replicas

    setup = (scenario.workload, policy, scenario.machine(policy))
    num_servers = apart.num_prefill + apart.num_decode
    names = [f"{num_servers} servers", f"{apart.num_prefill} prefill, {apart.num_decode} decode"]
    totals: list[FleetTotals] = []
    for name in names:
        with progress(name) as report:
            options: Options = {"progress": report}
            if totals:
                fleet = measure_apart(*setup, apart, "shortest", **options)
            else:
                fleet = measure_replicas(*setup, num_servers, "shortest", **options)
        totals.append(
            fleet_totals(
                fleet.servers[0].meta,
                [each.summary for each in fleet.servers],
                [each.requests for each in fleet.servers],
                mean_duplicate_blocks=fleet.mean_duplicate_blocks,
                most_duplicate_blocks=fleet.most_duplicate_blocks,
                num_prefill=fleet.num_prefill,
                clients=fleet.clients,
                fetched_blocks=fleet.fetched_blocks,
            )
        )
    if as_json:
        print_json({name: each.as_dict() for name, each in zip(names, totals, strict=True)})
        return
    rows = [
        ("finished", *(f"{each.num_finished:,}" for each in totals)),
        ("output tokens/s", *(f"{each.output_tokens_per_s:,.0f}" for each in totals)),
        ("TTFT p50, p99", *(f"{seconds(each.ttft_s.p50)}, {seconds(each.ttft_s.p99)}" for each in totals)),
        ("TPOT p50, p99", *(f"{seconds(each.tpot_s.p50)}, {seconds(each.tpot_s.p99)}" for each in totals)),
        ("end to end p50, p99", *(f"{seconds(each.e2e_s.p50)}, {seconds(each.e2e_s.p99)}" for each in totals)),
        ("preemptions", *(f"{each.num_preemptions:,}" for each in totals)),
        ("pools held, mean", *(f"{100 * each.mean_occupancy:.0f} %" for each in totals)),
        ("prefix hits", *(f"{100 * each.prefix_hit_rate:.1f} %" for each in totals)),
        ("KV fetched", *(size(each.fetched_bytes) for each in totals)),
    ]
    note = f"each decode server fetches over {apart.link.gb_per_s:g} GB/s, {apart.link.num_transfers} at a time"
    print_table(scenario.workload.description, ["", *names], rows, note="\n".join([note, *scenario.notes]))
