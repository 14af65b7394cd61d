"""Figures about memory and preemption from other papers, posts, logs and pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.hardware import GIB, find_gpu
from kvsim.kv_groups import CacheSettings, bytes_per_block, cache_layout
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.published.figures import Figure, Row
from kvsim.simulation import Machine, simulate
from kvsim.sizing.budget import blocks_for
from kvsim.workload import AllAtOnce, Uniform, Workload, generate

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback

_KIB_PER_TOKEN = {"01-ai/Yi-6B": 64, "meta-llama/Meta-Llama-3-8B": 128, "01-ai/Yi-34B": 240}
_NUM_DRAWS = 4
_PREEMPTIONS_AT = {0.0: 1065, 0.02: 400, 0.05: 187, 0.10: 168, 0.15: 168}


def _kv_per_token(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    return [find_model(name).kv_bytes_per_token / 1024 for name in _KIB_PER_TOKEN]


def _llama_sequence(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    llama = find_model("huggyllama/llama-13b")
    return [llama.max_position_embeddings * llama.kv_bytes_per_token / 1e9]


def _a4000_tokens(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    return [16 * blocks_for(round(12.52 * GIB), find_model("ibm-granite/granite-4.0-350m"), 16)]


def _four_sequences(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    """Return the number of admitted sequences of five, and the unused percent of the memory."""
    longest, lengths = 16_384, [80, 50, 120, 30, 10]
    workload = Workload(arrival_s=[0.0] * len(lengths), prompt_tokens=lengths, output_tokens=[1] * len(lengths))
    model, gpu = find_model("huggyllama/llama-13b"), find_gpu("A4000")
    machine = Machine(
        gpu=gpu, model=model, kv_bytes=4 * longest * model.kv_bytes_per_token, step_time=step_times(gpu, model, "vllm")
    )
    policy = Contiguous(scheduler=ContinuousSettings(max_model_len=longest))
    first = simulate(workload, policy, machine).steps
    return [int(first.running[0]), 100 * (1 - int(first.prefill_tokens[0]) / (4 * longest))]


def _watermark(progress: ProgressCallback) -> list[float]:
    """Return the preemptions at each watermark, averaged over draws of the lengths.

    For this scheduler, a closed loop of 128 users equals a queue of all requests with at most 128 in the batch:
    requests never overtake, and preempted ones go first.
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
    for done, watermark in enumerate(_PREEMPTIONS_AT):
        progress(done, len(_PREEMPTIONS_AT))
        policy = Paged(scheduler=scheduler, cache=PagedSettings(enable_prefix_caching=False, watermark=watermark))
        preemptions = [simulate(workload, policy, machine).num_preemptions for workload in workloads]
        means.append(sum(preemptions) / len(preemptions))
    return means


def _held_bytes(model_name: str, num_tokens: int, *, uniform: bool) -> int:
    """Return the KV bytes of a sequence while it decodes; with `uniform`, as if no layer had a window."""
    model = find_model(model_name)
    settings = CacheSettings(max_model_len=num_tokens, uniform=uniform)
    [block_bytes] = bytes_per_block(model, settings)
    return cache_layout(model, settings).held_blocks(num_tokens) * block_bytes


def _gpt_oss(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    longest = find_model("gpt-oss-20b").max_position_embeddings
    grouped, uniform = (_held_bytes("gpt-oss-20b", longest, uniform=each) for each in (False, True))
    return [grouped / uniform]


ROWS = (
    Row(
        name="kv-per-token",
        title="Keys and values of one token",
        source="Prabhu et al., vAttention",
        band="exact",
        figures=tuple(Figure.exactly(name.rpartition("/")[2], kib, "KiB") for name, kib in _KIB_PER_TOKEN.items()),
        reproduce=_kv_per_token,
    ),
    Row(
        name="llama-sequence",
        title="Keys and values of the longest sequence of LLaMA-13B",
        source="vLLM's launch post, 2023",
        band="half of the last printed digit",
        figures=(Figure.within("LLaMA-13B, 2,048 tokens", 1.7, 0.05, "GB"),),
        reproduce=_llama_sequence,
    ),
    Row(
        name="a4000-log",
        title="Tokens that 12.52 GiB hold: granite-4.0-350m in float16",
        source="a vLLM log, RTX A4000: 468,736 tokens in 29,296 blocks of 16",
        band="187 tokens: the log prints the memory to 0.01 GiB, half of which is 187 tokens",
        figures=(Figure.within("tokens", 468_736, 187, "tokens"),),
        reproduce=_a4000_tokens,
    ),
    Row(
        name="four-sequences",
        title="10 GB, 2.5 GB reserved for each of five sequences of 80, 50, 120, 30 and some tokens",
        source="a blog post on vLLM, RTX A4000",
        band="four are admitted and the fifth is not; at least 98% holds no token",
        figures=(
            Figure.exactly("admitted", 4, "sequences"),
            Figure(label="unused", published=98, low=98, high=100, unit="%"),
        ),
        reproduce=_four_sequences,
        note="2.5 GB are 16,384 tokens, so the pool has 65,536 slots whatever the model.",
    ),
    Row(
        name="watermark",
        title="Preemptions by watermark: Qwen2.5-7B, 299,584 tokens, 450 prompts, 128 at once",
        source="vLLM pull request 44594: about 1000 tokens in and 5000 out (20% either way), GB200",
        band="20%: theirs is one draw of the lengths, ours the mean of four. Single draws of ours have a deviation of "
        "9%, so the difference has one of 10%, and stays below twice that",
        figures=tuple(
            Figure.near(f"{watermark:.0%}", preemptions, 0.2, "preemptions")
            for watermark, preemptions in _PREEMPTIONS_AT.items()
        ),
        reproduce=_watermark,
        note="A closed loop of 128 users, run as a queue of all requests with at most 128 in the batch. Roofline of "
        "the B200, which is the GPU of a GB200.",
    ),
    Row(
        name="windows",
        title="KV cache of gpt-oss with windows in every other layer, as a share of one without",
        source="Hugging Face blog, faster-transformers.md (its pull request 3069): halved as sequences grow",
        band="0.005: the windows themselves remain",
        figures=(Figure.within("131,072 tokens", 0.5, 0.005),),
        reproduce=_gpt_oss,
        note="gpt-oss-20b: 12 layers with a window of 128 tokens, 12 without; in blocks of 16 tokens.",
    ),
)
"""Published figures about memory from other sources than the PagedAttention paper."""
