"""The part of a run in which its rate is steady, judged by requests made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.metrics.steady import Steadiness, steady_part
from kvsim.recording import RequestStatus
from kvsim.recording.tables import Requests
from kvsim.workload import Ragged

if TYPE_CHECKING:
    pass

Times = "npt.NDArray[np.float64]"


def requests(arrival_s: Times, start_s: Times, end_s: Times, tokens: int = 11) -> Requests:  # type: ignore[valid-type]
    """Requests whose first token comes when they start, and the others evenly until their end."""
    number = len(arrival_s)  # type: ignore[arg-type]
    counts = np.full(number, tokens, np.int32)
    return Requests(
        request=np.arange(number, dtype=np.int32), id=np.arange(number).astype(np.str_), arrival_s=arrival_s,
        arrival_seq=np.arange(number), prompt_tokens=counts, output_tokens=counts, max_tokens=counts,
        priority=np.zeros(number, np.int32), prompt_hashes=Ragged.empty(number, np.int64), first_scheduled_s=start_s,
        first_token_s=start_s, finished_s=end_s, status=np.full(number, RequestStatus.FINISHED, np.uint8),
        preemptions=np.zeros(number, np.int32), cached_tokens=np.zeros(number, np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("number", [60, 1000])
def test_the_rate_of_a_server_that_keeps_up_is_that_of_the_arrivals(number: int) -> None:
    """One comes a second and runs for five; the last five drain, and the first five fill the server up."""
    arrival_s = np.arange(number, dtype=float)
    part = steady_part(requests(arrival_s, arrival_s, arrival_s + 5))
    assert part.steadiness is Steadiness.STEADY
    assert part.end_s == number - 1
    assert part.requests_per_s == pytest.approx(1, rel=0.03)
    assert part.output_tokens_per_s == pytest.approx(11, rel=0.03)
    assert part.sentence.startswith(f"Steady from {part.begin_s:,.1f} s to {part.end_s:,.1f} s: ")


def test_a_server_that_does_not_keep_up_has_a_steady_rate_too() -> None:
    """Four run at a time, for two seconds each, and three come a second."""
    number = 600
    arrival_s, start_s = np.arange(number) / 3, np.arange(number) / 2.0
    part = steady_part(requests(arrival_s, start_s, start_s + 2))
    assert part.steadiness is Steadiness.STEADY
    assert part.requests_per_s == pytest.approx(2, rel=0.03)


def test_a_run_that_ends_while_it_fills_up_is_too_short() -> None:
    arrival_s = np.linspace(0, 8, 400)
    part = steady_part(requests(arrival_s, arrival_s, arrival_s + 9))
    assert part.steadiness is Steadiness.SHORT
    assert part.sentence == ("Too short to tell a steady rate: requests arrive for 8.0 s, and one runs for 9.0 s.")
    assert part.as_dict()["output_tokens_per_s"] is None


def test_a_batch_and_a_day_have_no_steady_rate() -> None:
    at_once = np.zeros(100)
    assert steady_part(requests(at_once, at_once, at_once + 5)).steadiness is Steadiness.AT_ONCE
    rising = 100 * np.sqrt(np.linspace(0, 1, 1000))
    part = steady_part(requests(rising, rising, rising + 1))
    assert part.steadiness is Steadiness.VARYING
    assert part.sentence == "No steady rate: arrivals come faster and slower."
    twice_a_day = np.concatenate([rising, 100 + rising])
    assert steady_part(requests(twice_a_day, twice_a_day, twice_a_day + 1)).steadiness is Steadiness.VARYING
