"""Flags for how requests are sent: by users who wait for answers (a closed loop), or at given times (an open loop)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import Command, section
from kvsim.cli.generated_workload import DEFAULT_RATE_PER_S, DEFAULT_TOKENS, has_sessions
from kvsim.cli.workload import is_generated, multiple, workload_and_source
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.fitting import Load
    from kvsim.recording import RecordedRequests, Recording
    from kvsim.workload import Workload

_requests = section("Requests")
_SIMULATED_S = 120.0
"""Seconds of arrivals that `kvsim fit` simulates at a rate, if the number of requests is not given."""
_FEWEST, _MOST = 300, 5_000
_SESSIONS_OF_USER, _FEWEST_SESSIONS = 3, 100
_MOST_OF_USERS = 200_000
"""Maximum number of requests that users send in one of the runs that `kvsim fit` tries."""
_USERS = {
    "type": click.IntRange(1, 1_000_000),
    "metavar": "N",
    "help": "Users of a closed loop: each waits for the answer before the next request.",
}
_think_time = _requests(
    "--think-time",
    "think_s",
    type=click.FloatRange(0, 1e9),
    metavar="SECONDS",
    requires=("users",),
    help="Think time of a user after an answer.  [0]",
)
_max_concurrency = _requests(
    "--max-concurrency",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Maximum number of requests in the server; others wait outside. Without --rate or "
    "--arrivals, all arrive at once.",
)
_spawn_rate = _requests(
    "--spawn-rate",
    "users_per_s",
    type=click.FloatRange(0, min_open=True),
    metavar="PER_S",
    requires=("users",),
    help="Number of users who send their first request in each second.  [all at once]",
)


def sender_options(command: Command) -> Command:
    """Add the flags of `kvsim run`: users of a closed loop with their spawn rate, and --max-concurrency."""
    return _requests("--users", **_USERS)(_think_time(_max_concurrency(_spawn_rate(command))))


def load_options(command: Command) -> Command:
    """Add the flags of `kvsim fit`: users of a closed loop. There, --max-concurrency is another name of --users."""
    return _requests("--users", "--max-concurrency", **_USERS)(_think_time(command))


def check_senders(flags: Mapping[str, Any]) -> None:
    """Check that the flags do not describe both an open and a closed loop."""
    names = ("rate", "ramp", "rate_profile", "burstiness", "max_concurrency")
    given = [name for name in names if flags.get(name) is not None]
    given += ["arrivals"] if flags["arrivals"] not in (None, "at-once") else []
    if flags["users"] is not None and given:
        raise UsageError(
            f"--users send a request after each answer, so --{given[0].replace('_', '-')} has no effect; leave one out"
            + (", or limit arrivals with --max-concurrency of kvsim run." if given[0] != "max_concurrency" else ".")
        )


def check_load(flags: Mapping[str, Any]) -> None:
    """Check that the flags describe exactly one load."""
    check_senders(flags)
    if not any(flags[name] is not None for name in ("users", "rate", "workload", "arrivals", "rate_profile")):
        lengths = [name for name in ("prompt_tokens", "output_tokens", "shared_prefix") if flags[name] is not None]
        if lengths:
            raise UsageError(
                f"--{lengths[0].replace('_', '-')} describes requests, but not how often they arrive; give --users N "
                "or --rate PER_S as well."
            )


def requests_of(flags: dict[str, Any]) -> tuple[Workload, Recording | RecordedRequests | None]:
    """Return the requests with which `kvsim fit` tries servers, and the recording that they come from (None for other
    requests).

    If the flags do not state the number of generated requests, it is large enough to show the effect of the load.
    """
    from kvsim.fitting import requests_for

    if flags["workload"] is not None or not (is_generated(flags) or flags["users"] or flags["rate"]):
        return workload_and_source(flags)
    users, number = users_of(flags), flags["num_requests"]
    if has_sessions(flags):
        shown = flags["sessions"] or max(_SESSIONS_OF_USER * (users or 0), _FEWEST_SESSIONS)
        return workload_and_source(flags | {"sessions": shown} | ({} if users is None else {"arrivals": "at-once"}))
    if users is not None:
        number = requests_for(users) if number is None else number
        if max(number, users) > _MOST_OF_USERS:
            raise UsageError(
                f"{users:,} users would take {max(number, users):,} requests in each of the runs that are tried; fit "
                f"tries at most {_MOST_OF_USERS:,}, so --users should be smaller: those of one server, not of a fleet."
            )
        return workload_and_source(flags | {"arrivals": "at-once", "num_requests": number})
    if flags["rate_profile"] is not None:
        return workload_and_source(flags)
    rate = flags["rate"] or DEFAULT_RATE_PER_S
    # An invalid rate is refused later, when arrivals are generated.
    shown = min(max(round(_SIMULATED_S * min(rate, 1e6)), _FEWEST), _MOST) if rate > 0 else _FEWEST
    # Burstiness, a ramp or an infinite rate imply an arrival process; otherwise it is Poisson.
    has_process = flags["burstiness"] is not None or flags["ramp"] is not None or rate == math.inf
    arrivals = flags["arrivals"] or (None if has_process else "poisson")
    lengths = flags["prompt_tokens"] or DEFAULT_TOKENS
    return workload_and_source(
        flags | {"arrivals": arrivals, "num_requests": shown if number is None else number, "prompt_tokens": lengths}
    )


def users_of(flags: dict[str, Any]) -> int | None:
    """Return the number of users: --users times --load; None in an open loop."""
    users: int | None = flags["users"]
    return None if users is None else max(round(users * multiple("--load", flags["load"])), 1)


def load_of(flags: dict[str, Any], workload: Workload) -> Load:
    """Return `workload` with the users or the rate that the flags give.

    The load has no rate if arrivals follow a ramp, or if the flags give none or infinity.
    """
    from kvsim.fitting import Load

    rate: float | None = flags["rate"]
    steady = rate is not None and math.isfinite(rate) and flags["ramp"] is None
    return Load(
        workload=workload,
        users=users_of(flags),
        think_s=flags["think_s"] or 0.0,
        asked_rate_per_s=rate * multiple("--load", flags["load"]) if rate is not None and steady else None,
    )
