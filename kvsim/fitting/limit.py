"""Sentences on what limits a load on a server, and on the work that takes most time of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.hardware import GIB
from kvsim.metrics.run_verdict import Limit
from kvsim.metrics.shares import whole_percents

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.searched_server import SearchedServer


def limit_words(outcome: Outcome, server: SearchedServer, load: Load, goal: Goal) -> str:
    """Describe the limit that makes requests wait; if there is none, the work that takes most of the time."""
    if outcome.error:
        return "memory: nothing can be served."
    if prompts_too_long(server, load):
        return _length(server, load)
    if outcome.refused_share == 1:
        pool = server.pool_words(outcome.num_blocks)
        return f"memory: no request that {server.length_limit.name} allows fits the pool, which has {pool}."
    missed = {"preemptions", "waiting"} & set(goal.misses(outcome))
    if missed and outcome.limit is Limit.MEMORY:
        said = _memory(outcome, server, load)
    elif missed and outcome.limit is Limit.BATCH:
        name, most = server.batch_limit
        said = f"the batch limit: {most:,} sequences run, and others wait ({name})"
    elif missed and outcome.limit is Limit.ADAPTERS:
        said = "the slots of adapters: requests wait for one while memory is free (max_loras)"
    elif outcome.limit is Limit.TOKENS and outcome.steady_queue > 1:
        said = f"the token budget: prompts wait for steps of {server.token_limit.value:,} tokens"
    else:
        said = _busiest(outcome, server)
    return f"{said}. {_time_words(outcome)}"


def prompts_too_long(server: SearchedServer, load: Load) -> bool:
    """Tell whether every prompt of `load` is too long for the server's `length_limit`."""
    return bool((load.workload.prompt_tokens >= server.length_limit.value).all())


def _length(server: SearchedServer, load: Load) -> str:
    (name, length), longest = server.length_limit, server.model.max_position_embeddings
    needed = int((load.workload.prompt_tokens + load.workload.output_tokens).max())
    if needed > longest:
        but = f", and {server.model.name} allows {longest:,} tokens"
    elif _holds(server.changed(**{name: needed}), needed):
        but = ""
    else:
        but = ", for which there is too little memory"
    return (
        f"the length of a sequence: every prompt is too long for {name}, which is {length:,} tokens; "
        f"--max-model-len {needed} would be needed{but}."
    )


def _holds(server: SearchedServer, num_tokens: int) -> bool:
    """Tell whether `server` starts with its present `length_limit`, and holds a request of `num_tokens`."""
    starting = server.starting()
    return starting.length_limit == server.length_limit and starting.num_requests_of(num_tokens) > 0


def _memory(outcome: Outcome, server: SearchedServer, load: Load) -> str:
    lengths = load.workload.prompt_tokens + load.workload.output_tokens
    mean, weights = round(float(lengths.mean())), server.weights_bytes
    room = f"hold {server.num_requests_of(mean):,} requests of {mean:,} tokens{server.full_words}"
    units = server.pool_words(outcome.num_blocks)
    if not weights:
        return f"memory: {units} {room}"
    whole = server.gpu.memory_bytes
    return f"memory: weights take {weights / GIB:.1f} of {whole / GIB:.1f} GiB, and the {units} left {room}"


def _busiest(outcome: Outcome, server: SearchedServer) -> str:
    shares = outcome.shares
    if shares is None:
        return "the steps themselves"
    if 1 - shares.arithmetic - shares.reading > max(shares.arithmetic, shares.reading):
        sums = ", sums over GPUs" if server.model.tensor_parallel_size > 1 else ""
        return f"neither memory nor arithmetic, but the host, starting kernels{sums} and waiting for requests"
    return "arithmetic" if shares.arithmetic > shares.reading else "memory bandwidth"


def _time_words(outcome: Outcome) -> str:
    shares = outcome.shares
    if shares is None:
        return ""
    work = (shares.arithmetic, shares.weights, shares.cache)
    arithmetic, weights, cache, _ = whole_percents(*work, max(1 - sum(work), 0.0))
    return (
        f"Of the time, {arithmetic} % is arithmetic, {weights} % reading weights, {cache} % reading keys and values; "
        f"the pool is at most {100 * outcome.peak_occupancy:.0f} % full."
    )
