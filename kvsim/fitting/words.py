"""The verdict on a fit, and what limits it, as sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.verdict import Limit

if TYPE_CHECKING:
    from kvsim.fitting.answer import Answer
    from kvsim.fitting.outcome import Outcome


def verdict_words(answer: Answer) -> str:
    """Whether the load fits."""
    if answer.outcome.error:
        return f"No: {answer.outcome.error}"
    users = answer.load.users
    shortened = (
        f" vLLM does not start with --max-model-len {answer.shortened_from}, so {answer.server.max_model_len:,} tokens "
        "were taken."
        if answer.shortened_from is not None
        else ""
    )
    if answer.fits:
        return f"Yes: {_yes(answer)}.{shortened}"
    misses = "; ".join(_misses(answer))
    if users is not None:
        if not answer.searched:
            return f"No: {users:,} users do not fit; {misses}.{shortened}"
        fitting = answer.largest or 0
        return f"No: {fitting:,.0f} of {users:,} users fit; {misses}.{shortened}"
    return f"No: {_share_served(answer)}; {misses}.{shortened}"


def _yes(answer: Answer) -> str:
    users, largest, rate = answer.load.users, answer.largest, answer.load.rate_per_s
    if users is not None:
        return f"{users:,} user{'s fit' if users > 1 else ' fits'}{_more(largest, users)}"
    if rate is None:
        return f"{len(answer.load.workload):,} requests at once fit"
    return f"{rate:,.3g} requests a second fit{_more(largest, 1.0, rate)}"


def _more(largest: float | None, asked: float, unit: float = 1.0) -> str:
    if largest is None or largest <= asked:
        return ""
    if math.isinf(largest):
        return ", and so would more than sixteen times as many"
    return f"; about {largest * unit:,.3g} would"


def _share_served(answer: Answer) -> str:
    rate, largest = answer.load.rate_per_s, answer.largest
    if rate is None:
        return f"{len(answer.load.workload):,} requests at once do not fit"
    if not answer.searched:
        return f"{rate:,.3g} requests a second do not fit"
    if not largest:
        return f"{rate:,.3g} requests a second do not fit, nor does a sixteenth of them"
    return f"{largest * rate:,.3g} of {rate:,.3g} requests a second fit"


def _misses(answer: Answer) -> list[str]:
    outcome, goal, found = answer.outcome, answer.goal, []
    misses = goal.misses(outcome)
    if "preemptions" in misses:
        found.append(
            f"{outcome.preemptions_per_min:,.0f} preemptions a minute, {100 * outcome.vain_share:.0f} % of all tokens "
            "are computed in vain"
        )
    if "overload" in misses:
        found.append(f"what arrives in a second takes {1 + outcome.overload:.1f} s to serve, so the queue grows")
    elif "waiting" in misses:
        found.append(f"{100 * outcome.waiting_share:.0f} % of the requests wait in the queue")
    if "refused" in misses:
        found.append(f"{100 * outcome.refused_share:.0f} % of the requests can never be served")
    for name, value, target in (
        ("TTFT p99", outcome.ttft_s.p99, goal.ttft_p99_s),
        ("TPOT p99", outcome.tpot_s.p99, goal.tpot_p99_s),
    ):
        if name in misses and target is not None:
            found.append(f"{name} is {milliseconds(value)}, above {milliseconds(target)}")
    return found


def limit_words(answer: Answer) -> str:
    """What limits, and where the time goes."""
    outcome, server = answer.outcome, answer.server
    if outcome.error:
        return "memory: nothing can be served."
    missed = {"preemptions", "waiting"} & set(answer.goal.misses(outcome))
    if missed and outcome.limit is Limit.MEMORY:
        said = f"memory: {outcome.num_blocks:,} blocks are full"
    elif missed and outcome.limit is Limit.BATCH:
        said = f"the batch limit: {server.max_num_seqs:,} sequences run, and others wait (max_num_seqs)"
    elif outcome.limit is Limit.TOKENS and outcome.waiting_for is not None and outcome.waiting_for.tokens > 1:
        said = f"the token budget: prompts wait for steps of {server.max_num_batched_tokens:,} tokens"
    else:
        said = _busiest(outcome)
    return f"{said}. {time_words(outcome)}"


def _busiest(outcome: Outcome) -> str:
    shares = outcome.shares
    if shares is None:
        return "the steps themselves"
    if shares.arithmetic > shares.bandwidth:
        return "arithmetic"
    return "memory bandwidth"


def time_words(outcome: Outcome) -> str:
    """Where the time goes."""
    shares = outcome.shares
    if shares is None:
        return ""
    cache = "" if math.isnan(shares.cache) else f", {100 * shares.cache:.0f} % reading keys and values"
    return (
        f"Of the time, {100 * shares.arithmetic:.0f} % is arithmetic, {100 * shares.weights:.0f} % reading weights"
        f"{cache}; the pool is at most {100 * outcome.peak_occupancy:.0f} % full."
    )


def milliseconds(value_s: float) -> str:
    """A time in the unit that suits it."""
    return "–" if value_s != value_s else f"{1000 * value_s:,.0f} ms" if value_s < 10 else f"{value_s:,.1f} s"
