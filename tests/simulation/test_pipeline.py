"""A pipeline of stages: what is in flight, when the stages work, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvsim.calibration.observed import observe
from kvsim.calibration.prior import vllm_prior
from kvsim.cli.answer import failure_notes, setting_rows
from kvsim.conformance import verify_recording
from kvsim.engine.coefficients import no_times
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, step_times
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Pipeline, Static
from kvsim.policies.releases import OFFLOAD_RELEASE
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.simulation import Machine, measure, simulate
from kvsim.steptime import Staged, reduce
from kvsim.workload import Workload

from ..conformance.modes import COMPILED

GPU, LLAMA = find_gpu("H200"), find_model("Meta-Llama-3-8B")
MIXTRAL = find_model("Mixtral-8x7B")
SHORT_S, LONG_S, HANDED_OVER_S = 0.01, 0.02, 0.001


def machine(stages: int, *, kv_tokens: int = 4_000, model: Any = LLAMA) -> Machine:
    served = model.served(pipeline_parallel_size=stages)
    return Machine(
        gpu=GPU,
        model=served,
        kv_bytes=kv_tokens * served.kv_bytes_per_token,
        step_time=step_times(GPU, served, "vllm"),
    )


def two_stages() -> Machine:
    """A machine whose second stage takes twice as long as its first, whatever a step holds."""
    first = replace(no_times(), step_s=SHORT_S)
    second = replace(no_times(), step_s=LONG_S, handed_over_s=HANDED_OVER_S)
    return replace(machine(2), step_time=Staged(label="two stages", calibrated=False, stages=(first, second)))


def requests(*arrival_s: float, prompt: int = 8, output: int = 40) -> Workload:
    size = len(arrival_s)
    return Workload(
        arrival_s=np.array(arrival_s), prompt_tokens=np.full(size, prompt), output_tokens=np.full(size, output)
    )


def paged(**settings: Any) -> Paged:
    return Paged(scheduler=ContinuousSettings(**{"max_num_seqs": 16, "max_model_len": 2048} | settings))


def tpot_s(measured: Any) -> Any:
    rows = measured.requests
    return (rows.finished_s - rows.first_token_s) / (rows.output_tokens - 1)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_request_alone_waits_for_all_stages_at_every_token(ahead: bool) -> None:
    measured = measure(requests(0.0), paged(async_scheduling=ahead), two_stages())
    assert tpot_s(measured) == pytest.approx(SHORT_S + HANDED_OVER_S + LONG_S, rel=1e-3)


@pytest.mark.parametrize("ahead", [True, False])
def test_two_steps_in_flight_keep_the_slowest_stage_busy(ahead: bool) -> None:
    # Both prompts do not fit one step, and the sequences stay apart.
    policy = paged(async_scheduling=ahead, max_num_batched_tokens=8)
    measured = measure(requests(0.0, 0.0), policy, two_stages())
    assert tpot_s(measured) == pytest.approx(2 * LONG_S, rel=0.02)


def test_a_synchronous_scheduler_looks_at_arrivals_when_a_step_has_ended_and_keeps_who_comes_together() -> None:
    measured = measure(requests(0.0, 0.005), paged(async_scheduling=False), two_stages())
    assert tpot_s(measured) == pytest.approx(SHORT_S + HANDED_OVER_S + LONG_S, rel=1e-3)


def test_workers_of_a_synchronous_pipeline_await_every_step() -> None:
    worker_s, times = 0.005, two_stages().step_time
    assert isinstance(times, Staged)
    stages = tuple(replace(stage, worker_step_s=worker_s) for stage in times.stages)
    slow = replace(two_stages(), step_time=replace(times, stages=stages))
    alone = measure(requests(0.0), paged(async_scheduling=False), slow)
    passed_s = SHORT_S + HANDED_OVER_S + LONG_S
    assert np.all(tpot_s(alone) > passed_s + 0.3 * worker_s)
    assert np.all(tpot_s(alone) < passed_s + 0.5 * worker_s)  # the rest of its work is behind the step
    apart = measure(requests(0.0, 0.0), paged(async_scheduling=False, max_num_batched_tokens=8), slow)
    assert tpot_s(apart) == pytest.approx(2 * (LONG_S + worker_s), rel=0.02)


def test_stages_take_turns_where_runner_v1_awaits_every_token() -> None:
    slow = replace(two_stages(), model=MIXTRAL.served(pipeline_parallel_size=2))
    measured = measure(requests(0.0, 0.005), paged(), replace(slow, kv_bytes=1 << 32))
    assert tpot_s(measured) == pytest.approx(SHORT_S + HANDED_OVER_S + LONG_S, rel=0.02)


def test_a_static_batch_passes_one_stage_behind_the_other() -> None:
    policy = Static(scheduler=StaticSettings(batch_size=2, max_model_len=2048))
    measured = measure(requests(0.0, 0.0), policy, two_stages())
    assert tpot_s(measured) == pytest.approx(SHORT_S + HANDED_OVER_S + LONG_S, rel=1e-3)


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize(("stages", "ahead"), [(2, True), (3, True), (3, False)])
def test_a_recording_of_a_pipeline_verifies(stages: int, ahead: bool, compiled: bool) -> None:
    rng = np.random.default_rng(stages)
    workload = Workload(
        arrival_s=np.cumsum(rng.exponential(0.004, 60)),
        prompt_tokens=rng.integers(4, 300, 60),
        output_tokens=rng.integers(1, 90, 60),
        prefix_group=rng.integers(0, 3, 60),
        prefix_tokens=np.full(60, 3),
        prefix_names=["a", "b", "c"],
    )
    policy = paged(async_scheduling=ahead, max_num_batched_tokens=256)
    engine: Any = "compiled" if compiled else "interpreted"
    recording = simulate(workload, policy, machine(stages, kv_tokens=3_000), engine=engine, check=not compiled)
    assert recording.num_preemptions > 0
    assert recording.meta.engine["pipeline_parallel_size"] == stages
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_steps == len(recording.steps)


def test_where_vllm_itself_would_end_the_recording_and_the_answer_say_so() -> None:
    rng, size = np.random.default_rng(5), 24
    workload = Workload(
        arrival_s=np.cumsum(rng.exponential(0.004, size)),
        prompt_tokens=rng.integers(60, 100, size),
        output_tokens=rng.integers(100, 300, size),
        prefix_group=rng.integers(0, 2, size),
        prefix_tokens=np.full(size, 48),
        prefix_names=["a", "b"],
    )
    policy = paged(max_num_batched_tokens=512, vllm="0.25.1")
    recording = simulate(workload, policy, machine(2, kv_tokens=2_000), engine="interpreted", check=True)
    assert recording.meta.engine["vllm_failures"] == 1
    [note] = failure_notes([recording.meta])
    assert "vLLM 0.25.1 itself would have ended once with an AssertionError" in note
    assert verify_recording(recording).equal
    roomy = simulate(workload, policy, machine(2, kv_tokens=9_000), engine="interpreted")
    assert failure_notes([roomy.meta]) == []
    newer = paged(max_num_batched_tokens=512, vllm="0.27.0")
    last = simulate(workload, newer, machine(2, kv_tokens=2_000), engine="interpreted")
    assert failure_notes([last.meta]) == []


@pytest.mark.parametrize(
    ("policy", "stages", "model", "why"),
    [
        (
            Paged(scheduler=ContinuousSettings(vllm=OFFLOAD_RELEASE), cache=PagedSettings(kv_offloading_size=1.0)),
            2,
            LLAMA,
            "native offload is modelled",
        ),
        (Paged(cache=PagedSettings(swap_gib=1.0)), 2, LLAMA, "swapping"),
        (
            Paged(scheduler=ContinuousSettings(speculative_config={"method": "ngram", "num_speculative_tokens": 2})),
            2,
            LLAMA,
            "speculative",
        ),
        (Paged(), 3, MIXTRAL, "runner V1"),
    ],
)
def test_what_is_modelled_on_one_stage_alone_is_refused(policy: Any, stages: int, model: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        measure(requests(0.0), policy, machine(stages, kv_tokens=20_000, model=model))


def test_a_recording_of_a_pipeline_is_not_fitted_to() -> None:
    recording = simulate(requests(0.0), paged(), machine(2))
    with pytest.raises(UsageError, match="is of a pipeline"):
        observe(recording)


def test_the_stages_are_told_where_a_pool_is() -> None:
    one, two = (simulate(requests(0.0), paged(), machine(stages)).meta for stages in (1, 2))
    assert [dict(setting_rows(meta, ""))["KV cache"].endswith("on the 2 stages together") for meta in (one, two)] == [
        False,
        True,
    ]
    assert "2 x H200" in dict(setting_rows(two, ""))["server"]


def test_times_of_a_whole_model_are_refused_for_stages() -> None:
    whole = replace(machine(2), step_time=vllm_prior(GPU, LLAMA))
    for policy in (Paged(), Contiguous()):
        with pytest.raises(UsageError, match="2 pipeline stages"):
            measure(requests(0.0), policy, whole)


def test_a_stage_has_its_share_of_a_model() -> None:
    whole, staged = reduce(card_of(GPU, 2), LLAMA, num_processors=GPU.num_processors), machine(4).step_time
    assert isinstance(staged, Staged)
    assert "stages by a formula" in staged.label
    assert "4 stages of 1 GPU" in staged.label
    assert not staged.calibrated
    weights_s = [stage.weights_s for stage in staged.stages]
    assert weights_s == pytest.approx([weights_s[0]] * 4)
    assert sum(weights_s) == pytest.approx(whole.weights_s, rel=0.01)
    first, last = staged.stages[0], staged.stages[-1]
    assert first.step_s < last.step_s  # the output projection
    assert first.handed_over_s == 0 < last.handed_over_s


@pytest.mark.parametrize(
    ("stages", "runner_v2", "ahead", "in_flight", "interval", "beyond"),
    [
        (1, True, False, 1, 1, 0),
        (1, True, True, 2, 1, 1),
        (1, False, True, 2, 1, 1),
        (2, True, False, 2, 1, 0),
        (2, True, True, 3, 2, 1),
        (2, False, True, 2, 1, 1),
        (4, True, True, 5, 4, 1),
        (4, False, True, 4, 1, 3),
    ],
)
def test_what_is_in_flight_is_what_vllm_says(
    stages: int, runner_v2: bool, ahead: bool, in_flight: int, interval: int, beyond: int
) -> None:
    pipeline = Pipeline(pipeline_parallel_size=stages, v2_model_runner=runner_v2)
    assert pipeline.most_in_flight(async_scheduling=ahead) == in_flight
    assert pipeline.decode_interval(async_scheduling=ahead) == interval
    assert pipeline.tokens_ahead(async_scheduling=ahead) == beyond


def test_the_runner_is_chosen_by_the_model() -> None:
    runners = {name: Pipeline.of(find_model(name)).v2_model_runner for name in ("Llama-3-8B", "gpt-oss-20b")}
    runners |= {
        name: Pipeline.of(find_model(name)).v2_model_runner for name in ("Qwen3-Next-80B-A3B-Instruct", "Gemma-3-27B")
    }
    assert runners == {
        "Llama-3-8B": True,
        "gpt-oss-20b": False,
        "Qwen3-Next-80B-A3B-Instruct": False,
        "Gemma-3-27B": True,
    }
