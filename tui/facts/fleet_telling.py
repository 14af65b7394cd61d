"""Texts about a fleet: its headline, the story of the whole run, and the way of a request from server to server."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..look.wording import gib, percent, plural, seconds
from ..playback.session import Story

if TYPE_CHECKING:
    from ..playback.fleet_servers import FleetServers, Stop


def fleet_headline(fleet: FleetServers, *, short: bool) -> list[str]:
    """Return the parts of the headline: the properties that all servers share, the most important part first."""
    meta = fleet.servers[0].meta
    num, prefill = len(fleet.servers), sum(server.kind == "prefill" for server in fleet.servers)
    servers = f"{prefill:,} prefill and {plural(num - prefill, 'decode server')}" if prefill else plural(num, "server")
    units = meta.pool.num_units or 0
    memory = gib(units * meta.pool.bytes_per_unit)
    model = str(meta.model.get("name", "unknown model")).rpartition("/")[2]
    each = f"{memory} each" if short else f"{memory} for KV on each = {plural(units, 'block')}"
    return [f"a fleet of {servers}", f"{model} on {meta.gpu.removeprefix('NVIDIA ')}", each]


def fleet_story(fleet: FleetServers) -> Story:
    """Return the story of the whole run: queues, prefix hits, balance and preemptions."""
    end_s = fleet.player.duration_s
    now = fleet.at(end_s)
    waited = sum(bool((server.steps.waiting > 0).any()) for server in fleet.servers)
    num = len(fleet.servers)
    queues = "no request waited" if not waited else f"requests waited on {waited:,} of {num:,} servers"
    whole = f"whole run, {seconds(end_s, end_s / 100)}: {queues}"
    found = [f"{percent(*fleet.hits(now))} of prompt tokens found in caches"] if fleet.hits(now)[0] else []
    parts = (
        whole,
        *found,
        f"busiest server computed {fleet.imbalance(now):.2f} times the mean",
        plural(sum(server.preempted for server in now), "preemption"),
    )
    return Story(frame=fleet.player.frame, parts=parts, shorter=(whole,))


def way(fleet: FleetServers, stops: list[Stop], arrow: str, *, short: bool) -> str:
    """Return one line about the visits of a request to its servers, in order."""
    described = _stop_in_short if short else _stop
    return f" {arrow} ".join(described(fleet, stops, nth) for nth in range(len(stops)))


def _stop(fleet: FleetServers, stops: list[Stop], nth: int) -> str:
    """Describe the visit number `nth`: the tokens found or fetched, and the times of arrival, begin and end."""
    stop, server = stops[nth], fleet.servers[stops[nth].server]
    if math.isnan(stop.begin_s):
        return f"{server.name}: came {_at(fleet, stop.arrival_s)}, never began"
    came = f"came {_at(fleet, stop.arrival_s)}, " if nth == 0 else ""
    if server.kind == "decode":
        work = f"fetches {stop.hit_tokens:,} tokens, begins {_at(fleet, stop.begin_s)}"
    else:
        work = f"begins {_at(fleet, stop.begin_s)}, {stop.hit_tokens:,} of {stop.prompt_tokens:,} tokens found"
    end = "" if math.isnan(stop.end_s) else f", done {_at(fleet, stop.end_s)}"
    return f"{server.name}: {came}{work}{end}"


def _stop_in_short(fleet: FleetServers, stops: list[Stop], nth: int) -> str:
    stop, name = stops[nth], fleet.servers[stops[nth].server].name
    if math.isnan(stop.begin_s):
        return f"{name}: waits"
    until = "" if math.isnan(stop.end_s) else f" until {_at(fleet, stop.end_s)}"
    return f"{name} from {_at(fleet, stop.begin_s)}{until}"


def _at(fleet: FleetServers, time_s: float) -> str:
    return seconds(time_s, fleet.player.duration_s / 1000)
