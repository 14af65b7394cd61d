"""Shape of a model whose configuration kvsim cannot read, taken from vLLM's engine; here with vLLM's own specs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..forks import ROOT
from ..vllm_engine.install import RELEASES, missing, python_path

TYPES = {"auto": 2 * 128, "fp8": 128, "int8_per_token_head": 128 + 4, "nvfp4": 128 // 2 + 128 // 16}
"""Bytes of one key of 128 elements in the cache of vLLM 0.25.1, by its type: one float32 scale, or a byte for every 16
elements. Where the scales are depends on the release.
"""

SHAPE = """
import json, types, torch
import kvsim.conformance.vllm_driver  # without the parts of vLLM that need a GPU
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, get_kv_quant_mode
from kvsim.capture.kv_cache_specs import layout_of
from kvsim.capture.vllm import _shape

text = types.SimpleNamespace(
    num_hidden_layers=2, hidden_size=64, num_attention_heads=8, intermediate_size=8, vocab_size=9,
    max_position_embeddings=99, tie_word_embeddings=False,
)
model = types.SimpleNamespace(
    hf_text_config=text, hf_config=types.SimpleNamespace(to_dict=lambda: {"architectures": ["NobodyKnowsIt"]}),
    model="a-new-model", dtype=torch.bfloat16, max_model_len=99,
    get_total_num_kv_heads=lambda: 8, get_head_size=lambda: 128,
)
sizes = {}
for cache_dtype in ("auto", "fp8", "int8_per_token_head", "nvfp4"):
    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype=torch.bfloat16 if cache_dtype == "auto" else torch.uint8,
        kv_quant_mode=get_kv_quant_mode(cache_dtype),
    )
    tensor = types.SimpleNamespace(size=2 * spec.page_size_bytes * 10, shared_by=["0", "1"])
    config = types.SimpleNamespace(
        kv_cache_groups=[KVCacheGroupSpec(["0", "1"], spec)], kv_cache_tensors=[tensor], num_blocks=10
    )
    served = {"kv_cache_dtype": cache_dtype, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    shape = _shape(model, served, layout_of(config, 16))
    sizes[cache_dtype] = shape["kv_bytes_per_token"], 2 * spec.page_size_bytes / 16
print(json.dumps(sizes))
"""


@pytest.mark.parametrize("release", RELEASES)
def test_bytes_per_token_follow_the_cache_type_of_the_engine(
    release: str, interpreter_with_vllm: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    if reason := missing(release):
        pytest.skip(reason)
    (tmp_path / "shape.py").write_text(SHAPE)
    command = [*interpreter_with_vllm(release), str(tmp_path / "shape.py")]
    environment = os.environ | {"PYTHONPATH": python_path(release, ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert all(recorded == allocated for recorded, allocated in sizes.values())
    if release == "0.25.1":
        assert {name: size for name, (size, _) in sizes.items()} == {
            name: 2 * 2 * 8 * key_bytes for name, key_bytes in TYPES.items()
        }
