"""Whether a load fits, what limits it, and what would help: found by simulation, checked by simulating again."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cli.fit_answer import cells
from kvsim.errors import UsageError
from kvsim.fitting import Goal, Kind, Load, Outcome, Search, Server, answer, changes, evaluate, ranked, repeated
from kvsim.fitting import largest as largest_module
from kvsim.fitting import search as search_module
from kvsim.fitting.goal import TOO_SHORT
from kvsim.fitting.largest import largest_load
from kvsim.fitting.limit import limit_words
from kvsim.fitting.outcome import outcome_of, price_words
from kvsim.fitting.search import Remedy, affordable, band_of, engine_for, figures_of
from kvsim.hardware import find_gpu
from kvsim.machines import Basis, class_of
from kvsim.metrics import Distribution
from kvsim.metrics.run_verdict import Limit
from kvsim.metrics.steady import FEWEST_REQUESTS, Steadiness, SteadyPart
from kvsim.models import find_model, find_quantization
from kvsim.plots.fit_frontier import draw_fit, frontier
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.simulation import measure
from kvsim.steptime import Roofline
from kvsim.workload import (
    AllAtOnce,
    Constant,
    Fixed,
    Image,
    Images,
    ImageSize,
    LogNormal,
    Ragged,
    SharedPrefixes,
    Workload,
    generate,
)

INTERPRETED = Search(engine="interpreted")


def server(num_blocks: int | None = None, **settings: object) -> Server:
    default: dict[str, object] = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 256}
    default |= {"gpu": find_gpu("H200"), "model": find_model("Meta-Llama-3-8B")}
    return Server(num_blocks=num_blocks, **default | settings)  # type: ignore[arg-type]


def users(number: int, think_s: float = 0.0) -> Load:
    """Each needs six blocks at the end."""
    work = generate(4 * number, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=30), seed=1)
    return Load(workload=work, users=number, think_s=think_s)


def rate(per_s: float, number: int = 40) -> Load:
    work = generate(
        number, arrivals=Constant(rate_per_s=per_s), prompt=Fixed(tokens=60), output=Fixed(tokens=30), seed=1
    )
    return Load(workload=work)


def run(on: Server, load: Load) -> Outcome:
    return evaluate(on, load, engine="interpreted")


def test_a_pool_that_holds_everybody_fits_and_one_that_does_not_is_short_of_memory() -> None:
    ample, short = run(server(200), users(12)), run(server(50), users(12))
    assert Goal().is_met(ample)
    assert not Goal().is_met(short)
    assert short.limit is Limit.MEMORY
    assert short.num_blocks == 50
    assert Goal().shortfall(short) > 0 == Goal().shortfall(ample)


def test_times_of_requests_add_up_to_the_end_to_end_time() -> None:
    """Each has 30 tokens: the first one, and 29 more at intervals of the TPOT."""
    outcome = run(server(200), users(12))
    assert outcome.e2e_s.mean == pytest.approx(outcome.ttft_s.mean + 29 * outcome.tpot_s.mean)


def test_targets_are_met_or_missed_by_what_they_allow() -> None:
    outcome = run(server(200), users(4))
    assert Goal(tpot_p99_s=outcome.tpot_s.p99).is_met(outcome)
    missed = Goal(tpot_p99_s=outcome.tpot_s.p99 / 2).misses(outcome)
    assert missed == {"TPOT p99": pytest.approx(1.0)}
    with pytest.raises(UsageError, match="--ttft-p99 should be a positive number"):
        Goal(ttft_p99_s=0)


def test_the_largest_load_fits_and_a_larger_one_does_not() -> None:
    """By hand: 99 blocks hold 16 sequences of 90 tokens in whole blocks of 16."""
    on, goal = server(100), Goal()
    for asked in (4, 40):
        largest, is_lower_bound = largest_load(on, users(asked), goal, engine="interpreted")
        assert not is_lower_bound  # users have no rate that could settle
        assert largest is not None
        assert 16 <= largest <= 18
        assert goal.is_met(run(on, users(asked).of_users(int(largest))))
        assert not goal.is_met(run(on, users(asked).of_users(int(largest * 1.3) + 1)))
    impossible = Goal(tpot_p99_s=1e-6)
    assert largest_load(server(7, max_model_len=90), users(2), impossible, engine="interpreted").size is None


def test_a_larger_load_that_has_not_settled_makes_the_answer_a_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fit; more miss nothing, but have not settled. Here a load is its own outcome."""

    class Settled(Goal):
        def misses(self, outcome: Outcome) -> dict[str, float]:
            return {} if float(str(outcome)) <= 2 else {TOO_SHORT: 1.0}

    monkeypatch.setattr(largest_module, "evaluate", lambda *loads, **_: loads[1])
    monkeypatch.setattr(largest_module, "scaled", lambda _, size: size)
    size, is_lower_bound = largest_load(server(100), users(1), Settled())
    assert size == 2
    assert is_lower_bound


def test_a_queue_that_grows_is_an_overload_and_one_that_does_not_is_none() -> None:
    slow = server(30, max_num_seqs=1)
    one_s = run(slow, rate(0.1, 12)).e2e_s.mean
    assert run(slow, rate(0.5 / one_s, 60)).overload == 0
    crowded = run(slow, rate(4 / one_s, 60))
    assert crowded.overload == pytest.approx(3, rel=0.1), "what arrives in a second takes four to serve"
    assert "overload" in Goal().misses(crowded)


def test_what_would_help_was_simulated_and_the_nearest_comes_first() -> None:
    load = users(12)
    found = answer(server(50), load, Goal(), INTERPRETED, most=36)
    assert not found.fits
    assert found.verdict.startswith("No: ")
    assert " of 12 users fit; " in found.verdict
    assert found.limit.startswith("memory: 50 blocks hold 8 requests of 90 tokens, and are full.")
    shown = {field for each in found.remedies for field in each.change.fields}
    in_vain = found.without_gain
    assert in_vain
    assert len({each.change.fields for each in in_vain}) == len(in_vain)
    for each in in_vain:
        assert not shown & set(each.change.fields)
        assert not each.fits
    first = found.remedies[0]
    assert first.fits
    assert first.change.kind is Kind.SETTING
    kinds = [each.change.kind for each in found.remedies if each.fits]
    assert kinds == sorted(kinds)
    for each in found.remedies:
        again = run(each.change.server, load)
        assert figures_of(again) == figures_of(each.outcome)
        assert each.fits == Goal().is_met(again)
        for name, value in figures_of(again).items():
            low, high = each.band[name]
            assert low <= value <= high


def test_requests_that_wait_for_a_slot_of_their_adapter_do_not_fit_and_more_slots_help() -> None:
    load = users(16)
    load = replace(load, workload=load.workload.with_adapters(8, 0.0, seed=1))
    one = server(enable_lora=True, max_loras=1)
    found = answer(one, load, Goal(), INTERPRETED, most=12, find_largest=False)
    assert not found.fits
    assert found.outcome.limit is Limit.ADAPTERS
    assert found.limit.startswith("the slots of adapters: requests wait for one while memory is free (max_loras). ")
    assert found.remedies[0].change.words == "max_loras 8 instead of 1"
    assert found.remedies[0].fits
    assert "--max-loras 8" in found.remedies[0].change.server.command()
    more = changes(replace(one, max_cpu_loras=3), longest_tokens=90)[0].server
    assert "--max-loras 2 --max-lora-rank 16 --max-cpu-loras 3" in more.command()
    many = next(each.server for each in changes(more, longest_tokens=90) if each.words == "max_loras 4 instead of 2")
    assert "--max-loras 4 --max-lora-rank 16" in many.command()
    assert "--max-cpu-loras" not in many.command(), "vLLM keeps as many in host memory by default"


def test_the_first_rush_is_not_what_limits_a_load_that_fits() -> None:
    """All users send their first request at once, and wait then for a step with tokens to spare; later nobody does."""
    answers = LogNormal(mean_tokens=150, sigma=0.5)
    work = generate(160, arrivals=AllAtOnce(), prompt=Fixed(tokens=900), output=answers, seed=1)
    on, load = server(9000, max_model_len=4096), Load(workload=work, users=40)
    outcome = run(on, load)
    assert outcome.limit is Limit.TOKENS, "over the whole run"
    assert outcome.waiting_for is not None
    assert outcome.waiting_for.tokens > 1 > outcome.steady_queue
    found = answer(on, load, Goal(), INTERPRETED, most=0, find_largest=False)
    assert found.fits
    assert found.limit.startswith(("memory bandwidth. ", "arithmetic. "))


def test_the_price_of_a_change_is_told() -> None:
    before, after = (run(server(2000, max_num_seqs=64, max_num_batched_tokens=n), users(40)) for n in (2048, 64))
    assert after.ttft_s.p99 > 1.5 * before.ttft_s.p99
    assert f"TTFT p99 {after.ttft_s.p99 / before.ttft_s.p99:.1f} times as long" in price_words(before, after)
    assert price_words(before, before) == ""
    less = replace(before, output_tokens_per_s=0.8 * before.output_tokens_per_s)
    assert price_words(before, less) == "at the price of 20 % less output"


@pytest.mark.parametrize(("name", "window"), [("Meta-Llama-3-8B", 0), ("gemma-3-4b-it", 1024)])
def test_full_layers_read_everything_and_windows_as_far_as_they_reach(name: str, window: int) -> None:
    """By hand: 39 steps read 3,000 tokens of prompt and half of the 39 that are put out meanwhile."""
    on = Server(gpu=find_gpu("H200"), model=find_model(name), max_model_len=4096)
    work = generate(1, arrivals=AllAtOnce(), prompt=Fixed(tokens=3000), output=Fixed(tokens=40), seed=1)
    outcome, times = run(on, Load(workload=work)), on.step_time()
    roofline = times.times if isinstance(times, WatchedProfile) else times
    assert isinstance(roofline, Roofline)
    assert outcome.shares is not None
    read_s = 39 * (3000 + 19.5) * roofline.context_token_s + 39 * window * roofline.window_token_s
    assert outcome.shares.cache == pytest.approx(read_s / outcome.duration_s)


def test_a_load_that_fits_is_told_how_much_more_would() -> None:
    found = answer(server(100), users(8), Goal(), INTERPRETED, most=0)
    assert found.fits
    assert found.verdict.startswith("Yes: 8 users fit; about 1")
    assert found.remedies == found.tried == ()


def test_a_model_that_does_not_fit_says_so_and_more_gpus_help() -> None:
    big = Server(gpu=find_gpu("H100"), model=find_model("Llama-3.1-70B"), max_model_len=4096)
    found = answer(big, users(2), Goal(), INTERPRETED, most=60)
    assert found.verdict.startswith("No: the weights of meta-llama/Llama-3.1-70B take ")
    assert "tensor_parallel_size" in {name for each in found.remedies for name in each.change.fields}
    assert all(each.fits for each in found.remedies)


def test_a_length_that_does_not_start_gives_way_to_one_that_does() -> None:
    found = answer(server(30, max_model_len=8192), users(2), Goal(), INTERPRETED, most=0)
    assert found.shortened_from == 8192
    assert found.server.max_model_len <= 30 * 16
    assert "vLLM does not start with --max-model-len 8192" in found.verdict


def test_changes_change_what_they_say_and_nothing_else() -> None:
    base = server(50)
    found = changes(base, longest_tokens=90, most=400)
    assert len({each.server for each in found}) == len(found)
    own = {field.name for field in fields(Server)}
    for each in found:
        differ = {name for name in own if getattr(each.server, name) != getattr(base, name)}
        assert {name if name in own else "model" for name in each.fields} >= differ - {"times"}
        assert differ
    kinds = [each.kind for each in found[:30]]
    assert kinds == sorted(kinds), "each alone, the nearest first"
    assert any(len(each.fields) == 2 for each in found)


def test_the_flags_of_a_server_are_those_of_vllm() -> None:
    base = replace(server(50), model=find_model("Meta-Llama-3-8B").served(kv_cache_dtype="fp8", tensor_parallel_size=2))
    assert base.command() == (
        "vllm serve meta-llama/Meta-Llama-3-8B --tensor-parallel-size 2 --num-gpu-blocks-override 50 "
        "--max-num-seqs 256 --max-num-batched-tokens 2048 --max-model-len 256 --kv-cache-dtype fp8"
    )
    assert "--gpu-memory-utilization 0.92 " in server().command()
    assert replace(base, name="./mine").command().startswith("vllm serve ./mine --")
    assert replace(base, name="llama-3-8b").command().startswith("vllm serve meta-llama/Meta-Llama-3-8B --")
    tuned = replace(base, name="Meta-Llama-3-8B-Instruct")
    assert tuned.command().startswith("vllm serve meta-llama/Meta-Llama-3-8B-Instruct --")
    careful = replace(base, watermark=0.05, long_prefill_token_threshold=512, enable_chunked_prefill=False)
    assert careful.command().removeprefix(base.command()) == (
        " --watermark 0.05 --long-prefill-token-threshold 512 --no-enable-chunked-prefill"
    )


def test_a_block_size_is_kept_where_layers_differ() -> None:
    """Without one, blocks are as small as the layers allow."""
    windows = server(model=find_model("google/gemma-3-1b-it"))
    assert [replace(windows, block_size=size).policy().cache.block_size for size in (None, 64)] == [16, 64]


def test_weights_that_vllm_cannot_make_are_another_checkpoint() -> None:
    def served(name: str, quantization: str | None) -> Server:
        model = find_model(name)
        if quantization is not None:
            model = model.served(quantization=find_quantization(quantization))
        return Server(gpu=find_gpu("H200"), model=model, name=name, max_model_len=4096)

    online = served("Qwen3-32B", "fp8").command()
    assert online.startswith("vllm serve Qwen/Qwen3-32B --")
    assert online.endswith(" --quantization fp8")
    for name, quantization in (("Qwen3-32B", "awq"), ("Qwen3-32B-AWQ", None), ("Qwen/Qwen3-32B-AWQ", None)):
        sibling = served(name, quantization)
        assert sibling.has_checkpoint
        assert sibling.command().startswith("vllm serve Qwen/Qwen3-32B-AWQ --")
        assert "--quantization" not in sibling.command()
    assert "--quantization" not in served("openai/gpt-oss-20b", None).command(), "its checkpoint is in mxfp4"
    unknown = served("Qwen3-0.6B", "awq")
    assert not unknown.has_checkpoint
    assert unknown.command().startswith("a checkpoint of Qwen/Qwen3-0.6B with awq weights is needed, served with --")


def test_what_a_recorded_pool_had_beyond_its_account_stays_with_every_change() -> None:
    base = server(gpu_memory_utilization=0.3, unaccounted_bytes=-(1 << 30))
    more = replace(base, gpu_memory_utilization=0.4)
    gained = more.machine().kv_bytes - base.machine().kv_bytes
    assert gained == more.budget().kv_bytes - base.budget().kv_bytes > 0
    assert base.machine().kv_bytes == base.budget().kv_bytes - (1 << 30)


def test_requests_are_taken_over_and_over_where_there_are_too_few() -> None:
    work = users(2).workload
    assert len(repeated(work, 3)) == 3
    assert repeated(work, 20).prompt_tokens.tolist() == [60] * 20
    assert len(users(50).of_users(100).workload) == 400


def test_own_beginnings_are_new_in_every_repetition_and_shared_ones_stay() -> None:
    work = Workload(
        arrival_s=[0.0, 1.0, 2.0],
        prompt_tokens=[48, 48, 16],
        output_tokens=[5, 6, 7],
        prompt_hashes=Ragged.from_rows([(1, 2, 3), (1, 2, 4), (9,)], np.int64),
    )
    twice = repeated(work, 6)
    assert twice.arrival_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert twice.output_tokens.tolist() == [5, 6, 7] * 2
    rows = [tuple(twice.prompt_hashes[row].tolist()) for row in range(6)]
    assert rows[:3] == [(1, 2, 3), (1, 2, 4), (9,)]
    assert [row[:2] for row in rows[3:5]] == [(1, 2)] * 2
    assert len({row[-1] for row in rows}) == 6
    grouped = generate(4, prompt=9, output=3, prefixes=SharedPrefixes(num_groups=2, tokens=32), seed=1)
    again = repeated(grouped, 8)
    assert again.prefix_group.tolist() == grouped.prefix_group.tolist() * 2


def test_images_of_one_request_are_new_in_every_repetition_and_shared_ones_stay() -> None:
    picture = ImageSize.parse("16")
    images = Images.from_rows([[Image(1, 0, picture), Image(2, 16, picture)], [Image(1, 0, picture)], []])
    work = Workload(arrival_s=[0.0, 1.0, 2.0], prompt_tokens=[48, 48, 16], output_tokens=[1, 1, 1], images=images)
    again = repeated(work, 7)
    assert [[image.content for image in request.images] for request in again] == [
        [1, 2], [1], [], [1, 5], [1], [], [1, 8],
    ]  # fmt: skip
    assert len(repeated(work, 2).images or ()) == 2


def test_a_rate_is_judged_when_the_server_has_settled() -> None:
    """Ten requests in a quarter of a second are all there at once, whatever the server: they are sent for longer."""
    on, load = server(2000), rate(40.0, 10)
    longer = run(on, load)
    assert longer.num_requests > 10
    assert longer.steadiness is Steadiness.STEADY
    assert longer.output_tokens_per_s == pytest.approx(40 * 30, rel=0.03), "what arrives is put out"
    assert longer.output_tokens_per_s == pytest.approx(run(on, rate(40.0, 300)).output_tokens_per_s, rel=0.03)


def test_what_never_settles_is_too_short_to_tell() -> None:
    outcome = replace(run(server(2000), users(4)), steadiness=Steadiness.SHORT, num_requests=20_000)
    assert Goal().misses(outcome) == {"too short to tell": 1.0}
    found = answer(server(2000), users(4), Goal(), INTERPRETED, most=0, find_largest=False)
    assert replace(found, outcome=outcome).verdict.startswith("Too short to tell: after 20,000 requests the server has")


def test_a_target_inside_the_margin_leaves_the_verdict_open() -> None:
    outcome = run(server(200), users(4))
    tpot = outcome.tpot_s.p99
    found = answer(server(200), users(4), Goal(tpot_p99_s=1.05 * tpot), INTERPRETED, most=0, find_largest=False)
    band = {"tpot_p99_s": (0.9 * tpot, 1.1 * tpot)}
    for goal, word in ((1.05, "Yes: "), (0.95, "No: ")):
        of = replace(found, goal=Goal(tpot_p99_s=goal * tpot), band=band)
        assert of.verdict.startswith(word)
        assert " Not certain: with the known error, TPOT p99 lies between " in of.verdict
        assert of.as_dict()["doubts"] == ["TPOT p99"]
    for goal in (0.8, 1.2):
        assert "Not certain" not in replace(found, goal=Goal(tpot_p99_s=goal * tpot), band=band).verdict
    both = Goal(tpot_p99_s=0.95 * tpot, ttft_p99_s=1e-6)
    assert not replace(found, goal=both, band=band).doubts, "the other target is missed in any case"


def test_caching_comes_before_types_and_gpus_where_it_makes_a_load_fit() -> None:
    prefixes = SharedPrefixes(num_groups=1, tokens=160)
    work = generate(48, arrivals=AllAtOnce(), prompt=8, output=Fixed(tokens=30), prefixes=prefixes, seed=1)
    load, on = Load(workload=work, users=12), server(80, enable_prefix_caching=False, async_scheduling=False)
    found = answer(on, load, Goal(), INTERPRETED, most=40, find_largest=False)
    assert not found.fits
    assert found.remedies[0].fits
    assert found.remedies[0].change.words == "prefix caching"
    assert "--no-enable-prefix-caching" not in found.remedies[0].change.server.command()
    tried = {each.change.words for each in found.tried}
    assert "asynchronous scheduling" in tried
    assert "max_num_seqs 64 instead of 256 and max_num_batched_tokens 1,024 instead of 2,048" in tried


def test_large_numbers_are_written_out() -> None:
    found = answer(server(2000), rate(40.0, 40), Goal(), INTERPRETED, most=0, find_largest=False)
    assert replace(found, largest=25.4).verdict == "Yes: 40 requests a second fit; about 1,020 would."


OUTCOME = Outcome(
    tpot_s=Distribution(mean=0.02, p50=0.02, p90=0.02, p99=0.02),
    ttft_s=Distribution(mean=0.5, p50=0.5, p90=0.5, p99=0.5),
    output_tokens_per_s=100.0,
    label=f"x; {class_of(Basis.SHEET, find_gpu('H100'), find_model('Meta-Llama-3-8B'), 'vllm').words}",
)


def test_a_band_is_at_least_as_wide_as_the_known_error_and_holds_what_moved() -> None:
    slower = replace(OUTCOME, output_tokens_per_s=70.0)
    band = band_of(OUTCOME, [slower])
    assert band["output_tokens_per_s"][0] == 70.0
    low, high = band["ttft_p99_s"]
    assert (0.5 - low) == pytest.approx(high - 0.5)
    assert high > 0.55


def test_a_figure_of_which_nobody_measured_an_error_has_no_band() -> None:
    unmeasured = replace(OUTCOME, label="step times of my own")
    assert band_of(unmeasured, [replace(unmeasured, output_tokens_per_s=70.0)], {"ttft_p99_s": 0.5}) == {}


def test_requests_that_are_all_too_long_are_what_limits() -> None:
    """Nothing ran, so no step can be to blame, and there is no rate to print."""
    on, load = server(200, max_model_len=48), users(2)
    outcome = run(on, load)
    assert outcome.refused_share == 1
    assert limit_words(outcome, on, load, Goal()) == (
        "the length of a sequence: every prompt is too long for max_model_len, which is 48 tokens; "
        "--max-model-len 90 would be needed."
    )
    assert cells(outcome, {})[:3] == ("–", "–", "–")
    found = answer(on, load, Goal(), INTERPRETED, most=4)
    assert (found.remedies, found.tried, found.without_gain) == ((), (), []), "none of them can help"
    assert run(on.changed(max_model_len=90), load).refused_share == 0


def test_a_length_that_the_model_or_the_memory_forbids_is_not_advised() -> None:
    assert answer(server(5, max_model_len=48), users(2), Goal(), INTERPRETED).limit.endswith(
        "--max-model-len 90 would be needed, for which there is too little memory."
    )
    work = generate(2, arrivals=AllAtOnce(), prompt=Fixed(tokens=8192), output=Fixed(tokens=30), seed=1)
    found = answer(server(2000, max_model_len=8192), Load(workload=work, users=2), Goal(), INTERPRETED)
    assert found.limit.endswith(
        "--max-model-len 8222 would be needed, and meta-llama/Meta-Llama-3-8B allows 8,192 tokens."
    )


def test_few_preemptions_are_less_certain_than_many() -> None:
    def width(number: int) -> float:
        found = band_of(replace(OUTCOME, num_preemptions=number, preemptions_per_min=60.0), [])
        low, high = found["preemptions_per_min"]
        return (high - low) / 60

    assert width(4) > width(40) > width(4000)
    assert width(4000) > 0, "a known error that does not vanish"


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 9), st.floats(1, 999)), min_size=1, max_size=20))
def test_ranking_puts_what_fits_before_what_does_not(rows: list[tuple[bool, float, float]]) -> None:
    candidates = changes(server(50), longest_tokens=90, most=60)
    remedies = [
        Remedy(
            change=candidates[number],
            outcome=replace(OUTCOME, output_tokens_per_s=tokens),
            fits=fits,
            shortfall=0.0 if fits else 0.1 + short,
        )
        for number, (fits, short, tokens) in enumerate(rows)
    ]
    order = ranked(remedies)
    assert [each.fits for each in order] == sorted((each.fits for each in order), reverse=True)
    missing = [each.shortfall for each in order if not each.fits]
    assert missing == sorted(missing)
    assert len({each.change.fields for each in order}) == len(order)


@given(st.lists(st.tuples(st.floats(1, 99), st.floats(1, 999)), min_size=1, max_size=30))
def test_nothing_beats_the_frontier(places: list[tuple[float, float]]) -> None:
    edge = frontier(places)
    for time_ms, tokens_per_s in places:
        assert any(other <= time_ms and more >= tokens_per_s for other, more in edge)
    for (time_ms, tokens_per_s), (later_ms, more) in pairwise(edge):
        assert later_ms > time_ms
        assert more > tokens_per_s


def test_the_figure_says_the_verdict_and_names_the_frontier() -> None:
    found = answer(server(50), users(12), Goal(), INTERPRETED, most=12, find_largest=False)
    picture = draw_fit(found)
    assert found.verdict in picture.alt_text
    assert "One server is better in both than all others on these GPUs: " in picture.alt_text
    assert not [label for label in picture.axes[0].get_legend_handles_labels()[1] if "frontier" in label]
    tried = next(each for each in found.tried if each.change.kind is not Kind.GPUS and not each.outcome.error)
    late = replace(tried.outcome, tpot_s=replace(tried.outcome.tpot_s, p99=9.0), output_tokens_per_s=1e6)
    two = draw_fit(replace(found, tried=[*found.tried, replace(tried, outcome=late)]))
    assert "The frontier runs from" in two.alt_text
    assert "1,000,000 tokens/s at 9,000.0 ms." in two.alt_text
    assert "frontier of settings and types on these GPUs" in two.axes[0].get_legend_handles_labels()[1]
    big = Server(gpu=find_gpu("H100"), model=find_model("Llama-3.1-70B"), max_model_len=4096)
    refused = answer(big, users(2), Goal(), INTERPRETED, most=0)
    assert math.isinf(refused.goal.shortfall(refused.outcome))
    with pytest.raises(UsageError, match="nothing to draw"):
        draw_fit(refused)


def test_a_server_that_is_almost_idle_does_not_make_the_load_longer() -> None:
    """Two of 62 requests come while another runs, and only these reach the second server."""
    load = rate(1.0, 62)
    arrival_s = np.sort(np.concatenate((np.arange(60.0), [20.01, 40.01])))
    load = replace(load, workload=replace(load.workload, arrival_s=arrival_s))
    outcome = run(server(200, replicas=2), load)
    assert outcome.steadiness is Steadiness.STEADY
    assert outcome.num_requests == 62
    assert outcome.requests_per_s == pytest.approx(1.0, rel=0.05)


def test_a_search_of_many_servers_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    on, load = server(200, replicas=2), users(4)
    assert not answer(on, load, Goal(), INTERPRETED, most=2).left_out
    monkeypatch.setattr(search_module, "_MOST_SERVER_REQUESTS", 2 * len(load.workload))
    found = answer(on, load, Goal(), INTERPRETED, most=2)
    assert found.left_out == (
        "Runs of 2 servers with 16 requests take long: at most 1 of 2 changes were tried, and the largest load was not "
        "searched. Give fewer requests with --num-requests to try more."
    )
    assert len(found.tried) == 1
    assert not found.searched
    assert not answer(server(200), load, Goal(), INTERPRETED, most=2).left_out


def test_a_search_of_ranks_that_wait_for_each_other_is_bounded_and_says_so() -> None:
    """Their steps are counted: runs of few and short answers take less, and as many changes as asked for are tried."""
    shape = find_model("Qwen3-30B-A3B").served(data_parallel_size=2, enable_expert_parallel=True)
    ranks = replace(server(2000), model=shape)
    before = Outcome(num_requests=1000, duration_s=120.0, tpot_s=Distribution(mean=0.01, p50=0.01, p90=0.01, p99=0.01))
    assert affordable(ranks, before, 60, find_largest=True) == (10, False)
    assert affordable(ranks, replace(before, duration_s=2.0), 60, find_largest=True) == (60, True)
    assert affordable(server(2000), before, 60, find_largest=True) == (60, True)
    single = replace(before, tpot_s=Outcome().tpot_s, e2e_s=before.tpot_s)
    assert affordable(ranks, single, 60, find_largest=True) == (10, False), "answers of a single token have no TPOT"
    found = answer(ranks, users(4), Goal(), INTERPRETED, most=0, find_largest=False)
    assert not found.outcome.error
    assert not found.left_out


def test_a_fit_of_several_servers_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have smaller batches, so more steps; machine code that is absent is compiled for them."""
    monkeypatch.setattr(search_module, "engine_for_several", lambda _: "compiled")
    load = rate(1.0, 300)
    assert [engine_for(load, 48, on.memory, on.replicas) for on in (server(), server(replicas=9))] == [
        "auto",
        "compiled",
    ]


def test_an_outcome_without_output_has_no_price_in_output() -> None:
    none = Outcome(output_tokens_per_s=0.0, ttft_s=Distribution(mean=0.0, p50=0.0, p90=0.0, p99=0.0))
    some = Outcome(output_tokens_per_s=5.0, ttft_s=Distribution(mean=1.0, p50=1.0, p90=1.0, p99=1.0))
    assert price_words(none, some) == price_words(none, none) == price_words(Outcome(), some) == ""
    assert price_words(some, none) == "at the price of 100 % less output"


def test_an_unknown_wait_does_not_hide_an_overload() -> None:
    load = rate(4 / run(server(30, max_num_seqs=1), rate(0.1, 12)).e2e_s.mean, 60)
    machine, policy = server(30, max_num_seqs=1).machine(), server(30, max_num_seqs=1).policy()
    measured = measure(load.workload, policy, machine, engine="interpreted")
    waits = measured.requests.first_scheduled_s.copy()
    waits[-1] = np.nan
    unknown = replace(measured, requests=replace(measured.requests, first_scheduled_s=waits))
    whole = outcome_of(load, [measured], machine).overload
    assert outcome_of(load, [unknown], machine).overload == pytest.approx(whole, rel=0.1)
    assert whole > 1


def test_a_load_of_few_requests_gets_enough_for_a_rate_at_once() -> None:
    load = rate(1, 2)
    short = SteadyPart(steadiness=Steadiness.SHORT, arriving_s=1.0, running_s=0.1)
    longer = load.longer(short)
    assert longer is not None
    assert len(longer.workload) == FEWEST_REQUESTS
