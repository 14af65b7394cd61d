"""Servers that a growing load needs: the smallest number of each kind of server, and their price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError
from kvsim.fitting.largest import largest_load, scaled
from kvsim.fitting.server_change import Kind
from kvsim.hardware import find_gpu

if TYPE_CHECKING:
    from kvsim.fitting.load_answer import Answer
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.search import Search
    from kvsim.fitting.searched_server import SearchedServer

_MOST_SERVERS = 64
_MORE_SERVERS = 2
"""Number of servers that may be added to the computed number, one by one, until the load fits."""
_SHOWN_KINDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """Smallest number of servers of one kind that a multiple of the load needs."""

    times: float
    """Factor on the load."""
    words: str
    """Kind of server, as a change of the server in the question; `as asked` for an unchanged one."""
    server: SearchedServer
    """Server of this kind. Its `replicas` is the smallest number."""
    outcome: Outcome
    price_per_hour: float | None
    """Price per hour of the GPUs of all servers; None if no price of this GPU is given."""

    @property
    def price_per_million(self) -> float | None:
        """Price of a million output tokens; None if no price of this GPU is given."""
        per_hour = 3600 * self.outcome.output_tokens_per_s
        return None if self.price_per_hour is None else 1e6 * self.price_per_hour / per_hour

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "load": self.times,
            "servers": self.server.replicas,
            "kind": self.words,
            "num_gpus": self.server.num_gpus,
            "gpu": self.server.gpu.name,
            "price_per_hour": self.price_per_hour,
            "price_per_million_output_tokens": self.price_per_million,
            "command": self.server.command() if self.server.has_checkpoint else None,
            **self.outcome.as_dict(),
        }


def grown(answer: Answer, search: Search, multiples: Sequence[float], prices: Mapping[str, float]) -> list[Grown]:
    """Return, for each multiple of a load, the three cheapest ways to serve it.

    A way is a kind of server, and the smallest number of such servers. The kinds are the server of `answer` and each
    change of its GPUs alone. The load of `answer` has the size of the first multiple. `prices` are per GPU hour, by the
    name of the GPU. If a price is missing, the ways with the fewest GPUs are returned.
    """
    kinds = {"as asked": answer.server.changed(replicas=1)} | {
        each.change.words: each.change.server.changed(replicas=1)
        for each in answer.tried
        if each.change.kind is Kind.GPUS and "replicas" not in each.change.fields
    }
    load, goal = answer.load, answer.goal
    unit = float(load.users or 1) / multiples[0]
    largest_of = search.results(
        [partial(largest_load, kind, load, goal, engine=search.engine) for kind in kinds.values()]
    )
    found: list[Grown] = []
    tasks = [
        (times, words, kinds[words].changed(replicas=num_servers))
        for times in multiples
        for (words, largest) in zip(kinds, largest_of, strict=True)
        for num_servers in _numbers(times, (largest.size or 0.0) / unit)
    ]
    outcomes = search.outcomes([(server, scaled(load, times * unit), 1.0) for times, _, server in tasks])
    done: set[tuple[float, str]] = set()
    for (times, words, server), outcome in zip(tasks, outcomes, strict=True):  # fewest servers first
        if (times, words) not in done and goal.is_met(outcome):
            done.add((times, words))
            price = prices.get(server.gpu.name)
            hourly = None if price is None else price * server.num_gpus
            found.append(Grown(times=times, words=words, server=server, outcome=outcome, price_per_hour=hourly))
    return [row for times in multiples for row in _cheapest([each for each in found if each.times == times])]


def _numbers(times: float, capacity: float) -> range:
    """Return the numbers of servers to try for `times` the load, if `capacity` times the load fits one server.

    An infinite `capacity` means that every load that was tried fits one server; 0 means that none did.
    """
    if not capacity:
        return range(0)
    fewest = 1 if math.isinf(capacity) else math.ceil(times / capacity - 1e-9)
    return range(fewest, min(fewest + _MORE_SERVERS, _MOST_SERVERS) + 1)


def _cheapest(rows: Sequence[Grown]) -> list[Grown]:
    if all(row.price_per_hour is not None for row in rows):
        return sorted(rows, key=lambda row: (row.price_per_hour or 0.0, row.server.num_gpus))[:_SHOWN_KINDS]
    return sorted(rows, key=lambda row: (row.server.num_gpus, row.outcome.e2e_s.mean))[:_SHOWN_KINDS]


def prices_of(text: str | None, gpu: str) -> dict[str, float]:
    """Return the price per GPU hour, by the name of the GPU.

    `text` is a single price of `gpu`, such as `2.5`, or a list such as `H100=2.5,B200=6`. Without `text`, the
    result is empty.
    """
    found = {}
    for part in (text or "").split(",") if text else []:
        name, equals, price = part.rpartition("=")
        try:
            value = float(price)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise UsageError(
                f"--gpu-hour-price should be a price such as 2.5, or one for each GPU such as H100=2.5,B200=6, "
                f"not {text!r}."
            )
        priced = find_gpu(name.strip()).name if equals else gpu
        if priced in found:
            raise UsageError(f"--gpu-hour-price has two prices of {priced}; give one for each GPU.")
        found[priced] = value
    return found


def multiples_of(text: str) -> tuple[float, ...]:
    """Return four evenly spaced multiples of a load from a range such as `1x..4x`, both ends included."""
    first, _, last = text.partition("..")
    try:
        low, high = float(first.removesuffix("x")), float(last.removesuffix("x"))
    except ValueError:
        low = high = math.nan
    if not 1e-3 <= low < high <= 1e3:
        raise UsageError(f"--load should be a multiple such as 2x, or a range such as 1x..4x, not {text!r}.")
    return tuple(round(low + (high - low) * part / 3, 3) for part in range(4))
