"""Effect of speculative decoding on a load, found by a simulation without drafts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.fitting.load_answer import Answer, answer
from kvsim.fitting.vllm_server import Server
from kvsim.machines import includes_drafting

if TYPE_CHECKING:
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.search import Search

_SAME = 0.02
"""Relative difference below which two output rates count as equal."""


def without_drafts(found: Answer, search: Search) -> Answer | None:
    """Return the answer for the same load with drafts turned off; None if the server does not draft."""
    server = found.server
    if not isinstance(server, Server) or server.drafting is None:
        return None
    plain = replace(server, speculative_config="")
    return answer(plain, found.load, found.goal, search, most=0, find_largest=False)


def drafts_words(found: Answer, plain: Answer) -> str:
    """Describe how drafts change the outcome of the load, and how many blocks they cost.

    `plain` is the answer without drafts. An outcome has no rate (NaN) if no request is served, and no TPOT if each
    request has a single output token.
    """
    assert isinstance(found.server, Server)
    assert isinstance(plain.server, Server)
    blocks, all_blocks = found.server.budget().num_blocks, plain.server.budget().num_blocks
    cost = f"they cost {all_blocks - blocks:,} of {all_blocks:,} blocks."
    drafted, usual = found.outcome, plain.outcome
    faster, latency = drafted.output_tokens_per_s / usual.output_tokens_per_s - 1, drafted.tpot_s.p50 / usual.tpot_s.p50
    if math.isnan(faster):
        return f"Whether drafts help is unknown, because no request is served; {cost}"
    gain = faster if abs(faster) > _SAME or math.isnan(latency) else 1 / latency - 1
    verdict = "change little for" if abs(gain) <= _SAME else "help" if gain > 0 else "do not help"
    drafting = found.server.drafting
    accepted = "as vLLM draws them" if drafting and drafting.synthetic_rates else found.server.acceptance
    is_timed = includes_drafting(drafted.label)
    bound = "" if is_timed else " The time of drafting itself is not counted, so this is an upper bound."
    return (
        f"Drafts {verdict} this load: {drafted.output_tokens_per_s:,.0f} output tokens/s and a TPOT of "
        f"{_tpot(drafted)} (p50), without them {usual.output_tokens_per_s:,.0f} and {_tpot(usual)}; {cost} Accepted: "
        f"{accepted}.{bound}"
    )


def _tpot(outcome: Outcome) -> str:
    return "–" if math.isnan(outcome.tpot_s.p50) else f"{1e3 * outcome.tpot_s.p50:.1f} ms"
