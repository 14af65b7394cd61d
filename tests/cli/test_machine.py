"""The flags that name a machine: models from files, types of weights and cache, GPUs that share a model."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.cli import main

Size = Callable[..., dict[str, Any]]
Complaint = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
FEW = ("--num-requests", "20", "--json")


@pytest.fixture
def size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Size:
    """Run a command with --json and return its document; the first argument may name another command than size."""

    def run(*arguments: str) -> dict[str, Any]:
        words = arguments if arguments[0] in ("run", "compare") else ("size", *arguments)
        monkeypatch.setattr(sys, "argv", ["kvsim", *words, "--json"])
        with contextlib.suppress(SystemExit):
            main()
        document = json.loads(capsys.readouterr().out)
        assert isinstance(document, dict)
        return document

    return run


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Complaint:
    def run(*arguments: str, code: int) -> str:
        monkeypatch.setattr(sys, "argv", ["kvsim", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        message = capsys.readouterr().err
        assert exit_.value.code == code, message
        assert message.startswith("kvsim: ")
        assert message.count("\n") == 1
        return message

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "my-llama"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(LLAMA))
    return home


def test_a_config_json_and_its_folder_are_the_listed_model(size: Size, folder: Path) -> None:
    listed = size("--model", "Meta-Llama-3-8B-Instruct", "--gpu", "H200")
    for path in (folder, folder / "config.json"):
        own = size("--model", str(path), "--gpu", "H200")
        assert own["model"] == "my-llama"
        assert {key: own[key] for key in own if key not in ("model", "terms")} == {
            key: listed[key] for key in listed if key not in ("model", "terms")
        }


def test_types_and_parallel_sizes_change_what_they_should(size: Size) -> None:
    machine = ("--model", "Llama-3.1-8B", "--gpu", "H100", "--kv-gib", "10")
    plain = size(*machine)
    assert size(*machine, "--kv-cache-dtype", "fp8")["num_blocks"] == 2 * plain["num_blocks"]
    assert size(*machine, "--tensor-parallel-size", "2")["num_blocks"] == 2 * plain["num_blocks"]
    assert size(*machine, "--pipeline-parallel-size", "2")["num_blocks"] == 2 * plain["num_blocks"]
    assert size(*machine, "--block-size", "32")["bytes_per_block"] == 2 * plain["bytes_per_block"]
    machine = machine[:4]
    by_method = {
        method: next(
            term["bytes"] for term in size(*machine, "--quantization", method)["terms"] if term["label"] == "weights"
        )
        for method in ("none", "fp8", "awq")
    }
    embeddings = 2 * 2 * 128256 * 4096
    linear = -by_method["none"] - embeddings
    assert -by_method["fp8"] - embeddings == pytest.approx(linear / 2, rel=0.001)
    assert -by_method["awq"] - embeddings == pytest.approx(linear / 16 * 4.16, rel=0.001)


def test_steps_are_as_large_as_vllm_makes_them_on_the_gpu(size: Size) -> None:
    small, large = (size("--model", "Qwen3-0.6B", "--gpu", gpu) for gpu in ("L4", "H100"))
    activations = [next(term["why"] for term in it["terms"] if term["label"] == "activations") for it in (small, large)]
    assert "256 sequences" in activations[0] or "8,192 tokens" in activations[0]
    assert "1,024 sequences" in activations[1] or "16,384 tokens" in activations[1]
    served = size("--model", "Qwen3-8B", "--gpu", "H100", "--defaults", "server")
    assert served["num_blocks"] > size("--model", "Qwen3-8B", "--gpu", "H100")["num_blocks"], "steps of 8,192 tokens"


def test_flags_of_a_run_are_simulated_by_the_interface(complaint: Complaint, tmp_path: Path) -> None:
    picture = str(tmp_path / "x.svg")
    machine = ("--model", "gpt-oss-20b", "--gpu", "H100", "--screenshot", picture)
    message = complaint("tui", *machine, "--pipeline-parallel-size", "3", code=2)
    assert "take two stages, or synchronous scheduling" in message
    message = complaint("tui", *machine, "--swap-gib", "1", code=2)
    assert "this model has several KV-cache groups, so leave --swap-gib out" in message
    message = complaint("tui", "--num-requests", "5", "--model", "nothing", "--screenshot", picture, code=2)
    assert "there is no model 'nothing'" in message


@pytest.mark.parametrize(
    ("flags", "is_marked"),
    [(("--vllm", "0.26.0"), False), (("--vllm", "0.27.0"), True), ((), True), (("--num-blocks", "500"), False)],
)
def test_terms_that_nobody_has_measured_of_a_release_are_marked(
    size: Size, flags: tuple[str, ...], is_marked: bool
) -> None:
    unmeasured = size("--model", "Qwen3-8B", "--gpu", "H200", *flags)["unmeasured"]
    assert ["one difference of free memory" in sentence for sentence in unmeasured] == [True] * is_marked


@pytest.mark.parametrize(("most", "said"), [("64", " At most 64 run at once: --max-num-seqs."), ("256", "")])
def test_more_sequences_than_may_run_are_not_promised(type_command: Run, most: str, said: str) -> None:
    _, text, _ = type_command("size", "--gpu", "H100", "--model", "Qwen3-8B", "--max-num-seqs", most)
    first, *rows = text.splitlines()
    number = re.match(r"(\d+) sequences of 2,048 tokens fit at once, in [\d,]+ blocks\.", first)
    assert number is not None
    assert 64 < int(number[1]) < 256
    assert first[number.end() :] == said
    assert any(row.split()[:2] == ["sequences", number[1]] and "fit at once, 128 blocks each" in row for row in rows)


def test_windows_hold_more_than_full_layers_would(size: Size) -> None:
    machine = ("--model", "gemma-3-12b-it", "--gpu", "H200", "--tokens", "32000", "--kv-gib", "9000", "--oversize")
    grouped, full = size(*machine), size(*machine, "--disable-hybrid-kv-cache-manager")
    assert [group["kind"] for group in grouped["kv_cache_groups"]] == ["sliding_window"] * 5 + ["full"]
    assert [group["kind"] for group in full["kv_cache_groups"]] == ["full"]
    ratio = grouped["max_sequences"]["32000"] / full["max_sequences"]["32000"]
    assert ratio == pytest.approx(6 * 32000 / (32000 + 5 * 1040), rel=0.02)
    assert grouped["max_sequences_otherwise"] == {"windows_as_full_layers": full["max_sequences"]}
    assert full["max_sequences_otherwise"] == {}


def test_latents_that_were_divided_would_hold_so_many_times_as_much(size: Size) -> None:
    machine = ("--model", "DeepSeek-V3", "--gpu", "H200", "--tokens", "16000")
    whole = size(*machine, "--tensor-parallel-size", "8")
    blocks = whole["num_blocks"]
    assert whole["max_sequences"] == {"16000": (blocks - 1) // 1000}
    assert whole["max_sequences_otherwise"] == {"latents_divided": {"16000": (8 * blocks - 1) // 1000}}


def test_the_longest_sequence_that_fits_is_found_or_the_given_one_refused(size: Size, complaint: Complaint) -> None:
    machine = ("--model", "Qwen3-32B", "--gpu", "H100")
    found = size(*machine, "--max-model-len", "auto")
    assert found["max_model_len"] == found["num_blocks"] * 16 < 40960
    assert size(*machine, "--max-model-len", str(found["max_model_len"]))["max_concurrency"] == pytest.approx(1)
    message = complaint("size", *machine, "--max-model-len", "40960", code=1)
    assert f"--max-model-len {found['max_model_len']} would fit" in message
    assert size(*machine)["max_concurrency"] < 1


@pytest.mark.parametrize(
    "machine",
    [
        ("--tensor-parallel-size", "2"),
        ("--kv-cache-dtype", "fp8"),
        ("--quantization", "fp8"),
        ("--model", "DeepSeek-V2-Lite"),
    ],
    ids=" ".join,
)
def test_uniform_models_run_however_they_are_served(size: Size, machine: tuple[str, ...]) -> None:
    arguments = (*machine, "--num-blocks", "4000", "--max-model-len", "8192")
    summary = size("run", *arguments, "--num-requests", "5")
    assert json.dumps(summary).count("NaN") == 0


@pytest.mark.parametrize("model", ["gpt-oss-20b", "granite-4.0-h-350m", "DeepSeek-V3.2"])
def test_models_of_every_kind_of_layers_run(size: Size, model: str) -> None:
    arguments = ("--num-blocks", "4000", "--max-model-len", "8192", "--oversize", "--check", "--engine", "interpreted")
    summary = size("run", "--model", model, *arguments, "--num-requests", "3", "--prompt-tokens", "900")
    assert summary["num_finished"] == 3
    assert sum(summary["waste"]["pool_percent"].values()) == pytest.approx(100)


def test_what_cannot_be_simulated_yet_is_refused_in_a_sentence(complaint: Complaint) -> None:
    assert "28 recurrent layers" in complaint("run", "--model", "granite-4.0-h-350m", "--policy", "contiguous", code=2)
    offload = ("--vllm", "0.25.1", "--pipeline-parallel-size", "2", "--kv-offloading-size", "1")
    assert "native offload is modelled where one stage holds all layers" in complaint("run", *offload, code=2)
    profile = ("--pipeline-parallel-size", "2", "--profile", "vllm-h200-llama-3-8b")
    assert "needs those of its stages" in complaint("run", *profile, code=2)


@pytest.mark.parametrize("memory", [("--num-blocks", "100"), ("--kv-gib", "1"), ()], ids=" ".join)
def test_a_70b_model_does_not_run_on_one_h100_unless_one_insists(complaint: Complaint, memory: tuple[str, ...]) -> None:
    for command in ("run", "size"):
        message = complaint(command, "--model", "Llama-3.1-70B", "--gpu", "H100", *memory, code=1)
        assert "131.42 GiB on each H100 SXM" in message
        assert "--oversize allows it" in message


def test_one_can_insist(size: Size) -> None:
    machine = ("--model", "Llama-3.1-70B", "--gpu", "H100", "--num-blocks", "1000", "--oversize")
    assert size(*machine)["num_blocks"] == 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["FooForCausalLM"]}, "architectures = ['FooForCausalLM'], which kvsim does not know"),
        ({"architectures": None}, "architectures = [], which kvsim does not know"),
        ({"architectures": ["Zamba2ForCausalLM"]}, "hybrid_layer_ids, num_mem_blocks), for which kvsim has no rule"),
        (
            {"architectures": ["MiniMaxText01ForCausalLM"]},
            "zeros of attn_type_list), whose states have a type of their",
        ),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "several compression ratios (compress_ratios)"),
        ({"architectures": "Llama"}, "says architectures = 'Llama'; it must be a list of texts"),
        ({"num_hidden_layers": None}, "does not say num_hidden_layers"),
        ({"num_hidden_layers": 0}, "says num_hidden_layers = 0; it must be a whole number of at least 1"),
        ({"vocab_size": "many"}, "says vocab_size = 'many'"),
        ({"torch_dtype": "int3"}, "says torch_dtype = 'int3'"),
        ({"layer_types": ["full_attention"]}, "a list of 32 texts, one for every layer"),
        ({"layer_types": ["moon"] * 32}, "a list of full_attention and sliding_attention"),
        ({"sliding_window": -1}, "says sliding_window = -1"),
        (
            {"quantization_config": {"quant_method": "moon"}},
            "quant_method = 'moon'; it must be a method that kvsim knows",
        ),
        ({"quantization_config": 3}, "says quantization_config = 3"),
        ({"is_encoder_decoder": True}, "without cross attention"),
    ],
    ids=str,
)
def test_a_wrong_config_is_refused_by_field(
    complaint: Complaint, folder: Path, change: dict[str, object], words: str
) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | change))
    message = complaint("size", "--model", str(folder), "--gpu", "H200", code=2)
    assert words in message
    assert "config.json" in message


@pytest.mark.parametrize("text", ["", "[]", "nul", "{", "\x00", '"Llama"'])
def test_a_file_that_is_no_config_is_refused(complaint: Complaint, folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in complaint("size", "--model", str(folder), "--gpu", "H200", code=2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kv-cache-dtype", "int3"), "--kv-cache-dtype should be one of auto"),
        (("--quantization", "int3"), "--quantization should be one of none"),
        (("--tensor-parallel-size", "3"), "must divide the 32 attention heads"),
        (("--pipeline-parallel-size", "33"), "at most 32, the layers"),
        (("--max-model-len", "long"), "--max-model-len should be a whole number of at least 1, or auto, not long"),
        (("--num-blocks", "9", "--kv-gib", "1"), "say the same thing"),
        (("--tokens", "0"), "--tokens should be at least 1"),
        (("--tokens", str(10**30)), "--tokens should be at most"),
        (("--max-model-len", str(10**30)), "--max-model-len should be at most"),
        (("--max-num-seqs", "0"), "--max-num-seqs should be at least 1, not 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_flag_is_refused_by_name(complaint: Complaint, arguments: tuple[str, ...], words: str) -> None:
    assert words in complaint("size", "--model", "llama-3-8b", "--gpu", "H200", *arguments, code=2)
