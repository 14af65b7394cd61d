"""`kvsim compare` of fleets: equal servers, prefill and decode servers, or data-parallel ranks on the same GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvsim.cli.fleet_flags import FleetFlags, servers_of
from kvsim.cli.scenario import build_scenario
from kvsim.cli.show import print_json, print_table, progress, seconds, size
from kvsim.errors import KvsimError
from kvsim.policies import Paged

if TYPE_CHECKING:
    from kvsim.cli.scenario import Scenario
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.simulation import Options


def compare_fleets(fleet: FleetFlags, flags: Mapping[str, Any], *, as_json: bool) -> None:
    """Simulate the requested servers and alternatives on as many GPUs, and print the figures of all."""
    scenario = build_scenario(**flags)
    totals: dict[str, FleetTotals] = {}
    notes = list(scenario.notes)
    for name, servers, changes in _alternatives(fleet, flags):
        try:
            changed = build_scenario(**{**flags, **changes}) if changes else scenario
            totals[name] = _totals_of(name, changed, servers)
        except KvsimError as error:
            if not changes:
                raise
            notes.append(f"{name}: {error}")
    if as_json:
        print_json({name: each.as_dict() for name, each in totals.items()})
        return
    if fleet.apart is not None:
        link = fleet.apart.link
        notes.insert(0, f"each decode server fetches over {link.gb_per_s:g} GB/s, {link.num_transfers} at a time")
    print_table(scenario.workload.description, ["", *totals], _rows(totals), note="\n".join(notes))


def _alternatives(fleet: FleetFlags, flags: Mapping[str, Any]) -> Iterator[tuple[str, FleetFlags, dict[str, Any]]]:
    """Yield each way to use the GPUs: its name, its servers, and the flags that it changes."""
    if (apart := fleet.apart) is not None:
        number = apart.num_prefill + apart.num_decode
        yield f"{number} servers", FleetFlags(None, number), {}
        yield f"{apart.num_prefill} prefill, {apart.num_decode} decode", fleet, {}
        return
    ranks, per_rank = flags["data_parallel_size"], flags["tensor_parallel_size"] or 1
    alone = {"data_parallel_size": None, "enable_expert_parallel": False}
    yield f"{ranks} data-parallel ranks", fleet, {}
    yield (
        f"tensor parallel over {ranks * per_rank}",
        FleetFlags(None),
        alone | {"tensor_parallel_size": ranks * per_rank},
    )
    yield f"{ranks} servers with all weights", FleetFlags(None, ranks), alone


def _totals_of(name: str, scenario: Scenario, fleet_flags: FleetFlags) -> FleetTotals:
    from kvsim.simulation import Fleet, measure, measure_fleet

    policy = scenario.policy(Paged.name)
    machine = scenario.machine(policy)
    setup, servers = (scenario.workload, policy, machine), servers_of(fleet_flags, policy, machine)
    with progress(name) as report:
        options: Options = {
            "progress": report, "check": scenario.flags["check"], "refuse_misfits": scenario.flags["refuse_misfits"],
        }  # fmt: skip
        fleet = measure_fleet(*setup, servers, **options) if servers else Fleet([measure(*setup, **options)])
    return fleet.totals()


def _rows(totals: Mapping[str, FleetTotals]) -> list[tuple[str, ...]]:
    all_of = list(totals.values())
    rows: list[tuple[str, ...]] = [
        ("finished", *(f"{each.num_finished:,}" for each in all_of)),
        ("output tokens/s", *(f"{each.output_tokens_per_s:,.0f}" for each in all_of)),
        ("TTFT p50, p99", *(f"{seconds(each.ttft_s.p50)}, {seconds(each.ttft_s.p99)}" for each in all_of)),
        ("TPOT p50, p99", *(f"{seconds(each.tpot_s.p50)}, {seconds(each.tpot_s.p99)}" for each in all_of)),
        ("end to end p50, p99", *(f"{seconds(each.e2e_s.p50)}, {seconds(each.e2e_s.p99)}" for each in all_of)),
        ("preemptions", *(f"{each.num_preemptions:,}" for each in all_of)),
        ("pools of all servers", *(size(each.pool_bytes) for each in all_of)),
        ("pools held, mean", *(f"{100 * each.mean_occupancy:.0f} %" for each in all_of)),
        ("prefix hits", *(f"{100 * each.prefix_hit_rate:.1f} %" for each in all_of)),
    ]
    if any(each.num_prefill for each in all_of):
        rows.append(("KV fetched", *(size(each.fetched_bytes) for each in all_of)))
    if any(each.idle_steps for each in all_of):
        idle = (f"{sum(each.idle_steps):,}" if each.idle_steps else "" for each in all_of)
        rows.append(("steps without a batch", *idle))
    return rows
