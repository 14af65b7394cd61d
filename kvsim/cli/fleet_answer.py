"""Printed answer of `kvsim run --replicas`: the totals of all servers, then a line for each server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvsim.cli.answer import setting_rows
from kvsim.cli.show import echo, print_table, quantiles, seconds
from kvsim.display.text import plural, size_words

if TYPE_CHECKING:
    from kvsim.metrics import Summary
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.recording import Meta

_MOST_SHOWN = 16
"""Largest number of servers that are listed without --all."""


def print_fleet(
    meta: Meta, totals: FleetTotals, summaries: Sequence[Summary], requests: str, notes: Sequence[str]
) -> None:
    """Print a sentence, the setup and the totals of all servers, and one line for each server.

    `meta` is that of any server, because all are equal. `requests` describes the requests and their routing.
    """
    echo(_sentence(totals))
    print_table("", ["", ""], setting_rows(meta, requests, _servers(totals)))
    print_table("", ["all servers", ""], _figures(totals))
    heads = ["server", "finished", "tokens/s", "TTFT p99", "waiting", "pool", "preempted", "prefix hits"]
    rows = [
        (
            _name(totals, number),
            f"{each.num_finished:,}",
            f"{each.output_tokens_per_s:,.0f}",
            seconds(each.ttft_s.p99),
            f"{each.mean_waiting:,.1f}",
            f"{100 * each.mean_occupancy:.0f} %",
            f"{each.num_preemptions:,}",
            f"{100 * each.prefix_hit_rate:.1f} %",
        )
        for number, each in enumerate(summaries)
    ]
    shown = rows if len(rows) <= _MOST_SHOWN else rows[:_MOST_SHOWN]
    more = [f"{len(rows) - len(shown):,} more servers with --all or --json"] if len(shown) < len(rows) else []
    print_table("", heads, shown, note="\n".join([*more, *notes]))


def _sentence(totals: FleetTotals) -> str:
    lost = f", {totals.num_lost:,} were not" if totals.num_lost else ""
    found = (
        f"; {100 * totals.prefix_hit_rate:.1f} % of prompt tokens were cached" if totals.prefix_queried_tokens else ""
    )
    return (
        f"{_servers(totals)} finished {totals.num_finished:,} requests in {totals.duration_s:,.1f} s{lost}, "
        f"{totals.output_tokens_per_s:,.0f} output tokens/s. The busiest computed {_imbalance(totals)}{found}."
    )


def _imbalance(totals: FleetTotals) -> str:
    return f"{totals.imbalance:.2f} times the mean{' of its kind' if totals.num_prefill else ''}"


def _servers(totals: FleetTotals) -> str:
    ranks = totals.num_ranks
    number, num_prefill = totals.num_servers // ranks, totals.num_prefill // ranks
    if ranks > 1 and number == 1:
        return f"{ranks} data-parallel ranks"
    kinds = plural(number, "server")
    if num_prefill:
        kinds = f"{num_prefill:,} prefill and {plural(number - num_prefill, 'decode server')}"
    return f"{kinds} of {ranks} data-parallel ranks" if ranks > 1 else kinds


def _name(totals: FleetTotals, number: int) -> str:
    """Return the name of the scheduler with this number, such as "3", "prefill 0" or "1, rank 2".

    A server with data-parallel ranks has one scheduler per rank. With a single server, the rank's number is the name.
    """
    if totals.num_ranks == totals.num_servers:
        return str(number)
    server, rank = divmod(number, totals.num_ranks)
    name, num_prefill = str(server), totals.num_prefill // totals.num_ranks
    if num_prefill:
        name = f"prefill {server}" if server < num_prefill else f"decode {server - num_prefill}"
    return f"{name}, rank {rank}" if totals.num_ranks > 1 else name


def _figures(totals: FleetTotals) -> list[tuple[str, str]]:
    rows = [(label, quantiles(times)) for label, times in (
        ("TTFT", totals.ttft_s), ("TPOT", totals.tpot_s), ("end to end", totals.e2e_s)
    )]  # fmt: skip
    rows.append(("waiting", f"{totals.mean_waiting:,.1f} requests on average"))
    rows.append(("preemptions", f"{totals.num_preemptions:,}"))
    mean, peak = 100 * totals.mean_occupancy, 100 * totals.peak_occupancy
    rows.append(("pools", f"{mean:.0f} % held on average, {peak:.0f} % at most on one server"))
    rows.append(("imbalance", f"the busiest server computed {_imbalance(totals)}"))
    if totals.idle_steps:
        most, all_steps = max(totals.idle_steps), sum(totals.idle_steps)
        rows.append(
            ("without a batch", f"{all_steps:,} steps of ranks that waited for others, {most:,} at most of one")
        )
    if totals.num_prefill:
        rows.append(
            ("fetched", f"{size_words(totals.fetched_bytes)} of KV on each GPU, from prefill to decode servers")
        )
    if totals.store is not None:
        held, capacity, loaded, written, evicted = (
            size_words(totals.block_bytes * totals.store[f"{what}_blocks"])
            for what in ("most", "capacity", "loaded", "written", "evicted")
        )
        moved = f"{loaded} loaded, {written} written, {evicted} evicted"
        rows.append(("prefix store", f"{held} of {capacity} held at most; {moved}"))
    if totals.prefix_queried_tokens:
        one_pool = 100 * totals.one_pool_hit_tokens / totals.prefix_queried_tokens
        found = f"{100 * totals.prefix_hit_rate:.1f} % of {totals.prefix_queried_tokens:,} prompt tokens"
        rows.append(("prefix hits", f"{found}; one pool that never forgets: {one_pool:.1f} %"))
        twice, at_most = size_words(totals.mean_duplicate_bytes), size_words(totals.most_duplicate_bytes)
        rows.append(("held twice", f"cached prefixes of {twice} on average, {at_most} at most"))
    return rows
