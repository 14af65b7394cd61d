"""Delay that a server's HTTP front end adds to every request, as clients see it.

One process reads requests, converts their text to tokens and passes them to the engine's process. It also converts
every output token to text and sends it. A request waits while this process works for other requests, so its delay grows
with the output tokens per second. The engine is not delayed: the time per output token was the same in the engine and
at the client, within 0.8 %.

The constants were fitted to measurements with `vllm bench serve` and `vllm serve` 0.25.1 on an H200, whose host
launches a kernel in 5.9 us. A recorder ran inside the engine. The served model had the shape of Llama-3.2-3B. Delays of
the first token under five loads, in ms:

    load                            measured             computed here
    5, 20 and 40 requests/s         8.2, 11.5, 17.2      8.3, 10.5, 17.0
    prompts of 2,600 tokens         17.6                 17.2
    32 users who begin at once      18.6                 15.9
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from kvsim.metrics import Distribution, Summary
from kvsim.steptime.card import Card

_REQUEST_LAUNCHES = 850
"""Host time to pass a request to the engine, not counting its tokens. Unit: the time to launch a kernel."""
_PROMPT_TOKEN_LAUNCHES = 0.65
"""Host time per prompt token. Unit: the time to launch a kernel."""
_ANSWER_LAUNCHES = 260
"""Host time from the engine's first output token until the client has it. Unit: the time to launch a kernel."""
_TOKEN_LAUNCHES = 12
"""Host time per output token. Unit: the time to launch a kernel."""
_USUAL_LAUNCH_S = 5.1e-6
"""Seconds to launch one kernel on a host that was not measured.

The value lies between known hosts. Two shared hosts need 8.1 and 5.9 us, as measured. The H100 host of inference-sim
needs 3.8 us; this was inferred from the delays of four models at the client.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """The process of vLLM's HTTP front end on one host."""

    request_s: float
    """Seconds for one request, on its way to the engine and back, not counting its tokens."""
    prompt_token_s: float
    """Seconds for one prompt token."""
    token_s: float
    """Seconds for one output token of any request."""

    @property
    def most_tokens_per_s(self) -> float:
        """Largest number of output tokens per second that the process can send."""
        return 1 / self.token_s

    def delay_s(self, prompt_tokens: float, output_tokens_per_s: float) -> float:
        """Return the mean delay in seconds of the first token of a request with `prompt_tokens` prompt tokens.

        `output_tokens_per_s` is the output rate of the server. At `most_tokens_per_s` or more, the delay is infinite.
        """
        free_share = 1 - output_tokens_per_s * self.token_s
        return (self.request_s + self.prompt_token_s * prompt_tokens) / free_share if free_share > 0 else float("inf")


def http(card: Card | None = None) -> FrontEnd:
    """Return the front end on the host of the machine card `card`. None: a host of medium speed."""
    launch_s = _USUAL_LAUNCH_S
    if card is not None:
        launch_s = card.launch_s * card.factors.get("front_end", card.factors.get("host", 1.0))
    return FrontEnd(
        request_s=(_REQUEST_LAUNCHES + _ANSWER_LAUNCHES) * launch_s,
        prompt_token_s=_PROMPT_TOKEN_LAUNCHES * launch_s,
        token_s=_TOKEN_LAUNCHES * launch_s,
    )


def with_delays(
    front_end: FrontEnd, summaries: Sequence[Summary], prompt_tokens: float
) -> tuple[list[Summary], list[float], str]:
    """Add the delays of front ends to the latencies in `summaries`, which are one per server.

    `prompt_tokens` is the mean number of prompt tokens of a request. Return the changed summaries, the delay of each
    server in seconds, and a line of text about the delays. No delays are added if a front end cannot send all outputs.
    """
    delays_s = [front_end.delay_s(prompt_tokens, summary.output_tokens_per_s) for summary in summaries]
    if not all(map(isfinite, delays_s)):
        note = (
            f"front end: left out, because one process sends at most {front_end.most_tokens_per_s:,.0f} tokens/s here, "
            "and the engine makes more (--api-server-count starts several)"
        )
        return list(summaries), [0.0] * len(summaries), note
    delayed = [
        replace(summary, ttft_s=_later(summary.ttft_s, delay_s), e2e_s=_later(summary.e2e_s, delay_s))
        for summary, delay_s in zip(summaries, delays_s, strict=True)
    ]
    added = f"{1e3 * max(delays_s):.1f} ms a request"
    without = "the band, and what a recording says, are without"
    return delayed, delays_s, f"front end: HTTP, {added} in TTFT and end to end ({without})"


def _later(times: Distribution, delay_s: float) -> Distribution:
    return Distribution(
        mean=times.mean + delay_s, p50=times.p50 + delay_s, p90=times.p90 + delay_s, p99=times.p99 + delay_s
    )
