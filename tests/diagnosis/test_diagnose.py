"""What happened, from recordings whose losses are known otherwise, and what a page of metrics says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.diagnosis import diagnose, diagnose_metrics, load_of, losses_of, server_of, spells_of
from kvsim.errors import UsageError
from kvsim.fitting import Kind, Search, changes
from kvsim.fitting.outcome import outcome_of
from kvsim.fitting.search import figures_of
from kvsim.hardware import find_gpu
from kvsim.live.metrics import parse_metrics
from kvsim.machines import step_times
from kvsim.metrics import summarize
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, find, read
from kvsim.simulation import Machine, Measured, simulate
from kvsim.workload import AllAtOnce, Fixed, LogNormal, Poisson, generate

from ..conftest import REPOSITORY

INTERPRETED = Search(engine="interpreted")


def recorded(num_blocks: int, seed: int = 1, *, caching: bool = True, number: int = 20) -> Recording:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    machine = Machine(gpu=gpu, model=model, kv_bytes=num_blocks << 21, step_time=step_times(gpu, model, "vllm"))
    workload = generate(
        number,
        arrivals=Poisson(rate_per_s=300),
        prompt=LogNormal(mean_tokens=120, sigma=0.5, maximum=300),
        output=LogNormal(mean_tokens=60, sigma=0.5, maximum=200),
        seed=seed,
    )
    policy = Paged(scheduler=ContinuousSettings(max_model_len=600), cache=PagedSettings(enable_prefix_caching=caching))
    return simulate(workload, policy, machine)


@settings(max_examples=12)
@given(num_blocks=st.integers(45, 120), seed=st.integers(0, 99), caching=st.booleans())
def test_every_preemption_is_found_and_what_they_lost_is_what_was_computed_in_vain(
    num_blocks: int, seed: int, caching: bool
) -> None:
    recording = recorded(num_blocks, seed, caching=caching)
    losses, summary = losses_of(recording), summarize(recording)
    assert len(losses) == summary.num_preemptions
    assert sum(loss.lost_tokens for loss in losses) == summary.vain_tokens
    for loss in losses:
        assert loss.back_s >= loss.at_s
    spells = spells_of(recording, losses)
    assert [loss for spell in spells for loss in spell.losses] == losses
    for spell in spells:
        assert spell.begin_s <= spell.worst.at_s <= spell.end_s
        assert spell.cause is not None
        assert spell.cause.at_s <= spell.begin_s
        assert spell.cause.num_blocks >= 1


def test_a_real_recording_under_pressure() -> None:
    recording = read(find("vllm-h200-llama-3-8b-sharegpt-pressure"))
    losses = losses_of(recording)
    assert len(losses) == 685
    assert sum(loss.lost_tokens for loss in losses) == summarize(recording).vain_tokens == 80642
    [spell] = spells_of(recording, losses)
    assert spell.begin_s == pytest.approx(3.03, abs=0.01)
    assert spell.cause is not None
    assert spell.cause.free_blocks < 10, "the admission before the first preemption took almost the last blocks"


@pytest.mark.parametrize(
    "name",
    ["vllm-h200-llama-3-8b-sharegpt-pressure", "vllm-h200-llama-3-8b-sharegpt-20",
     "vllm-h200-llama-3-8b-fp8-closed128", "vllm-h200-qwen3-8b-light"],
)  # fmt: skip
def test_the_server_of_a_recording_has_the_pool_that_was_recorded(name: str) -> None:
    recording = read(find(name))
    server = server_of(recording)
    pool = server.machine().pool(server.policy())
    assert pool.num_units == recording.meta.pool.num_units
    assert (server.num_blocks is not None) == ("pressure" in name), "stated only where the account leaves far more"
    assert load_of(recording).users == (128 if "closed128" in name else None)


def test_remedies_are_simulated_on_the_recordings_own_requests() -> None:
    recording = recorded(60)
    found = diagnose(recording, INTERPRETED, most=6)
    assert found.verdict.startswith("Memory is short: ")
    assert found.cause.startswith("The pool of 60 blocks (59 usable) of 16 tokens is too small since ")
    assert " was admitted, took " in found.moments[0]
    # A simulation of a simulation is the same run.
    assert found.simulated.num_preemptions == summarize(recording).num_preemptions
    assert found.simulated.output_tokens_per_s == pytest.approx(found.measured.output_tokens_per_s)
    best = found.remedies[0]
    assert best.fits
    assert best.change.kind is Kind.SETTING
    assert best.outcome.num_preemptions == 0
    document = found.as_dict()
    assert document["spells"][0]["preemptions"] == len(found.spells[0].losses)
    assert document["wasted"]["vain_tokens"] == sum(spell.lost_tokens for spell in found.spells)


def test_a_recording_without_trouble_says_so() -> None:
    found = diagnose(recorded(600, number=6), INTERPRETED, most=2)
    assert found.verdict.startswith("Nothing is held back: ")
    assert found.moments == []
    assert found.cause.startswith("Neither memory nor a limit")


def with_groups(name: str, num_blocks: int) -> Recording:
    """Twelve long requests on a model with several KV-cache groups and little memory."""
    gpu, model = find_gpu("H200"), find_model(name)
    policy = Paged(scheduler=ContinuousSettings(max_model_len=4096, max_num_batched_tokens=2048))
    machine = Machine(gpu=gpu, model=model, kv_bytes=1, step_time=step_times(gpu, model, "vllm"))
    layout = machine.layout(policy)
    assert layout is not None
    lengths = {"prompt": Fixed(tokens=950), "output": Fixed(tokens=150)}
    work = generate(12, arrivals=Poisson(rate_per_s=100), **lengths, seed=4)
    return simulate(work, policy, replace(machine, kv_bytes=num_blocks * layout.bytes_per_block), engine="interpreted")


@pytest.mark.parametrize(("name", "num_blocks"), [("gemma-3-4b-it", 3000), ("granite-4.0-h-350m", 56)])
def test_models_with_several_groups_are_told_of_like_others(name: str, num_blocks: int) -> None:
    recording = with_groups(name, num_blocks)
    losses, summary = losses_of(recording), summarize(recording)
    assert len(losses) == summary.num_preemptions > 0
    assert sum(loss.lost_tokens for loss in losses) == summary.vain_tokens
    found = diagnose(recording, INTERPRETED, most=2)
    assert f"for {len(recording.meta.pool.groups)} KV-cache groups is too small since" in found.cause
    assert found.simulated.num_preemptions == summary.num_preemptions
    assert found.server.machine().pool(found.server.policy()).num_units == recording.meta.pool.num_units


@pytest.mark.parametrize("name", ["vllm-h200-gemma-3-4b-windows", "vllm-h200-granite-h-350m-states"])
def test_recordings_of_several_groups_tell_every_preemption(name: str) -> None:
    recording = read(find(name))
    assert len(losses_of(recording)) == recording.num_preemptions > 0


def test_slots_of_adapters_that_are_short_are_the_cause() -> None:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    scheduler = ContinuousSettings(max_num_seqs=64, max_model_len=256, enable_lora=True, max_loras=1)
    machine = Machine(gpu=gpu, model=model, kv_bytes=1 << 34, step_time=step_times(gpu, model, "vllm"))
    work = generate(24, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=30), seed=4)
    work = work.with_adapters(4, 0.0, seed=1)
    recording = simulate(work, Paged(scheduler=scheduler), machine, engine="interpreted")
    found = diagnose(recording, INTERPRETED, most=8)
    assert found.cause.startswith("max_loras of 1 keeps requests waiting for a slot of their adapter: ")
    assert found.remedies[0].change.words == "max_loras 4 instead of 1"


def test_host_memory_is_part_of_the_server_that_was_recorded() -> None:
    recording = read(find("vllm-h200-llama-3-8b-offload"))
    server = server_of(recording)
    assert server.cache.kv_offloading_size == 8
    assert server.command().endswith("--kv-offloading-size 8")
    assert server.policy().cache.kv_offloading_size == 8
    without = next(each for each in changes(server, longest_tokens=90) if each.words == "no host memory for the cache")
    assert without.server.policy().cache.kv_offloading_size == 0


def test_padded_batches_are_for_no_server() -> None:
    with pytest.raises(UsageError, match="kvsim diagnose is for servers with a paged cache"):
        server_of(read(find("hf-h200-granite-350m-one-by-one")))


PAGE = """\
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="1000"}} 1.0
vllm:num_requests_running{{engine="0"}} 40
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:num_preemptions_total{{engine="0"}} {preemptions}
vllm:request_success_total{{engine="0"}} {finished}
vllm:prompt_tokens_total{{engine="0"}} 20000
vllm:generation_tokens_total{{engine="0"}} 30000
"""


@pytest.mark.parametrize(
    ("usage", "waiting", "preempted", "verdict"),
    [
        (0.99, 7, 20, "Memory is short: 200 preemptions a minute, and 7 requests wait."),
        (0.99, 7, 0, "Memory is short: the pool is full and 7 requests wait."),
        (0.4, 7, 0, "7 requests wait although 60 % of the pool is free: a limit of the scheduler "),
        (0.4, 0, 0, "Nothing waits and nothing is preempted now."),
    ],
)  # fmt: skip
def test_metrics_say_whether_and_not_why(usage: float, waiting: int, preempted: int, verdict: str) -> None:
    settings = {"usage": usage, "waiting": waiting, "finished": 100}
    first = parse_metrics(PAGE.format(preemptions=50, **settings), 0.0)
    last = replace(parse_metrics(PAGE.format(preemptions=50 + preempted, **settings)), time_s=6.0)
    seen = diagnose_metrics([first, last])
    assert seen.verdict.startswith(verdict)
    assert f"{round(1000 * usage):,} of 1,000 blocks of 16 tokens" in seen.facts[0]
    assert "which request took whose blocks, and when" in seen.unknown
    assert seen.to_record.startswith("KVSIM_RECORD=runs/mine vllm serve m --scheduler-cls kvsim.capture.vllm.")


@pytest.mark.parametrize(
    ("waiting", "deferred", "verdict"),
    [
        ((0, 0, 3), 0, "3 requests wait now although 60 % of the pool is free, and none did in 2 of 3 looks: nothing "),
        ((3, 1, 3), 0, "3 requests wait although 60 % of the pool is free: a limit of the scheduler "),
        ((3, 4, 5), 2, "3 requests wait although 60 % of the pool is free: a limit of the scheduler "),
        ((2, 2, 2), 2, "2 requests wait for something else than memory: "),
        ((3, 3, 0), 0, "Nothing waits and nothing is preempted now."),
    ],
)  # fmt: skip
def test_only_who_waits_at_every_look_is_held_back(waiting: tuple[int, ...], deferred: int, verdict: str) -> None:
    by_reason = f'vllm:num_requests_waiting_by_reason{{engine="0",reason="deferred"}} {deferred}\n'
    looks = [
        parse_metrics(PAGE.format(usage=0.4, waiting=each, preemptions=0, finished=9) + by_reason, float(time_s))
        for time_s, each in enumerate(waiting)
    ]
    assert diagnose_metrics(looks).verdict.startswith(verdict)


def test_metrics_without_a_hit_name_the_block_that_prompts_should_share() -> None:
    page = PAGE.format(usage=0.4, waiting=0, preemptions=0, finished=9)
    counts = "vllm:prefix_cache_queries_total{{engine='0'}} {}\nvllm:prefix_cache_hits_total{{engine='0'}} {}\n"
    looks = [
        [parse_metrics(page + counts.replace("'", '"').format(queried, hits), time_s) for time_s, queried, hits in each]
        for each in (((0.0, 100, 0), (6.0, 900, 0)), ((0.0, 100, 0), (6.0, 900, 80)))
    ]
    assert diagnose_metrics(looks[0]).facts[-1] == (
        "0 % of prompt tokens were found in the prefix cache: no prompt begins with the same full block of 16 tokens "
        "as an earlier one, or that block was evicted before"
    )
    assert diagnose_metrics(looks[1]).facts[-1] == "10 % of prompt tokens were found in the prefix cache"


def test_a_single_look_knows_no_rate() -> None:
    seen = diagnose_metrics([parse_metrics(PAGE.format(usage=0.2, waiting=0, preemptions=50, finished=0), 0.0)])
    assert "since the server started. Look for longer." in seen.verdict
    assert seen.as_dict()["preemptions_per_min"] is None


def test_at_once_arrivals_are_kept() -> None:
    work = generate(4, arrivals=AllAtOnce(), prompt=Fixed(tokens=30), output=Fixed(tokens=5), seed=0)
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    machine = Machine(gpu=gpu, model=model, kv_bytes=99 << 21, step_time=step_times(gpu, model, "vllm"))
    load = load_of(simulate(work, Paged(scheduler=ContinuousSettings(max_model_len=600)), machine))
    assert load.workload.arrival_s.tolist() == [0.0] * 4
    assert load.rate_per_s is None


RECORDED = REPOSITORY / "benchmarks" / "recordings" / "llama-3-8b"


def test_the_effect_of_a_real_remedy_was_predicted_from_the_recording_without_it() -> None:
    """A Llama-3-8B on an H200 with bursts short of memory, recorded with 0.16 and with 0.18 of the GPU's memory."""
    before, after = read(RECORDED / "without"), read(RECORDED / "memory")
    server, load = server_of(before), load_of(before)
    assert server.pace.host == pytest.approx(0.92, abs=0.05), "its host is a little faster than the one in the middle"
    assert server.num_blocks is None, "its pool is what its settings leave"
    changed = replace(server, gpu_memory_utilization=0.18)
    [predicted] = INTERPRETED.outcomes([(changed, load, 1.0)])
    measured = outcome_of(load, [Measured.of(after)], changed.machine())
    assert predicted.num_blocks == (after.meta.pool.num_units or 0) + 1
    assert measured.output_tokens_per_s == pytest.approx(predicted.output_tokens_per_s, rel=0.01)
    assert measured.num_preemptions < 0.25 * summarize(before).num_preemptions
    for name, (low, high) in INTERPRETED.band(changed, load, predicted).items():
        if name != "ttft_p99_s":  # a burst more or less of preemptions decides it
            assert low <= figures_of(measured)[name] <= high, name
