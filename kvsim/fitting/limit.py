"""Describe what limits a load on a server, and the use of time, as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.hardware import GIB
from kvsim.metrics.run_verdict import Limit
from kvsim.metrics.shares import whole_percents

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.vllm_server import Server


def limit_words(outcome: Outcome, server: Server, load: Load, goal: Goal) -> str:
    """Describe the limit that makes requests wait after the warm-up, or else the main work of the steps."""
    if outcome.error:
        return "memory: nothing can be served."
    if outcome.refused_share == 1:
        longest = server.max_model_len
        return f"the length of a sequence: every prompt is too long for max_model_len, which is {longest:,} tokens."
    missed = {"preemptions", "waiting"} & set(goal.misses(outcome))
    if missed and outcome.limit is Limit.MEMORY:
        said = _memory(outcome, server, load)
    elif missed and outcome.limit is Limit.BATCH:
        said = f"the batch limit: {server.max_num_seqs:,} sequences run, and others wait (max_num_seqs)"
    elif outcome.limit is Limit.TOKENS and outcome.steady_queue > 1:
        said = f"the token budget: prompts wait for steps of {server.max_num_batched_tokens:,} tokens"
    else:
        said = _busiest(outcome, server)
    return f"{said}. {_time_words(outcome)}"


def _memory(outcome: Outcome, server: Server, load: Load) -> str:
    """Describe the memory that the weights leave."""
    lengths = load.workload.prompt_tokens + load.workload.output_tokens
    mean, budget = round(float(lengths.mean())), server.budget()
    room = f"hold {budget.max_sequences(mean):,} requests of {mean:,} tokens, and are full"
    weights = sum(-term.size_bytes for term in budget.terms if term.label == "weights")
    if server.num_blocks is not None or not weights:
        return f"memory: {outcome.num_blocks:,} blocks {room}"
    left = f"the {outcome.num_blocks:,} blocks left {room}"
    return f"memory: weights take {weights / GIB:.1f} of {budget.gpu.memory_bytes / GIB:.1f} GiB, and {left}"


def _busiest(outcome: Outcome, server: Server) -> str:
    shares = outcome.shares
    if shares is None:
        return "the steps themselves"
    if 1 - shares.arithmetic - shares.bandwidth > max(shares.arithmetic, shares.bandwidth):
        sums = ", sums over GPUs" if server.model.tensor_parallel_size > 1 else ""
        return f"neither memory nor arithmetic, but the host, starting kernels{sums} and waiting for requests"
    return "arithmetic" if shares.arithmetic > shares.bandwidth else "memory bandwidth"


def _time_words(outcome: Outcome) -> str:
    """Describe the shares of time."""
    shares = outcome.shares
    if shares is None:
        return ""
    work = (shares.arithmetic, shares.weights, shares.cache)
    arithmetic, weights, cache, _ = whole_percents(*work, max(1 - sum(work), 0.0))
    return (
        f"Of the time, {arithmetic} % is arithmetic, {weights} % reading weights, {cache} % reading keys and values; "
        f"the pool is at most {100 * outcome.peak_occupancy:.0f} % full."
    )
