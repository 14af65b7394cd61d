"""Block counts against those that real engines printed at their start; `docs/sizing.md` has the same in a table."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvsim.hardware import find_gpu
from kvsim.models import Model, find_model
from kvsim.models.huggingface import from_fields
from kvsim.sizing.budget import Budget, plan_budget
from kvsim.sizing.pool_settings import PoolSettings

DENSE_LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "q_lora_rank": None, "n_routed_experts": None,
    "n_shared_experts": None, "moe_intermediate_size": 1408, "first_k_dense_replace": 27,
}  # fmt: skip
"""DeepSeek-V2-Lite with a dense feed-forward network in every layer."""
WINDOWS = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 10240,
    "vocab_size": 32768, "max_position_embeddings": 32768, "sliding_window": 1024,
    "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(34)],
    "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
SHAPES = {"DeepSeek-V2-Lite, dense": DENSE_LATENT, "Gemma-3-4B's shape, 32,768 words": WINDOWS}
"""Models that are not listed."""


class Start(NamedTuple):
    """What was started, and how many blocks it printed."""

    name: str
    gpu: str
    share: float
    num_blocks: int
    served: dict[str, Any]
    max_num_batched_tokens: int = 16384
    max_num_seqs: int = 1024


STARTS = (
    Start("granite-4.0-350m", "H200", 0.3, 94_581, {}),
    Start("Llama-2-7b-hf", "H200", 0.5, 7_123, {}),
    Start("Meta-Llama-3-8B", "H200", 0.5, 27_134, {}),
    Start("Meta-Llama-3-8B", "H200", 0.9, 55_735, {}),
    Start("Meta-Llama-3-8B", "H200", 0.9, 56_080, {}, 8192),
    Start("Meta-Llama-3-8B", "H200", 0.85, 104_281, {"kv_cache_dtype": "fp8"}),
    Start("Meta-Llama-3-8B", "H200", 0.85, 112_381, {"tensor_parallel_size": 2}),
    Start("Qwen3-8B", "H100 SXM", 0.85, 22_863, {}),
    Start("Qwen3-8B", "H200", 0.85, 46_310, {}),
    Start("gemma-3-4b-it", "H100 SXM", 0.85, 190_791, {}),
    Start("gemma-3-4b-it", "H200", 0.85, 359_640, {}),
    Start("granite-4.0-h-micro", "H200", 0.85, 27_494, {}),
    Start("DeepSeek-V2-Lite, dense", "H200", 0.85, 242_495, {}),
    Start("Qwen3-30B-A3B", "H200", 0.85, 41_009, {}, 8192, 256),
    Start("Qwen3-30B-A3B", "H100 SXM", 0.92, 28_047, {"data_parallel_size": 2, "enable_expert_parallel": True}, 2048,
          128),
    Start("Meta-Llama-3-8B", "H200", 0.8, 105_764, {"pipeline_parallel_size": 2}, 2048, 256),
    Start("Gemma-3-4B's shape, 32,768 words", "H200", 0.8, 591_681, {"pipeline_parallel_size": 2}, 2048, 256),
)  # fmt: skip
"""Starts of vLLM 0.25.1, in process but for the ranks, with random weights; Gemma 3 as text alone."""


def model_of(start: Start) -> Model:
    if start.name in SHAPES:
        model = from_fields(SHAPES[start.name], name=start.name, where="this file")
    else:
        model = replace(find_model(start.name), num_encoder_parameters=0)
    return model.served(**start.served)


def planned(start: Start) -> Budget:
    return plan_budget(
        find_gpu(start.gpu),
        model_of(start),
        PoolSettings(
            gpu_memory_utilization=start.share,
            max_num_batched_tokens=start.max_num_batched_tokens,
            max_num_seqs=start.max_num_seqs,
            max_model_len=8192,
            oversize=True,
        ),
    )


@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"{start.name}-{start.gpu}-{start.num_blocks}")
def test_a_start_is_met_within_half_a_percent(start: Start) -> None:
    assert planned(start).num_blocks == pytest.approx(start.num_blocks, rel=0.005)


def test_the_documentation_says_how_far_off_each_is(repository: Path) -> None:
    text = (repository / "docs" / "sizing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (\S.*?) \| .*? \| ([\d,]+) \| ([\d,]+) \| ([+-][\d.]+) % \|$", text, re.MULTILINE)
    said = {
        int(measured.replace(",", "")): (int(ours.replace(",", "")), float(off)) for *_, measured, ours, off in rows
    }
    for start in STARTS:
        ours = planned(start).num_blocks
        assert said[start.num_blocks] == (ours, round(100 * (ours / start.num_blocks - 1), 2) + 0.0), start.name
