"""The flags that say who sends requests: users in a closed loop, as many as there are, or more of what was recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvsim.cli.sections import section
from kvsim.cli.workload import workload_and_source
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.fit import Load
    from kvsim.recording import Recording
    from kvsim.workload import Workload

Command = TypeVar("Command", bound=Callable[..., Any])
_requests = section("Requests")
_SHOWN_S = 120.0
"""Seconds of an open loop that are simulated where nobody says how many requests there are."""
_FEWEST, _MOST = 300, 5_000
_OPTIONS = (
    _requests(
        "--users",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        help="A closed loop: each of so many users waits for the answer before the next request.",
    ),
    _requests(
        "--think-time",
        type=click.FloatRange(0, 1e9),
        metavar="SECONDS",
        help="With --users: how long a user thinks after an answer.  [0]",
    ),
)


def load_options(command: Command) -> Command:
    """Add the flags of a closed loop to `command`, which receives them as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_users(users: int | None, think_time: float | None) -> None:
    """Raise a UsageError where somebody thinks and nobody is there."""
    if think_time is not None and users is None:
        raise UsageError("--think-time is for users in a closed loop; give --users as well.")


def check_load(flags: dict[str, Any]) -> None:
    """Make sure that the flags describe one load.

    Raises:
        UsageError: they describe none, or two.
    """
    check_users(flags["users"], flags["think_time"])
    if flags["users"] is not None and flags["rate"] is not None:
        raise UsageError("--users wait for their answers, so they have no --rate; give one of the two.")
    if flags["users"] is None and flags["rate"] is None and flags["workload"] is None and flags["arrivals"] is None:
        raise UsageError("there is no load: give --users N, --rate PER_S or --workload FILE.")


def requests_of(flags: dict[str, Any]) -> tuple[Workload, Recording | None]:
    """The requests that the flags ask for, as many as show what a load leads to, and the recording that they are from,
    if they are.
    """
    from kvsim.fit import requests_for

    if flags["workload"] is not None:
        return workload_and_source(flags)
    users, number = flags["users"], flags["num_requests"]
    if users is not None:
        return workload_and_source(flags | {"arrivals": "at-once", "num_requests": number or requests_for(users)})
    rate = flags["rate"] or 30.0
    shown = min(max(round(_SHOWN_S * rate), _FEWEST), _MOST)
    return workload_and_source(flags | {"arrivals": flags["arrivals"] or "poisson", "num_requests": number or shown})


def load_of(flags: dict[str, Any], workload: Workload) -> Load:
    """`workload`, sent as the flags say."""
    from kvsim.fit import Load

    return Load(
        workload=workload, users=flags["users"], think_s=flags["think_time"] or 0.0, asked_rate_per_s=flags["rate"]
    )
