"""Selection of requests by length or number, and new arrival times, as papers describe their workloads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload import Workload
from kvsim.workload.synthetic import check_seed

if TYPE_CHECKING:
    from kvsim.workload import Arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """Bounds, both included, on the lengths in tokens of requests to keep."""

    min_tokens: int = 1
    """Least number of tokens of a prompt, and of an output."""
    max_prompt_tokens: int | None = None
    max_total_tokens: int | None = None
    """Limit for the number of tokens of a prompt and its output together; None for no limit."""

    def __str__(self) -> str:
        rules = [f"prompts and answers of at least {self.min_tokens:,} tokens"]
        if self.max_prompt_tokens is not None:
            rules.append(f"prompts of at most {self.max_prompt_tokens:,}")
        if self.max_total_tokens is not None:
            rules.append(f"both together at most {self.max_total_tokens:,}")
        return ", ".join(rules)


def within(workload: Workload, limits: LengthLimits) -> Workload:
    """Return the requests of `workload` within `limits`. The description counts the others.

    A turn is also left out if it waits for a turn that is left out.

    Raises:
        WorkloadError: no request is within the limits.
    """
    prompt, output = workload.prompt_tokens.astype(np.int64), workload.output_tokens.astype(np.int64)
    kept = np.minimum(prompt, output) >= limits.min_tokens
    if limits.max_prompt_tokens is not None:
        kept &= prompt <= limits.max_prompt_tokens
    if limits.max_total_tokens is not None:
        kept &= prompt + output <= limits.max_total_tokens
    rows = np.flatnonzero(kept if workload.turns is None else workload.turns.without_orphans(kept))
    if not len(rows):
        raise WorkloadError(f"no request of {workload.name!r} keeps these limits: {limits}.")
    if len(rows) == len(workload):
        return workload
    others = f"without {len(workload) - len(rows):,} outside these limits ({limits})"
    return replace(workload.take(rows), description=f"{workload.description}, {others}")


def first(workload: Workload, num_requests: int) -> Workload:
    """Return the first `num_requests` requests of `workload`; all if there are fewer.

    If requests are left out, the description states the number of those kept.

    Raises:
        UsageError: `num_requests` is below 1.
    """
    part = workload.head(num_requests)
    if len(part) == len(workload):
        return workload
    return replace(part, description=f"{workload.description}, the first {len(part):,}")


def arriving(workload: Workload, arrivals: Arrivals, seed: int) -> Workload:
    """Return the requests of `workload` in order, with random arrival times: `arrivals` with the random `seed`.

    In a session, only the first turn gets an arrival time, because the others wait for answers.

    Raises:
        UsageError: the seed is no whole number, or negative.
    """
    check_seed(seed)
    first = np.ones(len(workload), np.bool_) if workload.turns is None else workload.turns.after < 0
    arrival_s = np.zeros(len(workload))
    arrival_s[first] = arrivals.sample(int(first.sum()), np.random.default_rng(seed))
    return replace(
        workload, arrival_s=arrival_s, description=f"{workload.description}, arriving as {arrivals} with seed {seed}"
    )
