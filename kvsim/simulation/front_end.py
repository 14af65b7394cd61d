"""What a client sees of a server: what its HTTP front end adds to every request.

A front end reads a request, turns text into tokens, hands them to the engine's process and sends tokens back. That
delays a request as a whole and leaves what the engine does as it is. Fitted to six loads of `vllm bench serve` on two
machines with Llama-3-8B, where the time to the first token was 6 to 16 ms longer than in the engine, on other people's
H100 8 to 12 ms; it grows a little with load, which is left out.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.hardware import Gpu
from kvsim.machines import card_of
from kvsim.metrics import Distribution, Summary
from kvsim.steptime.card import Card

HTTP_LAUNCHES = 1400
"""Host time of vLLM's front end for one request, in launches of one kernel."""


def http_s(gpu: Gpu, card: Card | None = None) -> float:
    """How long the HTTP front end holds a request up, seconds, on the host of `card`, or of the card that ships for
    `gpu`.
    """
    known = card_of(gpu) if card is None else card
    return HTTP_LAUNCHES * known.launch_s * known.factors.get("front_end", known.factors.get("host", 1.0))


def behind(summary: Summary, delay_s: float) -> Summary:
    """`summary` as a client sees it behind a front end that holds every request up for `delay_s`."""
    return replace(summary, ttft_s=_later(summary.ttft_s, delay_s), e2e_s=_later(summary.e2e_s, delay_s))


def _later(times: Distribution, delay_s: float) -> Distribution:
    return Distribution(
        mean=times.mean + delay_s, p50=times.p50 + delay_s, p90=times.p90 + delay_s, p99=times.p99 + delay_s
    )
