"""Read the fields of an oracle's workload about its KV connector, and about each request's exchange of KV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.errors import WorkloadError
from kvsim.policies.connectors import Connector, Exchange, Remote, Role

_POLICIES = ("fail", "recompute")
_REMOTES = {None: Remote.NONE, "prefill": Remote.READS, "decode": Remote.HAS_PROMPT}
_KINDS = ("store", "nixl")


def connector_of(document: Any, where: str) -> Connector | None:
    """Return the KV connector of the workload in `document`; None without one. `where` begins every error."""
    if not document:
        return None
    if not isinstance(document, dict) or document.get("connector") not in _KINDS:
        raise WorkloadError(f"{where}: kv should be an object with a connector, one of {', '.join(_KINDS)}.")
    if document.get("extra"):
        raise WorkloadError(f"{where}: kvsim does not know extra settings of a connector; leave out kv.extra.")
    policy = document.get("policy", "fail")
    if policy not in _POLICIES:
        raise WorkloadError(f"{where}: kv.policy should be one of {', '.join(_POLICIES)}, not {policy!r}.")
    try:
        role = Role(document.get("role", "kv_both"))
    except ValueError as error:
        raise WorkloadError(f"{where}: kv.role: {error}.") from error
    return Connector(role=role, is_store=document["connector"] == "store", recomputes=policy == "recompute")


def exchange_of(document: Mapping[str, Any], connector: Connector, fail_order: int) -> Exchange:
    """Return a request's exchange of KV, from the request's JSON `document`.

    Of requests whose loads fail in one step, the one with the lowest `fail_order` ends first.
    """
    failed_blocks = tuple(int(place) for place in document.get("bad") or ())
    if not connector.is_store:
        remote = _REMOTES[document.get("remote")]
        return Exchange(remote=remote, failed_blocks=failed_blocks, fail_order=fail_order)
    return Exchange(
        stored_tokens=int(document.get("match", 0)),
        is_async=bool(document.get("async", True)),
        num_pending_lookups=int(document.get("unknown", 0)),
        is_kept=bool(document.get("send", 0)),
        failed_blocks=failed_blocks,
        fail_order=fail_order,
    )
