"""Engines to be stepped by a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.coefficients import no_times
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import Demand
from kvsim.policies import Radix, limited
from kvsim.policies.drafts import drafts_of
from kvsim.policies.settings import EngineDefaults
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence as Row

    from kvsim.policies import Policy


def demand_of(*requests: tuple[int, ...], keys: Row[Row[int]] = (), priorities: Row[int] = ()) -> Demand:
    """Requests as (prompt, output) or (prompt, output, limit), which arrive a second after each other."""
    size = len(requests)
    columns = zip(*((*request, request[-1])[:3] for request in requests), strict=True)
    prompt, output, limit = (np.array(column, np.int64) for column in columns)
    return Demand(
        prompt=prompt,
        output=output,
        limit=limit,
        priority=np.array(priorities or [0] * size, np.int64),
        arrival_s=np.arange(size, dtype=np.float64),
        keys=Ragged.from_rows(keys or [[]] * size, np.int64),
    )


def driver_of(policy: Policy, num_units: int, *requests: tuple[int, ...], **options: Any) -> Driver:
    """An engine that knows such requests, the first of which is number 1, and has `num_units` units for them."""
    known = {name: options.pop(name) for name in ("keys", "priorities") if name in options}
    compiled = options.pop("compiled", False)
    refused = np.zeros(len(requests), np.bool_)
    demand = demand_of(*requests, **known)
    if not isinstance(policy, Radix):
        policy = limited(policy, 8192, EngineDefaults.LLM_LARGE)
    options |= {"drafts": drafts_of(policy, range(len(requests))), "records_memory": True}
    plan = EnginePlan(demand, policy, num_units, no_times(), refused=refused, **options)
    return Driver(plan.build(compiled=compiled), compiled=compiled)


def arrived(policy: Policy, num_units: int, *requests: tuple[int, ...], **options: Any) -> Driver:
    """Such an engine, whose requests wait."""
    driver = driver_of(policy, num_units, *requests, **options)
    for node in range(1, len(requests) + 1):
        driver.add(node)
    return driver
