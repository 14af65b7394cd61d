"""Loads that change: ramps and days, twice as much, longer answers, and lengths cut at what a server takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.display.text import plural
from kvsim.errors import UsageError
from kvsim.workload import Fixed, LogNormal, Poisson, Varying, Workload, generate
from kvsim.workload.columns import Ragged

POINTS = st.lists(st.tuples(st.floats(0.5, 50), st.floats(0, 20)), min_size=1, max_size=5)


@given(points=POINTS, first=st.floats(0.1, 20), seed=st.integers(0, 99), repeats=st.booleans())
def test_as_many_come_in_every_part_of_a_profile_as_its_rates_say(
    points: list[tuple[float, float]], first: float, seed: int, repeats: bool
) -> None:
    """Under the profile's own clock, which runs as fast as requests come, gaps are those of one request a second."""
    times = np.concatenate(([0.0], np.cumsum([gap for gap, _ in points])))
    rates = np.array([first, *(rate for _, rate in points)])
    rates[-1] = max(rates[-1], 0.1)
    profile = Varying(time_s=times.tolist(), rate_per_s=rates.tolist(), repeats=repeats)
    arrival_s = profile.sample(60, np.random.default_rng(seed))
    assert arrival_s[0] == 0
    assert (np.diff(arrival_s) >= 0).all()
    clock = np.concatenate(([0.0], np.cumsum(np.random.default_rng(seed).standard_exponential(59))))
    np.testing.assert_allclose([expected(times, rates, at, repeats) for at in arrival_s], clock, rtol=1e-6, atol=1e-6)


def expected(times: np.ndarray, rates: np.ndarray, at: float, repeats: bool) -> float:
    """Requests that come until `at`, by adding up small steps of the profile: another way than the code's."""
    total, end = float(np.trapezoid(rates, times)), float(times[-1])
    rounds, at = divmod(at, end) if repeats else (0.0, at)
    inside = times[times < at]
    knots = np.append(inside, min(at, end))
    area = float(np.trapezoid(np.interp(knots, times, rates), knots))
    return rounds * total + area + max(at - end, 0.0) * float(rates[-1])


def test_a_ramp_begins_slowly_and_goes_on_at_its_rate() -> None:
    ramp = Varying(time_s=(0, 100), rate_per_s=(0, 10))
    arrival_s = ramp.sample(3000, np.random.default_rng(0))
    assert np.count_nonzero(arrival_s < 50) == pytest.approx(125, rel=0.25)
    assert np.count_nonzero(arrival_s < 100) == pytest.approx(500, rel=0.15)
    assert np.count_nonzero((arrival_s > 100) & (arrival_s < 200)) == pytest.approx(1000, rel=0.1)
    assert str(ramp) == "0 to 10 a second in 100 s (Poisson)"


@pytest.mark.parametrize(
    ("times", "rates", "sentence"),
    [
        ((0,), (1,), "a profile has 1 times and 1 rates"),
        ((1, 2), (1, 1), "should begin at 0 and rise"),
        ((0, 0), (1, 1), "should begin at 0 and rise"),
        ((0, 1), (1, -1), "finite times, and rates of 0 or more"),
        ((0, 1), (1, float("nan")), "finite times, and rates of 0 or more"),
        ((0, 1), (1, 0), "the last rate of a profile should be above 0"),
    ],
)
def test_a_profile_that_cannot_be_says_why(times: tuple[float, ...], rates: tuple[float, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Varying(time_s=times, rate_per_s=rates)


def drawn(seed: int = 0) -> Workload:
    return generate(
        50,
        arrivals=Poisson(rate_per_s=5),
        prompt=LogNormal(mean_tokens=300, sigma=1),
        output=LogNormal(mean_tokens=200, sigma=1),
        seed=seed,
    )


@given(seed=st.integers(0, 50), longest=st.integers(2, 900))
def test_what_is_cut_fits_and_is_counted_and_the_rest_stays(seed: int, longest: int) -> None:
    before = drawn(seed)
    after = before.cut(longest)
    if (before.prompt_tokens >= longest).all():
        assert after is before
        return
    total = before.prompt_tokens + before.output_tokens
    assert (after.prompt_tokens + after.output_tokens <= longest).all()
    assert (after.output_tokens >= 1).all()
    fits = total <= longest
    assert (after.prompt_tokens[fits] == before.prompt_tokens[fits]).all()
    assert (after.output_tokens[fits] == before.output_tokens[fits]).all()
    prompts = int((before.prompt_tokens >= longest).sum())
    answers = int((~fits).sum()) - prompts
    said = f"; cut at {longest:,} tokens: {plural(prompts, 'prompt')}, {plural(answers, 'answer')}"
    assert after.description == before.description + ("" if fits.all() else said)


def test_answers_grow_and_nothing_else() -> None:
    before = drawn()
    after = before.scaled_answers(2)
    assert after.output_tokens.tolist() == (2 * before.output_tokens).tolist()
    assert after.max_tokens.tolist() == (2 * before.max_tokens).tolist()
    assert after.prompt_tokens.tolist() == before.prompt_tokens.tolist()
    assert after.arrival_s.tolist() == before.arrival_s.tolist()
    assert after.description.endswith(", with answers 2 times as long")
    assert before.scaled_answers(1e-6).output_tokens.tolist() == [1] * 50
    with pytest.raises(UsageError, match="finite number above 0"):
        before.scaled_answers(float("inf"))


def test_descriptions_are_words() -> None:
    work = generate(3, arrivals=Poisson(rate_per_s=2.5), prompt=Fixed(tokens=1000), output=Fixed(tokens=5), seed=7)
    assert (
        work.description == "3 requests, 2.5 a second (Poisson); prompts of 1,000 tokens, answers of 5 tokens; seed 7"
    )


@given(seed=st.integers(0, 9), longest=st.integers(2, 400), ahead=st.integers(0, 3))
def test_known_prompts_are_cut_where_their_lengths_are(seed: int, longest: int, ahead: int) -> None:
    plain = drawn(seed)
    ids = [list(range(row, row + tokens)) for row, tokens in enumerate(plain.prompt_tokens.tolist())]
    hashes = [list(range(max(len(prompt) - ahead, 0) // 16)) for prompt in ids]
    columns = {
        "prompt_token_ids": {"prompt_token_ids": Ragged.from_rows(ids, np.int32)},
        "prompt_hashes": {"prompt_hashes": Ragged.from_rows(hashes, np.int64), "hash_ahead_tokens": ahead},
    }
    for name, known in columns.items():
        after = replace(plain, **known).cut(longest)
        assert after.prompt_tokens.tolist() == plain.cut(longest).prompt_tokens.tolist()
        for row, tokens in enumerate(after.prompt_tokens.tolist()):
            if name == "prompt_token_ids":
                assert getattr(after, name)[row].tolist() == ids[row][:tokens]
            else:
                assert getattr(after, name)[row].tolist() == hashes[row][: max(tokens - ahead, 0) // 16]
