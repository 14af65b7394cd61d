"""Figures about memory and preemption from other papers, posts, logs and pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.hardware import GIB, find_gpu
from kvsim.kv_groups import CacheSettings, bytes_per_block, cache_layout
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import Machine, simulate
from kvsim.sizing.budget import blocks_for
from kvsim.workload import AllAtOnce, Uniform, Workload, generate

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback

_MODELS = ("01-ai/Yi-6B", "meta-llama/Meta-Llama-3-8B", "01-ai/Yi-34B")
_NUM_DRAWS = 4
_WATERMARKS = (0.0, 0.02, 0.05, 0.10, 0.15)


def _kv_per_token(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    return [find_model(name).kv_bytes_per_token / 1024 for name in _MODELS]


def _llama_sequence(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    llama = find_model("huggyllama/llama-13b")
    return [llama.max_position_embeddings * llama.kv_bytes_per_token / 1e9]


def _a4000_tokens(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    return [16 * blocks_for(round(12.52 * GIB), find_model("ibm-granite/granite-4.0-350m"), 16)]


def _four_sequences(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    """Return how many of five sequences are admitted, and the percentage of the memory that is not used."""
    longest, lengths = 16_384, [80, 50, 120, 30, 10]
    workload = Workload(arrival_s=[0.0] * len(lengths), prompt_tokens=lengths, output_tokens=[1] * len(lengths))
    model, gpu = find_model("huggyllama/llama-13b"), find_gpu("A4000")
    machine = Machine(
        gpu=gpu, model=model, kv_bytes=4 * longest * model.kv_bytes_per_token, step_time=step_times(gpu, model, "vllm")
    )
    policy = Contiguous(
        scheduler=ContinuousSettings(max_num_seqs=1024, max_num_batched_tokens=16384, max_model_len=longest)
    )
    first = simulate(workload, policy, machine).steps
    return [int(first.running[0]), 100 * (1 - int(first.prefill_tokens[0]) / (4 * longest))]


def _watermark(progress: ProgressCallback) -> list[float]:
    """Return the number of preemptions with each watermark, averaged over draws of the lengths.

    For this scheduler, 128 users in a closed loop equal a queue of all requests with at most 128 in the batch, because
    requests never overtake each other, and preempted ones go first.
    """
    model, gpu = find_model("Qwen/Qwen2.5-7B-Instruct"), find_gpu("B200")
    kv_bytes, times = 299_584 * model.kv_bytes_per_token, step_times(gpu, model, "vllm")
    machine = Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=times)
    scheduler = ContinuousSettings(max_num_seqs=128, max_num_batched_tokens=8192, max_model_len=8192)
    prompt, output = Uniform(low=800, high=1200), Uniform(low=4000, high=6000)
    workloads = [
        generate(450, arrivals=AllAtOnce(), prompt=prompt, output=output, seed=seed) for seed in range(_NUM_DRAWS)
    ]
    means = []
    for done, watermark in enumerate(_WATERMARKS):
        progress(done, len(_WATERMARKS))
        policy = Paged(scheduler=scheduler, cache=PagedSettings(enable_prefix_caching=False, watermark=watermark))
        preemptions = [simulate(workload, policy, machine).num_preemptions for workload in workloads]
        means.append(sum(preemptions) / len(preemptions))
    return means


def _held_bytes(model_name: str, num_tokens: int, *, uniform: bool) -> int:
    """Return the KV bytes that a sequence of `num_tokens` holds while it decodes.

    With `uniform`, windows count as if they kept every token.
    """
    model = find_model(model_name)
    settings = CacheSettings(max_model_len=num_tokens, uniform=uniform)
    [block_bytes] = bytes_per_block(model, settings)
    return cache_layout(model, settings).held_blocks(num_tokens) * block_bytes


def _gpt_oss(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    longest = find_model("gpt-oss-20b").max_position_embeddings
    grouped, uniform = (_held_bytes("gpt-oss-20b", longest, uniform=each) for each in (False, True))
    return [grouped / uniform]


REPRODUCE = {
    "kv-per-token": _kv_per_token,
    "llama-sequence": _llama_sequence,
    "a4000-log": _a4000_tokens,
    "four-sequences": _four_sequences,
    "watermark": _watermark,
    "windows": _gpt_oss,
}
"""Functions that simulate figures about memory from sources other than the PagedAttention paper, by row name."""
