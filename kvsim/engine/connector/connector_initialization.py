"""Creation of the connector's settings and arrays when a run begins."""

from __future__ import annotations

from itertools import chain
from typing import cast

import numpy as np

from kvsim.engine.arrays import Records, fill, make, make_one, numbers
from kvsim.engine.connector_records import (
    BadBlock,
    ConnectorSettings,
    ConnectorState,
    ConnectorTables,
    Lane,
    Report,
    Transfer,
)
from kvsim.policies import Paged, Policy
from kvsim.policies.connectors import Connector, Exchange, Remote
from kvsim.policies.releases import rules_of


def connector_tables(
    connector: Connector | None, policy: Policy, num_units: int, num_requests: int, unit_bytes: int, *, compiled: bool
) -> ConnectorTables:
    """Return the initial records of an engine's KV connector, for `num_requests` requests and a pool of `num_units`
    blocks of `unit_bytes` bytes. If `compiled`, they are arrays, which machine code uses, instead of objects.

    If `connector` is None, or `policy` is not vLLM's paged cache, return an empty tuple instead: no code reads the
    records then.
    """
    if connector is None or not isinstance(policy, Paged):
        return cast("ConnectorTables", ())
    settings = make_one(ConnectorSettings, compiled=compiled)
    settings.is_store, settings.recomputes = connector.is_store, connector.recomputes
    settings.spares_busy = rules_of(policy.scheduler.vllm).spares_busy
    settings.backoff_tokens = connector.backoff_tokens
    link = connector.link
    settings.is_timed = link is not None
    if link is not None:
        settings.latency_s, settings.block_s = link.latency_s, link.seconds_of(unit_bytes)
    exchanges = list(connector.exchanges) or [Exchange()] * num_requests
    bad = list(chain.from_iterable(exchange.failed_blocks for exchange in exchanges))
    names = ("loads", "notices", "sends", "live", "errors")
    lists = {name: numbers(np.zeros(num_requests, np.int64), compiled=compiled) for name in names}
    return ConnectorTables(
        settings=settings,
        state=make_one(ConnectorState, compiled=compiled),
        transfers=_transfers(connector, exchanges, compiled=compiled),
        **lists,
        lanes=make(Lane, link.num_transfers if link else 1, compiled=compiled),
        reports=make(Report, num_requests, compiled=compiled),
        bad_places=numbers(np.array(bad, np.int64), compiled=compiled),
        bad_blocks=make(BadBlock, len(bad), compiled=compiled),
        marks=numbers(np.zeros(num_units + 1, np.int64), compiled=compiled),
    )


def _transfers(connector: Connector, exchanges: list[Exchange], *, compiled: bool) -> Records[Transfer]:
    transfers = make(Transfer, len(exchanges) + 1, compiled=compiled)
    num_bad = np.array([len(exchange.failed_blocks) for exchange in exchanges], np.int64)
    remotes = [exchange.remote for exchange in exchanges]
    reads = np.array([remote is Remote.READS for remote in remotes], np.bool_)
    fill(
        transfers,
        1,
        is_kept=np.array([exchange.is_kept for exchange in exchanges], np.bool_) if connector.is_store else reads,
        fetches=np.array([remote is Remote.HAS_PROMPT for remote in remotes], np.bool_),
        stored_tokens=np.array([exchange.stored_tokens for exchange in exchanges], np.int64),
        is_async=np.array([not connector.is_store or exchange.is_async for exchange in exchanges], np.bool_),
        num_unknown=np.array([exchange.num_pending_lookups for exchange in exchanges], np.int64),
        first_bad=np.cumsum(num_bad) - num_bad,
        num_bad=num_bad,
        rank=np.array([exchange.fail_order for exchange in exchanges], np.int64),
    )
    return transfers
