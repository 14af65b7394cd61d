"""Throughput and latency from posts and guides, and predictions for the same GPUs.

Nothing is fitted to these figures. Step times are the defaults for the GPU and the model. On GPUs other than the H200,
they are computed from the data sheet. No post describes its host, so a typical host is assumed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvsim.hardware import GIB, find_gpu
from kvsim.importers import workload_of
from kvsim.machines import step_times
from kvsim.metrics import summarize
from kvsim.models import find_model, find_quantization
from kvsim.policies import Paged, Static
from kvsim.policies.settings import ContinuousSettings, StaticSettings
from kvsim.recording import find, read
from kvsim.simulation import Machine, simulate
from kvsim.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.models import Model
    from kvsim.policies import Policy
    from kvsim.published.figures import ProgressCallback

_GRANITE = "ibm-granite/granite-4.0-350m"
_ONE_BY_ONE = 20
"""Number of questions, of 500, that were recorded one by one. The others are assumed to have the same rate."""
_THREE_WAYS = ("hf-h200-granite-350m-one-by-one", "hf-h200-granite-350m-batch500", "vllm-h200-granite-350m-gsm8k")
"""Recordings on an H200: requests one by one, in a padded batch of 500, and with vLLM.

Each recording gives the speed of the host for the simulation of its way of serving.
"""
_H200_KV_BYTES = 40 * GIB
"""Bytes of KV cache, as on the recorded machine: more than 500 answers need."""


def _questions(count: int) -> Workload:
    """Return the first `count` GSM8K questions with the recorded lengths. All arrive at second 0."""
    asked = workload_of(read(find("hf-h200-granite-350m-batch500")))
    return Workload(
        arrival_s=np.zeros(count),
        prompt_tokens=asked.prompt_tokens[:count],
        output_tokens=asked.output_tokens[:count],
        name="gsm8k",
    )


def _batches_of(rows: int) -> Static:
    return Static(scheduler=StaticSettings(batch_size=rows, max_model_len=4096))


def _three_ways(
    progress: ProgressCallback, *, gpu_name: str, kv_bytes: int, scheduler: ContinuousSettings
) -> list[float]:
    gpu, model = find_gpu(gpu_name), find_model(_GRANITE)
    runs: list[tuple[str, Policy, int]] = [
        ("hf-dynamic", _batches_of(1), _ONE_BY_ONE),
        ("hf-dynamic", _batches_of(500), 500),
        ("vllm", Paged(scheduler=scheduler), 500),
    ]
    rates = []
    for done, ((engine, policy, count), recorded) in enumerate(zip(runs, _THREE_WAYS, strict=True)):
        progress(done, len(runs))
        times = step_times(gpu, model, engine, max_num_seqs=scheduler.max_num_seqs, recording=recorded)
        machine = Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=times)
        rates.append(summarize(simulate(_questions(count), policy, machine)).output_tokens_per_s)
    return rates


_QUESTION, _ANSWER = 100, 500
"""Assumed lengths of prompt and output in tokens, for a guide that states none."""


def _mistral_ceilings() -> list[float]:
    """Return upper bounds for the number of answers per second of an A100: with 1, 16 and 256 requests at a time, then
    with 256 and weights of 4 bits.

    Each step reads the weights once. The arithmetic has 16 bits in all cases.
    """
    gpu, model = find_gpu("A100-80G"), find_model("mistralai/Mistral-7B-Instruct-v0.3")
    quantized = model.served(quantization=find_quantization("awq"))
    computed = gpu.dense_flops / (model.flops_per_token * (_QUESTION + _ANSWER))
    runs = ((model, 1), (model, 16), (model, 256), (quantized, 256))
    streamed = (rows * gpu.bandwidth_bytes_per_s / weights.weight_bytes / _ANSWER for weights, rows in runs)
    return [min(rate, computed) for rate in streamed]


def _mistral(progress: ProgressCallback) -> list[float]:
    """Return the answers per second with 1, 16 and 256 requests at a time, then with 256 and weights of 4 bits."""
    gpu, model = find_gpu("A100-80G"), find_model("mistralai/Mistral-7B-Instruct-v0.3")
    quantized = model.served(quantization=find_quantization("awq"))
    paged = Paged(scheduler=ContinuousSettings(max_num_seqs=256, max_num_batched_tokens=16384, max_model_len=4096))
    runs: list[tuple[Model, Policy, int]] = [
        (model, _batches_of(1), 4),
        (model, _batches_of(16), 64),
        (model, paged, 1024),
        (quantized, paged, 1024),
    ]
    rates = []
    for done, (weights, policy, count) in enumerate(runs):
        progress(done, len(runs))
        workload = Workload(
            arrival_s=np.zeros(count),
            prompt_tokens=np.full(count, _QUESTION),
            output_tokens=np.full(count, _ANSWER),
            name="answers",
        )
        times = step_times(gpu, weights, "hf-dynamic" if isinstance(policy, Static) else "vllm")
        kv_bytes = round(0.9 * gpu.memory_bytes) - weights.weight_bytes
        machine = Machine(gpu=gpu, model=weights, kv_bytes=kv_bytes, step_time=times)
        rates.append(count / simulate(workload, policy, machine, users=256).duration_s)
    return rates


def _t4(progress: ProgressCallback) -> list[float]:
    """Return the seconds that 20 prompt and 256 output tokens take: with Hugging Face, and with vLLM."""
    gpu, model = find_gpu("T4"), find_model("meta-llama/Llama-2-7b-hf")
    workload = Workload(arrival_s=[0.0], prompt_tokens=[20], output_tokens=[256], name="one prompt")
    runs: list[tuple[str, Policy]] = [
        ("hf-dynamic", _batches_of(1)),
        ("vllm", Paged(scheduler=ContinuousSettings(max_model_len=1024))),
    ]
    seconds = []
    for done, (engine, policy) in enumerate(runs):
        progress(done, len(runs))
        machine = Machine(gpu=gpu, model=model, kv_bytes=GIB, step_time=step_times(gpu, model, engine))
        seconds.append(simulate(workload, policy, machine).duration_s)
    return seconds


REPRODUCE: dict[str, Callable[[ProgressCallback], list[float]]] = {
    "three-way": partial(
        _three_ways, gpu_name="H200", kv_bytes=_H200_KV_BYTES, scheduler=ContinuousSettings(max_model_len=4096)
    ),
    "a4000-speed": partial(
        _three_ways,
        gpu_name="RTX A4000",
        kv_bytes=round(12.52 * GIB),
        scheduler=ContinuousSettings(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=4096),
    ),
    "a100-answers": _mistral,
    "t4-one-prompt": _t4,
}
"""Functions that predict figures about speed, by the name of the row."""
CEILINGS = {"a100-answers": _mistral_ceilings}
"""Functions that return the upper bounds of a row's figures, by the name of the row."""
