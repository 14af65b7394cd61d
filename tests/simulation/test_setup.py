"""What is known of a run before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.hardware import find_gpu
from kvsim.machines import class_in, interval_in, step_times, untimed_in
from kvsim.models import find_model
from kvsim.policies import Paged, Policy, Radix
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import Machine
from kvsim.simulation.setup import Setup
from kvsim.workload import Workload, generate

GPU, MODEL = find_gpu("H200"), find_model("Meta-Llama-3-8B")
MACHINE = Machine(gpu=GPU, model=MODEL, kv_bytes=8 << 30, step_time=step_times(GPU, MODEL, "vllm"))
PLAIN = generate(20, prompt=30, output=5)
SUFFIXES = Paged(scheduler=ContinuousSettings(speculative_config='{"method": "suffix", "num_speculative_tokens": 3}'))
N_GRAMS = Paged(scheduler=ContinuousSettings(speculative_config='{"method": "ngram", "num_speculative_tokens": 3}'))
HEAD = Paged(
    scheduler=ContinuousSettings(
        speculative_config='{"method": "eagle3", "model": "a/head", "num_speculative_tokens": 3}', acceptance="0"
    )
)
ADAPTERS = Paged(scheduler=ContinuousSettings(enable_lora=True, max_loras=2))


@pytest.mark.parametrize(
    ("policy", "workload", "engine", "missing"),
    [
        (SUFFIXES, PLAIN, "vLLM with drafts", "drafting"),
        (N_GRAMS, PLAIN, "vLLM with drafts", ""),
        (HEAD, PLAIN, "vLLM with drafts", ""),
        (ADAPTERS, PLAIN.with_adapters(4, 1.0, 0), "vLLM with adapters", ""),
        (Radix(), PLAIN, "SGLang", "the pace of SGLang's host"),
    ],
)
def test_times_that_are_used_otherwise_have_no_error_of_vllms(
    policy: Policy, workload: Workload, engine: str, missing: str
) -> None:
    label = Setup.of(workload, policy, MACHINE, {}).times.label
    kind = class_in(label)
    assert kind is not None
    assert kind.engine == engine
    assert kind == replace(class_in(MACHINE.step_time.label), engine=engine)
    assert untimed_in(label) == missing
    assert interval_in(label) is None
    assert "error never measured" in label


def test_plain_times_keep_their_label() -> None:
    assert Setup.of(PLAIN, Paged(), MACHINE, {}).times.label == MACHINE.step_time.label
    assert interval_in(MACHINE.step_time.label) is not None
