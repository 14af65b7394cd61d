"""Delay of a server's HTTP front end, which clients see on every request.

One process reads requests, turns text into tokens, hands them to the engine's process, and turns every token of every
answer into text and sends it. A request waits for what that process does for others, the longer the more tokens it
hands on. What the engine does stays as it is: time per output token was the same on both sides, within 0.8 %.

Read off `vllm bench serve` in front of `vllm serve` 0.25.1 on an H200 whose host launches a kernel in 5.9 us, with a
recorder inside the engine: five loads with the shape of Llama-3.2-3B. Where 8.2, 11.5 and 17.2 ms were added to the
time to the first token, at 5, 20 and 40 requests a second, it says 8.3, 10.5 and 17.0; with prompts of 2,600 tokens
17.2 for 17.6, and for 32 users, who all come at once in the beginning, 15.9 for 18.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from kvsim.metrics import Distribution, Summary
from kvsim.steptime.card import Card

_REQUEST_LAUNCHES = 850
"""Host time from a request's arrival until the engine has it, beside its tokens, in launches of one kernel."""
_PROMPT_TOKEN_LAUNCHES = 0.65
"""Host time that one more token of the prompt adds before the engine has the request, in launches of one kernel."""
_ANSWER_LAUNCHES = 260
"""Host time from the engine's first token until the client has it."""
_TOKEN_LAUNCHES = 12
"""Host time that the process spends on one token of any answer."""
_USUAL_LAUNCH_S = 5.1e-6
"""Launch of one kernel on a host without a measurement: the geometric middle between shared hosts (8.1 and 5.9 us, by
two servers of ours) and one of inference-sim's H100s (3.8 us, by what clients of four models waited for beyond the
engine)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """vLLM's HTTP front end, one process of it, on some host. Times are in seconds."""

    request_s: float
    """Seconds per request, to and from the engine."""
    prompt_token_s: float
    """Seconds per token of a prompt."""
    token_s: float
    """Seconds of the process per output token of any request."""

    @property
    def most_tokens_per_s(self) -> float:
        """Output tokens that it hands on in a second, when it does nothing else."""
        return 1 / self.token_s

    def delay_s(self, prompt_tokens: float, output_tokens_per_s: float) -> float:
        """Return the mean delay in seconds of a request for the given rates; infinite beyond the capacity of the front
        end.
        """
        free_share = 1 - output_tokens_per_s * self.token_s
        return (self.request_s + self.prompt_token_s * prompt_tokens) / free_share if free_share > 0 else float("inf")


def http(card: Card | None = None) -> FrontEnd:
    """Return the front end on the host of `card`, or on one in the middle of those that were seen."""
    launch_s = _USUAL_LAUNCH_S
    if card is not None:
        launch_s = card.launch_s * card.factors.get("front_end", card.factors.get("host", 1.0))
    return FrontEnd(
        request_s=(_REQUEST_LAUNCHES + _ANSWER_LAUNCHES) * launch_s,
        prompt_token_s=_PROMPT_TOKEN_LAUNCHES * launch_s,
        token_s=_TOKEN_LAUNCHES * launch_s,
    )


def behind(front_end: FrontEnd, summaries: Sequence[Summary], prompt_tokens: float) -> tuple[list[Summary], str]:
    """Return summaries of servers as their clients see them, each behind its own front end, and the added delay in
    words.

    Args:
        front_end: of every server.
        summaries: what happened in the engines.
        prompt_tokens: of a request, on average.
    """
    delays_s = [front_end.delay_s(prompt_tokens, summary.output_tokens_per_s) for summary in summaries]
    if not all(map(isfinite, delays_s)):
        return list(summaries), (
            f"front end: left out, for one process hands on at most {front_end.most_tokens_per_s:,.0f} tokens/s here, "
            "and the engine makes more (--api-server-count starts several)"
        )
    found = [
        replace(summary, ttft_s=_later(summary.ttft_s, delay_s), e2e_s=_later(summary.e2e_s, delay_s))
        for summary, delay_s in zip(summaries, delays_s, strict=True)
    ]
    added = f"{1e3 * max(delays_s):.1f} ms a request"
    return found, f"front end: HTTP, {added} in TTFT and end to end (the band is without)"


def _later(times: Distribution, delay_s: float) -> Distribution:
    return Distribution(
        mean=times.mean + delay_s, p50=times.p50 + delay_s, p90=times.p90 + delay_s, p99=times.p99 + delay_s
    )
