"""Flags of `kvsim run` and `kvsim compare` for several servers: replicas, ranks, or prefill and decode servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import section, with_options
from kvsim.cli.options import flags_of, settings_from
from kvsim.errors import UsageError
from kvsim.policies.connectors import KvLink
from kvsim.policies.routers import ROUTE_NAMES, SEES_PREFIXES
from kvsim.setting_fields import settings_in

if TYPE_CHECKING:
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Disaggregation, Machine, PrefixStore, Servers

_SERVERS = click.IntRange(1, 1_000)
_HEADING = "Several servers"
_fleet = section(_HEADING)
OF_TRANSFERS = (*(each.name for each in settings_in(KvLink)), "failed_loads", "load_failure_policy")
"""Names of the flags for transfers of KV between prefill and decode servers, and from and to a prefix store."""


class RouteParam(click.ParamType[str]):
    """Flag type: the name of a router, or a Python file with one."""

    name = "route"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `value` if it is the name of a router or an existing Python file."""
        if value not in ROUTE_NAMES and not (value.endswith(".py") and Path(value).is_file()):
            self.fail(f"{value!r} is none of {', '.join(ROUTE_NAMES)}, and no Python file.", param, ctx)
        return value


disaggregation_options = with_options(
    _fleet("--prefill", type=_SERVERS, help="Servers that only compute prompts; requires --decode."),
    _fleet("--decode", type=_SERVERS, help="Servers that fetch the KV of prompts, and answer; requires --prefill."),
    *flags_of(KvLink, _HEADING, {}).values(),
    _fleet(
        "--failed-loads",
        type=click.FloatRange(0, 1),
        help="Share of the transfers that lose a block.  [0]",
    ),
    _fleet(
        "--kv-load-failure-policy",
        "load_failure_policy",
        type=click.Choice(["fail", "recompute"]),
        requires=("failed_loads",),
        help="Reaction to a failed transfer: an error for the client, or computing the missing tokens.  [fail]",
    ),
)
"""Decorator that adds the flags of separate prefill and decode servers and of their link."""

replicas_options = with_options(
    _fleet("--replicas", type=_SERVERS, default=1, show_default=True, help="Servers behind one router."),
    _fleet(
        "--route",
        type=RouteParam(),
        help="Router in front of the servers, or a Python file with a function route(request, servers).  [shortest; "
        "data-parallel for the ranks of one server]",
    ),
    _fleet(
        "--route-lag",
        "route_lag_s",
        type=click.FloatRange(0),
        metavar="SECONDS",
        default=0.0,
        show_default=True,
        help="Seconds by which the router's view of the servers' prefix caches is out of date.",
    ),
    _fleet(
        "--prefix-store-gib",
        type=click.FloatRange(0, min_open=True),
        help="Size in GiB of a store of prefixes that all servers share. Each server loads from it "
        "over a link with the speed of --kv-link-gb-per-s.",
    ),
)
"""Decorator that adds the flags of equal servers and of their router."""


def check_routes(*runs: Mapping[str, Any]) -> None:
    """Check that flags of the router have an effect on at least one run. Each of `runs` has the flags of one run."""
    routed = [flags["route"] for flags in runs if has_several_servers(flags)]
    if not routed:
        for flag, name in (("--route", "route"), ("--route-lag", "route_lag_s")):
            if any(flags[name] for flags in runs):
                raise UsageError(f"{flag} is for several servers; give --replicas N or --data-parallel-size N as well.")
    elif any(flags["route_lag_s"] for flags in runs) and not any(map(_sees_prefixes, routed)):
        raise UsageError(
            f"--route-lag is for routers that see prefix caches; give --route {', '.join(sorted(SEES_PREFIXES))} or "
            "FILE.py as well."
        )


def has_several_servers(flags: Mapping[str, Any]) -> bool:
    """Tell whether the flags ask for several schedulers: replicas, data-parallel ranks or prefill and decode ones."""
    return bool(flags["prefill"] or flags["decode"] or flags["replicas"] > 1 or (flags["data_parallel_size"] or 1) > 1)


def _sees_prefixes(route: str | None) -> bool:
    return route is not None and (route in SEES_PREFIXES or route not in ROUTE_NAMES)


def fleet_of(flags: dict[str, Any]) -> Servers:
    """Remove the flags of several servers from `flags`, and return the servers that they describe, without ranks."""
    from kvsim.simulation import Replicas

    replicas, route = flags.pop("replicas", 1), flags.pop("route", None)
    route_lag_s, store = flags.pop("route_lag_s", 0.0), _store_of(flags)
    split = _disaggregation_of(flags, route or "shortest", has_replicas=replicas > 1 or route_lag_s > 0)
    if store and split:
        raise UsageError("--prefix-store-gib is shared by equal servers; leave out --prefill and --decode.")
    return split or Replicas(number=replicas, route=route, route_lag_s=route_lag_s, store=store)


def _store_of(flags: dict[str, Any]) -> PrefixStore | None:
    """Remove the flags of a prefix store and its link from `flags`. Return the store; None without these flags."""
    gib = flags.pop("prefix_store_gib", None)
    if gib is None:
        return None
    from kvsim.simulation import PrefixStore

    for name in ("failed_loads", "load_failure_policy"):
        if flags[name] is not None:
            raise UsageError("loads from a prefix store never fail here; leave out --failed-loads and "
                             "--kv-load-failure-policy.")  # fmt: skip
    return PrefixStore(gib=gib, link=settings_from(KvLink, _remove_transfers(flags)))


def _remove_transfers(flags: dict[str, Any]) -> dict[str, Any]:
    """Set the flags of transfers in `flags` to None. Return the values of those that were given."""
    taken = {name: flags[name] for name in OF_TRANSFERS if flags[name] is not None}
    flags |= dict.fromkeys(OF_TRANSFERS)
    return taken


def servers_of(fleet: Servers, policy: AnyPolicy, machine: Machine) -> Servers | None:
    """Return the servers of a run with their data-parallel ranks; None for a single server without ranks and store.

    `machine` is that of each server.
    """
    servers = fleet.on(machine, policy)
    return servers if servers.number * servers.ranks > 1 or servers.link is not None else None


def routed_words(servers: Servers) -> str:
    """Describe in words how requests are routed to `servers`."""
    from kvsim.simulation import Disaggregation

    if isinstance(servers, Disaggregation):
        assumed = ", and to a rank of each server by its front end, which is assumed" if servers.ranks > 1 else ""
        return f"routed by {servers.route_name}{assumed}"
    return f"routed by {servers.route_name}{f', {lag_s:g} s late' if (lag_s := servers.route_lag_s) else ''}"


def _disaggregation_of(flags: dict[str, Any], route: str, *, has_replicas: bool) -> Disaggregation | None:
    """Remove the flags of prefill and decode servers from `flags`. Return these servers; None without these flags.

    `has_replicas` is True if flags of equal servers are given, which is an error together with these flags.
    """
    prefill, decode = flags.pop("prefill"), flags.pop("decode")
    given = {name: value for name in OF_TRANSFERS if (value := flags.pop(name)) is not None}
    if prefill is None and decode is None:
        if given:
            raise UsageError("a link for KV is between prefill and decode servers, or to a store; give --prefill and "
                             "--decode, or --prefix-store-gib.")  # fmt: skip
        return None
    if has_replicas:
        raise UsageError("prefill and decode servers replace equal servers; leave out --replicas and --route-lag.")
    if prefill is None or decode is None:
        missing = "--decode" if decode is None else "--prefill"
        raise UsageError(f"prompts are computed on some servers and decoded on others; give {missing}, too.")
    from kvsim.simulation import Disaggregation

    return Disaggregation(
        num_prefill=prefill,
        num_decode=decode,
        route=route,
        link=settings_from(KvLink, given),
        failed_share=given.get("failed_loads", 0.0),
        recomputes=given.get("load_failure_policy") == "recompute",
    )
