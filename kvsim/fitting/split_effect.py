"""Comparison of a number of equal servers with the same number split into prefill and decode servers."""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

from kvsim.display.text import plural
from kvsim.fitting.outcome import milliseconds
from kvsim.fitting.search import MOST_TOKENS_OF_SPLITS, splits_are_tried
from kvsim.fitting.server_change import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fitting.goal import Goal
    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.search import Remedy
    from kvsim.fitting.searched_server import SearchedServer

_SAME = 0.02
"""Relative difference below which two mean end-to-end times count as equal."""


def splits_words(server: SearchedServer, load: Load, outcome: Outcome, goal: Goal, tried: Sequence[Remedy]) -> str:
    """Describe in a sentence the best split into prefill and decode servers, compared with equal servers.

    `outcome` is that of `server`, and `tried` has its simulated changes. If the load is too long for splits to be
    tried, the sentence says so. It is empty if there is no split, or if there is nothing to compare it with.
    """
    if tried and server.replicas > 1 and not splits_are_tried(server, load):
        return (
            "Splits into prefill and decode servers were not tried: the load has over "
            f"{MOST_TOKENS_OF_SPLITS:,} output tokens. Ask for one with --prefill and --decode, or give fewer requests."
        )
    # Equal servers have the key None.
    by_split = {server.apart: outcome} | {
        each.change.server.apart: each.outcome
        for each in tried
        if each.change.kind is Kind.SETTING and set(each.change.fields) <= {"apart", "replicas"}
    }
    equal = by_split.pop(None, None)
    if equal is None or not by_split:
        return ""

    def rank(of: Outcome) -> tuple[float, float]:
        return goal.shortfall(of), of.e2e_s.mean

    # Splits that cannot be simulated come last.
    apart, split = min(by_split.items(), key=lambda each: (bool(each[1].error), *rank(each[1])))
    if apart is None or split.error or equal.error:
        return f"No split into prefill and decode servers is compared: {split.error or equal.error}"
    named = f"{apart.num_prefill:,} prefill and {plural(apart.num_decode, 'decode server')}"
    figures = f"{_figures(split)}; those that do both {_figures(equal)}"
    number = server.replicas
    is_alike = goal.is_met(split) == goal.is_met(equal) and isclose(split.e2e_s.mean, equal.e2e_s.mean, rel_tol=_SAME)
    if is_alike:
        return f"{named} serve this load about as well as {number} servers that do both: they bring {figures}."
    if rank(split) < rank(equal):
        return f"{named} are better for this load than {number} servers that do both: they bring {figures}."
    return f"{number} servers that do both are better for this load than the best split, {named}: it brings {figures}."


def _figures(outcome: Outcome) -> str:
    return (
        f"{outcome.output_tokens_per_s:,.0f} tokens/s, TTFT p99 {milliseconds(outcome.ttft_s.p99)}, TPOT p99 "
        f"{milliseconds(outcome.tpot_s.p99)}, end to end {milliseconds(outcome.e2e_s.mean)} in the mean"
    )
