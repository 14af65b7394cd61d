"""Contexts that GPUs divide, and servers that sleep: the same bytes of a block hold more tokens, and memory leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import UsageError
from kvsim.kv_groups import CacheSettings, cache_layout
from kvsim.models import find_model

V3, V32 = "DeepSeek-V3", "DeepSeek-V3.2"


def sized(*flags: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["size", *flags, "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.output))


@pytest.mark.parametrize(("name", "size"), [(V3, 8), (V32, 4)])
def test_divided_contexts_hold_more_tokens_in_as_many_blocks_of_as_many_bytes(name: str, size: int) -> None:
    whole = find_model(name).served(tensor_parallel_size=8)
    settings = CacheSettings(max_model_len=whole.max_position_embeddings)
    one, all_of = (
        cache_layout(whole.served(decode_context_parallel_size=number), settings).groups[0] for number in (1, size)
    )
    assert all_of.block_size == size * one.block_size
    assert all_of.page_bytes == one.page_bytes
    flags = ("--model", name, "--gpu", "8xH200", "--num-blocks", "5000", "--oversize")
    alone, divided = sized(*flags), sized(*flags, "-dcp", str(size))
    assert divided["gpu_kv_cache_size_tokens"] == size * alone["gpu_kv_cache_size_tokens"]
    assert divided["bytes_per_block"] == alone["bytes_per_block"]


def test_sparse_attention_has_two_caches_in_one_group() -> None:
    """Blocks of 64 tokens: a latent of 576 elements in 16 bits, or 656 bytes in fp8, and an indexer's key of 132."""
    for dtype, latent in (("auto", 1152), ("fp8", 656)):
        model = find_model(V32).served(kv_cache_dtype=dtype)
        layout = cache_layout(model, CacheSettings(max_model_len=4096))
        assert len(layout.groups) == 1
        assert layout.bytes_per_block == 61 * 64 * (latent + 132)


@pytest.mark.parametrize(
    ("name", "tensor", "size", "words"),
    [
        ("Meta-Llama-3-8B", 8, 2, "at most 1, because .* has 8 KV heads"),
        (V3, 8, 3, "must divide --tensor-parallel-size, which is 8"),
        (V32, 8, 8, "must divide the 132 and 1,152 bytes of a layer"),
        ("google/gemma-2-9b-it", 8, 2, "models whose layers all keep every token"),
    ],
)
def test_contexts_that_cannot_be_divided_are_refused(name: str, tensor: int, size: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_model(name).served(tensor_parallel_size=tensor, decode_context_parallel_size=size)


def test_a_run_has_blocks_of_all_the_gpus_that_divide_contexts(tmp_path: Any) -> None:
    flags = ["--model", V3, "--gpu", "8xH200", "-dcp", "4", "--num-requests", "4", "--prompt-tokens", "1000"]
    flags += ["--arrivals", "at-once", "--output-tokens", "20", "--kv-gib", "4", "--check", "--oversize"]
    done = CliRunner().invoke(cli, ["run", *flags, "-o", str(tmp_path / "r"), "--json"])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(cli, ["info", str(tmp_path / "r"), "--check"])
    assert checked.exit_code == 0, checked.output
    meta = json.loads((tmp_path / "r" / "meta.json").read_text())
    assert meta["pool"]["unit_tokens"] % 4 == 0
    assert "divided contexts" in meta["engine"]["step_time"]


def test_sleep_says_what_leaves_and_what_stays() -> None:
    flags = ("--model", "Meta-Llama-3-8B", "--gpu", "H100")
    awake, document = sized(*flags), sized(*flags, "--enable-sleep-mode")
    asleep = document["asleep"]
    terms = {term["label"]: -term["bytes"] for term in document["terms"]}
    assert document["num_blocks"] == awake["num_blocks"]
    for level, host in (("1", terms["weights"]), ("2", 0)):
        assert asleep[level]["leaves_bytes"] == document["kv_bytes"] + terms["weights"]
        assert asleep[level]["host_bytes"] == host
        assert asleep[level]["stays_bytes"] == terms["outside PyTorch"] + terms["captured graphs"]
    shown = CliRunner().invoke(cli, ["size", *flags, "--enable-sleep-mode"]).output
    assert "asleep, level 1" in shown
    assert "the weights are loaded again to wake" in " ".join(shown.split())
