from __future__ import annotations

import math
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UsageError, WorkloadError
from kvsim.workload import (
    MAX_TOKENS,
    AllAtOnce,
    Arrivals,
    Constant,
    Empirical,
    Fixed,
    Gamma,
    Lengths,
    LogNormal,
    Numbered,
    Poisson,
    Ragged,
    Request,
    SharedPrefix,
    SharedPrefixes,
    Uniform,
    Workload,
    generate,
)

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "priority", "prefix_group", "prefix_tokens")


def table(**changes: Any) -> Workload:
    """Three good requests, with some columns changed."""
    columns: dict[str, Any] = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [40, 50, 60], "output_tokens": [4, 5, 6]}
    return Workload(**columns | changes)


def random_numbers(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- the table ---


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Good requests in any order, each with its own id."""
    rows = []
    for number in range(draw(st.integers(1, 6))):
        prompt = draw(st.integers(1, 40))
        output = draw(st.integers(1, 40))
        group = draw(st.none() | st.sampled_from(["system", "examples"]))
        tokens = draw(st.none() | st.just(tuple(range(prompt))))
        hashes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=prompt // 8)
        rows.append(
            Request(
                id=f"request-{number}",
                arrival_s=draw(st.floats(0, 1e9)),
                prompt_tokens=prompt,
                output_tokens=output,
                max_tokens=output + draw(st.integers(0, 9)),
                priority=draw(st.integers(-3, 3)),
                prefix=SharedPrefix(group=group, tokens=draw(st.integers(1, prompt))) if group else None,
                prompt_hashes=tuple(draw(hashes)),
                prompt_token_ids=tokens,
            )
        )
    return rows


@settings(max_examples=60)
@given(rows=requests())
def test_requests_come_back_in_order_of_arrival(rows: list[Request]) -> None:
    workload = Workload.from_requests(rows, hash_unit_tokens=8)
    assert list(workload) == sorted(rows, key=lambda row: row.arrival_s)
    assert list(Workload.from_requests(workload, hash_unit_tokens=8)) == list(workload)
    assert workload[-1] == list(workload)[-1]
    with pytest.raises(IndexError):
        workload[len(rows)]


def test_equal_arrivals_keep_the_order_given() -> None:
    workload = table(arrival_s=[5, 0, 0], ids=["late", "first", "second"])
    assert [request.id for request in workload] == ["first", "second", "late"]
    assert workload.prompt_tokens.tolist() == [50, 60, 40]


def test_columns_left_out_have_plain_meanings() -> None:
    assert table()[1] == Request(id="r1", arrival_s=1.0, prompt_tokens=50, output_tokens=5, max_tokens=5)


def test_columns_are_copies_that_nobody_can_write() -> None:
    arrival_s = np.array([2.0, 0.0, 1.0])
    workload = table(
        arrival_s=arrival_s,
        prompt_hashes=Ragged.from_rows([[7], [], [8, 9]], np.int64),
        prompt_token_ids=Ragged.from_rows([range(40), (), ()], np.int32),
    )
    arrival_s[0] = 99
    assert workload.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert workload.prompt_token_ids is not None
    ragged = (workload.prompt_hashes, workload.prompt_token_ids)
    arrays = [getattr(workload, column) for column in COLUMNS]
    for array in (*arrays, *(rows.values for rows in ragged), *(rows.offsets for rows in ragged)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        workload.name = "other"  # type: ignore[misc]


def test_columns_have_the_types_that_are_promised() -> None:
    workload = table(prompt_tokens=np.array([1, 2, 3], np.uint8))
    assert workload.arrival_s.dtype == np.float64
    assert {getattr(workload, column).dtype for column in COLUMNS[1:]} == {np.dtype(np.int32)}
    assert workload.prompt_hashes.values.dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"arrival_s": [0, math.nan, -1]}, r"'r1' \(row 1\): arrival_s is nan; it must be a finite"),
        ({"arrival_s": [0, 1, -1]}, r"'r2' \(row 2\): arrival_s is -1.0"),
        ({"arrival_s": [0, math.inf, 1]}, r"row 1\): arrival_s is .*; it must be"),
        ({"prompt_tokens": [1, 0, 0]}, r"row 1\): prompt_tokens is 0; it must be at least 1"),
        ({"prompt_tokens": [-7, 1, 1]}, r"row 0\): prompt_tokens is -7"),
        ({"output_tokens": [1, 1, 0]}, r"row 2\): output_tokens is 0; it must be at least 1"),
        ({"max_tokens": [4, 4, 6]}, r"row 1\): max_tokens is 4; it must be at least its output_tokens, 5"),
        ({"max_tokens": [4, 5, -6]}, r"row 2\): max_tokens is -6"),
        ({"max_tokens": [4, 5, MAX_TOKENS]}, r"row 2\): prompt_tokens is 60 and max_tokens 2147483647; together"),
        ({"prefix_group": [-1, 0, -1]}, r"row 1\): prefix_group is 0; it must be -1 \(none\) or below the 0"),
        ({"prefix_group": [-2, -1, -1]}, r"row 0\): prefix_group is -2"),
        ({"prefix_tokens": [0, 0, 3]}, r"row 2\): prefix_tokens is 3 in prefix_group -1; it must be 0"),
        ({"prefix_group": [0, -1, -1], "prefix_names": ["a"]}, r"prefix_tokens is 0 in prefix_group 0.* else above 0"),
        (
            {"prefix_group": [0, 0, 0], "prefix_names": ["a"], "prefix_tokens": [40, 51, 61]},
            r"row 1\): prefix_tokens is 51; it must not be more than its prompt_tokens, 50",
        ),
        (
            {"prompt_hashes": Ragged.from_rows([[1, 2], [3] * 4, []], np.int64)},
            r"row 1\): it has more prompt_hashes than its 50 prompt_tokens have full units of 16",
        ),
        (
            {"prompt_token_ids": Ragged.from_rows([[], range(50), range(59)], np.int32)},
            r"row 2\): prompt_token_ids has another length than prompt_tokens, 60",
        ),
        ({"ids": ["a", "b", "a"]}, r"'a' \(row 2\): row 0 has this id"),
        ({"prompt_tokens": [1, 2**40, 1]}, "prompt_tokens of row 1 is 1099511627776; it must fit into 32 bits"),
        ({"arrival_s": [], "prompt_tokens": [], "output_tokens": []}, "has no requests"),
        # The first bad row is named, whatever is wrong with it.
        ({"prompt_tokens": [1, 1, 0], "output_tokens": [1, 0, 1]}, r"row 1\): output_tokens is 0"),
        # Rows are numbered as they were given, not as they arrive.
        ({"arrival_s": [9, 8, 7], "prompt_tokens": [0, 1, 1]}, r"row 0\): prompt_tokens is 0"),
    ],
)
def test_a_bad_row_is_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(WorkloadError, match=what):
        table(**changes)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"prompt_tokens": [1, 2]}, "prompt_tokens has 2 rows; it must have 3"),
        (
            {"prompt_tokens": [1.5, 2, 3]},
            "one integer per request, but it is 1-dimensional with elements of type float64",
        ),
        ({"prompt_tokens": [[1, 2, 3]]}, "2-dimensional"),
        ({"prompt_tokens": [[1], [1, 2], 3]}, "rows differ in shape"),
        ({"arrival_s": ["now", "soon", "late"]}, "arrival_s must be a column with one number per request"),
        ({"ids": ["a", "b"]}, "ids has 2 rows"),
        ({"prompt_hashes": Ragged.empty(2, np.int64)}, "prompt_hashes has 2 rows"),
        ({"hash_unit_tokens": 0}, "hash_unit_tokens is 0"),
        ({"hash_unit_tokens": 1 << 53}, "hash_unit_tokens is 9007199254740992; it must be at most"),
    ],
)
def test_a_table_that_is_none_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        table(**changes)


@pytest.mark.parametrize(
    ("offsets", "what"),
    [
        ([], "are empty; they must run from 0 to its 3 values"),
        ([1, 3], "run from 1 to 3"),
        ([0, 2], "run from 0 to 2"),
        ([0, 2, 1, 3], "fall from 2 to 1 at row 1"),
    ],
)
def test_inconsistent_offsets_are_refused(offsets: list[int], what: str) -> None:
    with pytest.raises(WorkloadError, match=what):
        Ragged([7, 8, 9], offsets, np.int64)


@settings(max_examples=50)
@given(rows=st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6), data=st.data())
def test_ragged_rows_are_taken_like_rows_of_a_list(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.from_rows(rows, np.int64)
    assert [ragged[row].tolist() for row in range(len(ragged))] == rows
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    taken = ragged.take(np.array(order, np.int64))
    assert [taken[row].tolist() for row in range(len(taken))] == [rows[row] for row in order]


def test_head_keeps_the_first_to_arrive() -> None:
    workload = table(
        arrival_s=[3, 1, 2], ids=["c", "a", "b"], prompt_hashes=Ragged.from_rows([[1], [2], [3]], np.int64)
    )
    assert list(workload.head(2)) == list(workload)[:2]
    assert list(workload.head(9)) == list(workload)
    assert isinstance(table().head(2).ids, Numbered)
    with pytest.raises(UsageError, match="ask for at least 1"):
        workload.head(0)


def test_a_scaled_rate_moves_arrivals_and_nothing_else() -> None:
    workload = table(description="Three")
    faster = workload.scaled_rate(4)
    assert faster.arrival_s.tolist() == [0, 0.25, 0.5]
    assert faster.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    assert faster.description == "Three, arriving 4 times as fast"
    for factor in (0, -1, math.nan, math.inf):
        with pytest.raises(UsageError, match="finite number above 0"):
            workload.scaled_rate(factor)
    with pytest.raises(WorkloadError, match="arrival_s is"):
        table(arrival_s=[0, 1, 1e12]).scaled_rate(1e-300)


def test_summary() -> None:
    summary = table(arrival_s=[10, 11, 14], max_tokens=[4, 5, 9]).summary()
    assert (summary.num_requests, summary.duration_s, summary.rate_per_s) == (3, 4, 0.5)
    assert summary.gap_cv == pytest.approx(0.5)
    assert (summary.mean_prompt_tokens, summary.mean_output_tokens, summary.mean_max_tokens) == (50, 5, 6)
    assert summary.longest_request_tokens == 66


@pytest.mark.parametrize("workload", [table().head(1), table(arrival_s=[7, 7, 7])])
def test_requests_that_arrive_together_have_no_rate(workload: Workload) -> None:
    assert (workload.summary().rate_per_s, workload.summary().gap_cv) == (None, None)


def test_a_workload_survives_a_process_boundary() -> None:
    workload = table(prompt_hashes=Ragged.from_rows([[1], [2], [3, 4]], np.int64))
    copy = pickle.loads(pickle.dumps(workload))
    assert list(copy) == list(workload)
    assert repr(copy) == "<Workload 'workload': 3 requests in 2 s>"


def test_ids_are_made_when_looked_at() -> None:
    ids = Numbered("r", range(1_000_000))
    assert (ids[0], ids[-1], len(ids)) == ("r0", "r999999", 1_000_000)
    assert list(ids[3:9:2]) == ["r3", "r5", "r7"]
    with pytest.raises(IndexError):
        ids[1_000_000]


# --- arrivals and lengths ---


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gamma_gaps_have_the_rate_and_the_variation_asked_for(cv: float) -> None:
    gaps_s = np.diff(Gamma(rate_per_s=4, cv=cv).sample(200_000, random_numbers()))
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.03)


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(Poisson(rate_per_s=4).sample(100_000, random_numbers()))
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.02)
    assert (gaps_s > 0.25).mean() == pytest.approx(math.exp(-1), abs=0.01)


def test_constant_and_simultaneous_arrivals() -> None:
    assert Constant(rate_per_s=4).sample(4, random_numbers()).tolist() == [0, 0.25, 0.5, 0.75]
    assert AllAtOnce().sample(3, random_numbers()).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "arrivals", [Poisson(rate_per_s=2), Gamma(rate_per_s=2, cv=5), Constant(rate_per_s=2), AllAtOnce()]
)
@pytest.mark.parametrize("n", [1, 2, 100])
def test_arrivals_begin_at_zero_and_never_fall(arrivals: Arrivals, n: int) -> None:
    times = arrivals.sample(n, random_numbers())
    assert times.shape == (n,)
    assert times[0] == 0
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("process", [Poisson, Constant, lambda rate_per_s: Gamma(rate_per_s=rate_per_s, cv=1)])
@pytest.mark.parametrize("rate_per_s", [0, -1, math.nan, math.inf])
def test_rates_that_are_none_are_refused(process: Any, rate_per_s: float) -> None:
    with pytest.raises(UsageError, match="finite number above 0"):
        process(rate_per_s=rate_per_s)


@pytest.mark.parametrize("cv", [0, -1, math.nan, 1e-4, 1e4])
def test_a_variation_out_of_range_is_refused(cv: float) -> None:
    with pytest.raises(UsageError, match=r"0\.001 to 1000"):
        Gamma(rate_per_s=1, cv=cv)


def test_log_normal_lengths_have_the_mean_asked_for() -> None:
    lengths = LogNormal(mean_tokens=300, sigma=1).sample(200_000, random_numbers())
    assert lengths.mean() == pytest.approx(300, rel=0.02)
    assert np.log(lengths).std() == pytest.approx(1, rel=0.02)


def test_log_normal_lengths_are_clipped() -> None:
    lengths = LogNormal(mean_tokens=300, sigma=2, minimum=4, maximum=1024).sample(10_000, random_numbers())
    assert (lengths.min(), lengths.max()) == (4, 1024)
    assert LogNormal(mean_tokens=1e300, sigma=10).sample(5, random_numbers()).max() == MAX_TOKENS


def test_uniform_lengths_include_both_ends() -> None:
    values, counts = np.unique(Uniform(low=3, high=5).sample(30_000, random_numbers()), return_counts=True)
    assert values.tolist() == [3, 4, 5]
    assert counts == pytest.approx(10_000, rel=0.05)


def test_empirical_lengths_are_those_seen_as_often_as_seen() -> None:
    lengths = Empirical(values=[5, 5, 5, 900]).sample(20_000, random_numbers())
    assert set(lengths.tolist()) == {5, 900}
    assert (lengths == 5).mean() == pytest.approx(0.75, abs=0.02)
    assert repr(Empirical(values=[5, 5, 5, 901])) == "Empirical(4 lengths, mean 229)"


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Fixed(tokens=0), "tokens is 0"),
        (lambda: Fixed(tokens=-5), "tokens is -5"),
        (lambda: Fixed(tokens=2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Fixed(tokens=math.nan), "whole number"),  # type: ignore[arg-type]
        (lambda: Fixed(tokens=MAX_TOKENS + 1), "2,147,483,647"),
        (lambda: LogNormal(mean_tokens=0, sigma=1), "mean_tokens is 0"),
        (lambda: LogNormal(mean_tokens=math.nan, sigma=1), "mean_tokens is nan"),
        (lambda: LogNormal(mean_tokens=300, sigma=200), r"deviation of ln\(tokens\)"),
        (lambda: LogNormal(mean_tokens=300, sigma=0), "sigma is 0"),
        (lambda: LogNormal(mean_tokens=300, sigma=math.nan), "sigma is nan"),
        (lambda: LogNormal(mean_tokens=300, sigma=1, minimum=0), "minimum is 0"),
        (lambda: LogNormal(mean_tokens=300, sigma=1, minimum=9, maximum=8), "minimum must not be above maximum"),
        (lambda: Uniform(low=5, high=4), "low is 5 and high 4"),
        (lambda: Uniform(low=0, high=4), "low is 0"),
        (lambda: Empirical(values=[]), "at least one"),
        (lambda: Empirical(values=[3, 0]), "smallest length is 0"),
        (lambda: Empirical(values=[3, 1.5]), "one integer"),  # type: ignore[list-item]
        (lambda: SharedPrefixes(num_groups=0, tokens=1), "num_groups is 0"),
        (lambda: SharedPrefixes(num_groups=1, tokens=0), "shared prefix is 0"),
        (lambda: SharedPrefixes(num_groups=1, tokens=1, skew=-1), "skew of the groups is -1"),
        (lambda: SharedPrefixes(num_groups=1, tokens=1, skew=math.nan), "skew of the groups is nan"),
    ],
)
def test_distributions_that_cannot_be_right_are_refused(build: Any, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        build()


# --- generated workloads ---


def generated(num_requests: int = 500, **changes: Any) -> Workload:
    arrivals: Arrivals = Gamma(rate_per_s=2, cv=2)
    prompt: Lengths = LogNormal(mean_tokens=161, sigma=1)
    defaults: dict[str, Any] = {"arrivals": arrivals, "prompt": prompt, "output": Uniform(low=1, high=600), "seed": 1}
    return generate(num_requests, **defaults | changes)


def test_the_same_seed_gives_the_same_bytes() -> None:
    prefixes = SharedPrefixes(num_groups=4, tokens=32, skew=1)
    once, again, other = (generated(prefixes=prefixes, seed=seed) for seed in (1, 1, 2))
    for column in COLUMNS:
        assert getattr(once, column).tobytes() == getattr(again, column).tobytes()
    for column in ("arrival_s", "prompt_tokens", "output_tokens", "prefix_group"):
        assert getattr(once, column).tobytes() != getattr(other, column).tobytes()
    assert once.description == again.description != other.description


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({"arrivals": Poisson(rate_per_s=1)}, {"arrival_s"}),
        ({"prompt": Uniform(low=1, high=9)}, {"prompt_tokens"}),
        ({"output": LogNormal(mean_tokens=99, sigma=1)}, {"output_tokens", "max_tokens"}),
    ],
)
def test_what_is_drawn_one_way_does_not_change_the_rest(changes: dict[str, Any], changed: set[str]) -> None:
    before, after = generated(), generated(**changes)
    assert {c for c in COLUMNS if getattr(before, c).tolist() != getattr(after, c).tolist()} == changed


def test_answers_are_cut_at_the_limit_asked_for() -> None:
    workload = generated(max_tokens=100)
    assert set(workload.max_tokens.tolist()) == {100}
    assert workload.output_tokens.max() == 100
    assert (generated().max_tokens == generated().output_tokens).all()


def test_shared_prefixes_come_on_top_of_the_prompt() -> None:
    plain, shared = generated(), generated(prefixes=SharedPrefixes(num_groups=3, tokens=80))
    assert (shared.prompt_tokens - plain.prompt_tokens == 80).all()
    assert {request.prefix for request in shared} == {
        SharedPrefix(group=f"prefix{group}", tokens=80) for group in range(3)
    }
    assert all(request.prefix is None for request in plain)


@pytest.mark.parametrize(("skew", "shares"), [(0, [1 / 3, 1 / 3, 1 / 3]), (1, [6 / 11, 3 / 11, 2 / 11])])
def test_skewed_prefixes_follow_zipf(skew: float, shares: list[float]) -> None:
    workload = generated(20_000, prefixes=SharedPrefixes(num_groups=3, tokens=8, skew=skew))
    assert np.bincount(workload.prefix_group) / 20_000 == pytest.approx(shares, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"num_requests": 0}, "ask for at least 1"),
        ({"num_requests": -3}, "ask for at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        generated(**changes)


@pytest.mark.parametrize("process", [Poisson, Constant])
def test_arrivals_beyond_every_number_are_refused(process: Any) -> None:
    with pytest.raises(WorkloadError, match=r"arrival_s is .*; it must be"):
        generated(arrivals=process(rate_per_s=1e-307))


def test_a_million_requests_are_cheap_to_keep() -> None:
    tracemalloc.start()
    workload = generated(1_000_000, prefixes=SharedPrefixes(num_groups=10, tokens=80))
    kept_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert workload[999_999].id == "r999999"
    assert kept_bytes < 50e6
    assert peak_bytes < 120e6
