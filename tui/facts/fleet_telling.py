"""Texts about a fleet: its headline, the story of the whole run, and the visits of a request to servers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics.waiting import Limits

from ..look.wording import bytes_text, percent, plural, seconds
from ..playback.session import Story
from .wait_reasons import full_step, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..playback.fleet_servers import FleetServer, FleetServers, ServerNow, Visit


def fleet_headline(fleet: FleetServers, *, short: bool) -> list[str]:
    """Return the parts of the headline, which say what all servers share; the most important part first.

    With `short`, the memory of a server is without its number of blocks.
    """
    meta = fleet.servers[0].meta
    num, prefill = len(fleet.servers), sum(server.kind == "prefill" for server in fleet.servers)
    servers = f"{prefill:,} prefill and {plural(num - prefill, 'decode server')}" if prefill else plural(num, "server")
    units = meta.pool.num_units or 0
    memory = bytes_text(units * meta.pool.bytes_per_unit)
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
        _balance_words(fleet, now),
        plural(sum(server.preempted for server in now), "preemption"),
    )
    return Story(frame=fleet.player.frame, parts=parts, shorter=(whole,))


def beside_pool(fleet: FleetServers, server: FleetServer, now: ServerNow, room: int) -> list[str]:
    """Return the lines of at most `room` characters that are shown beside a server's pool, the most important first.

    They are about transfers, the queue, and tokens and preemptions from the beginning of the run to the clock.
    """
    clock_s = fleet.player.clock_s
    step = server.step_at(clock_s)
    names = server.ids[server.queue(clock_s)[: room // 3]].tolist() if now.waiting else []
    line = "then in line:" if step is not None and _num_preempted(server, step) else "first in line:"
    for name in names:
        if len(line) + len(name) + 1 > room:
            break
        line += f" {name}"
    sums = (
        f"computed so far: {plural(now.computed, 'token')}",
        f"preempted so far: {plural(now.preempted, 'request')}",
    )
    return [text for text in (_transfers(fleet, server, clock_s, room), line * bool(names), *sums) if text]


def about_all(fleet: FleetServers, now: Sequence[ServerNow], room: int) -> list[str]:
    """Return lines of at most `room` characters about all servers together, the most important first."""
    running, held = sum(state.running for state in now), percent(float(np.mean([state.held_share for state in now])), 1)
    lines: list[tuple[str, ...]] = [
        (f"all servers: {running:,} running, {held} held", f"{running:,} running, {held} held")
    ]
    if len(now) > 1:
        balance = _balance_words(fleet, now)
        brief = balance.replace(" server", "", 1)
        lines.append((f"so far: {brief}", brief))
    if fleet.hits(now)[0]:
        lines.append((f"{percent(*fleet.hits(now))} of prompt tokens found in caches",))
    lines.append(("up down enter: open a server",))
    return list(filter(None, (that_fits(texts, room) for texts in lines)))


def _balance_words(fleet: FleetServers, now: Sequence[ServerNow]) -> str:
    """Compare, in words, the tokens computed by the busiest server with the mean of the servers of its kind."""
    times, kind = fleet.imbalance(now)
    return f"busiest {kind}{' ' * bool(kind)}server computed {times:.2f} times {'their' if kind else 'the'} mean"


def that_fits(texts: tuple[str, ...], room: int) -> str:
    """Return the first of `texts` with at most `room` characters; "" if all are longer."""
    return next((text for text in texts if len(text) <= room), "")


def why_waiting(fleet: FleetServers, server: FleetServer, time_s: float) -> tuple[str, ...]:
    """Return what the head of a server's queue waits for: a long text, then shorter ones; empty if unknown."""
    step, steps = server.step_at(time_s), server.steps
    limits = Limits.of(server.meta.policy, server.meta.engine)
    if step is None or not steps.waiting[step] or limits is None or server.meta.policy_name == "static":
        return ()
    return full_step(limits, steps, step) or _short_of_memory(fleet, server, step, time_s)


def _short_of_memory(fleet: FleetServers, server: FleetServer, step: int, time_s: float) -> tuple[str, ...]:
    """Return what the head of the queue needs, and how much is free. If it waits for its KV, return the server that has
    the KV. Empty if unknown.
    """
    steps, pool, queue = server.steps, server.meta.pool, server.queue(time_s)
    free = int(steps.free_units[step])
    which, short = ("free or cached", "left") if server.meta.prefix_caching else ("free", "free")
    preempted = _num_preempted(server, step)
    if preempted:
        blocks = f"{free:,} {'block' if pool.unit_tokens > 1 else 'slot'}s {which}"
        verb = "waits" if preempted == 1 else "wait"
        first = f"{plural(preempted, 'preempted request')} {verb} first"
        few = f"{free:,} {short}"
        return f"{first}, {blocks}", f"{first}, {few}", f"{preempted:,} preempted {verb} first, {few}"
    if not len(queue) or len(pool.groups) > 1 or pool.unit_tokens == 1:
        return ()
    name = str(server.ids[queue[0]])
    source = server.handovers.fetched_from(int(queue[0]), time_s)
    if source is not None:
        return (f"{name} fetches its KV from {_name_of(fleet, server, source)}", f"{name} fetches its KV")
    need = -(-int(server.requests.prompt_tokens[queue[0]]) // pool.unit_tokens)
    if need <= free:
        return ()
    return tuple(needs(name, need, "block", f"{free:,} {each}")[0] for each in (which, short))


def _num_preempted(server: FleetServer, step: int) -> int:
    """Return the number of waiting requests that were preempted, which wait before those that were never scheduled.

    Which requests they are is in no table that is read.
    """
    return int(server.steps.waiting[step]) - len(server.queue(float(server.steps.start_s[step])))


def _transfers(fleet: FleetServers, server: FleetServer, time_s: float, room: int) -> str:
    """List, for each other server, the requests whose KV that other server will fetch or has sent, in at most `room`
    characters.

    A prefill server keeps KV for decode servers, and a decode server has KV from prefill servers. The text is empty for
    other servers and without transfers.
    """
    kept, came = server.handovers.kept_for(time_s), server.handovers.came_from(time_s)
    if server.kind == "prefill" and kept:
        verbs, of_each = ("kept for", "for"), kept
    elif server.kind == "decode" and came:
        verbs, of_each = ("from", "from"), came
    else:
        return ""
    counts = [(num, _name_of(fleet, server, number)) for number, num in of_each.items()]
    (first, name), others = counts[0], [f"{num:,} {verbs[1]} {name}" for num, name in counts[1:]]
    begin = f"{plural(first, 'request')} {verbs[0]} {name}"
    texts = []
    for end in range(len(others), -1, -1):
        more = [f"{plural(len(others) - end, 'server')} more"] * (end < len(others))
        texts.append(", ".join((begin, *others[:end], *more)))
    texts.append(f"{plural(sum(of_each.values()), 'request')} {verbs[0]} {plural(len(counts), 'server')}")
    return that_fits(tuple(texts), room)


def _name_of(fleet: FleetServers, server: FleetServer, number: int) -> str:
    others = fleet.others_of(server)
    return others[number].name if number < len(others) else f"server {number}"


def way(fleet: FleetServers, visits: list[Visit], arrow: str, *, short: bool) -> str:
    """Describe in one line the visits of a request to servers, in order and with `arrow` between them.

    With `short`, a visit has fewer words.
    """
    described = _describe_visit_briefly if short else _describe_visit
    return f" {arrow} ".join(described(fleet, visits, nth) for nth in range(len(visits)))


def _describe_visit(fleet: FleetServers, visits: list[Visit], nth: int) -> str:
    visit, server = visits[nth], fleet.servers[visits[nth].server]
    if math.isnan(visit.begin_s):
        return f"{server.name}: came {_at(fleet, visit.arrival_s)}, never began"
    came = f"came {_at(fleet, visit.arrival_s)}, " if nth == 0 else ""
    if server.kind == "decode":
        work = f"fetches {visit.hit_tokens:,} tokens, begins {_at(fleet, visit.begin_s)}"
    else:
        work = f"begins {_at(fleet, visit.begin_s)}, {visit.hit_tokens:,} of {visit.prompt_tokens:,} tokens found"
    end = "" if math.isnan(visit.end_s) else f", done {_at(fleet, visit.end_s)}"
    return f"{server.name}: {came}{work}{end}"


def _describe_visit_briefly(fleet: FleetServers, visits: list[Visit], nth: int) -> str:
    visit, name = visits[nth], fleet.servers[visits[nth].server].name
    if math.isnan(visit.begin_s):
        return f"{name}: waits"
    until = "" if math.isnan(visit.end_s) else f" until {_at(fleet, visit.end_s)}"
    return f"{name} from {_at(fleet, visit.begin_s)}{until}"


def _at(fleet: FleetServers, time_s: float) -> str:
    return seconds(time_s, fleet.player.duration_s / 1000)
