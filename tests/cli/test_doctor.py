"""`kvsim doctor`: the lines about memory of a server's start-up log, as vLLM's and SGLang's releases write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run

ARGUMENTS = (
    "(EngineCore_DP0 pid=71) INFO 11-03 10:00:05 [core.py:77] Initializing a V1 LLM engine (v0.25.1) with config: "
    "model='Qwen/Qwen3-8B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, "
    "quantization=None, enforce_eager=False, kv_cache_dtype=auto, enable_prefix_caching=True"
)
VLLM = f"""
INFO 11-03 10:00:01 [utils.py:233] non-default args: {{'model': 'Qwen/Qwen3-8B', 'gpu_memory_utilization': 0.9}}
{ARGUMENTS}
\x1b[36m(EngineCore_DP0 pid=71)\x1b[0m INFO 11-03 [runner.py:4880] Model loading took 15.27 GiB memory and 5.3 seconds
(EngineCore_DP0 pid=71) INFO 11-03 10:00:25 [gpu_worker.py:441] Available KV cache memory: 50.00 GiB
(EngineCore_DP0 pid=71) INFO 11-03 [kv_cache_utils.py:1708] GPU KV cache size: 364,080 tokens
(EngineCore_DP0 pid=71) INFO 11-03 [kv_cache_utils.py:1710] Maximum concurrency for 32,768 tokens per request: 11.11x
(EngineCore_DP0 pid=71) INFO 11-03 10:00:35 [runner.py:6517] Graph capturing finished in 5 secs, took 0.62 GiB
"""
SGLANG = """
[2026-05-19 23:24:47] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2, mem_fraction_static=0.88)
[2026-05-19 23:24:50] Load weight begin. avail mem=78.60 GB
[2026-05-19 23:24:55] Load weight end. elapsed=5.1 s, type=Qwen3ForCausalLM, avail mem=70.90 GB, mem usage=7.70 GB.
[2026-05-19 23:24:56] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 843210, KV size: 57.90 GB
[2026-05-19 23:25:01] Capture target decode CUDA graph end. elapsed=5.01 s, mem usage=0.41 GB, avail mem=11.2 GB.
"""
TOO_LONG = (
    "To serve at least one request with the models's max seq len (221000), (10.12 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (5.59 GiB). Based on the available memory, the estimated maximum model "
    "length is 122080."
)


@pytest.fixture
def doctor(type_command: Run, tmp_path: Path) -> Run:
    def examine(text: str, *arguments: str) -> tuple[int, str, str]:
        (tmp_path / "server.log").write_text(text, encoding="utf-8")
        return type_command("doctor", "server.log", *arguments)

    return examine


def test_each_figure_stands_beside_the_own_one(doctor: Run) -> None:
    code, output, _ = doctor(VLLM, "--gpu", "H100", "--json")
    assert code == 0
    found = json.loads(output)
    assert (found["server"], found["release"]) == ("vllm", "0.25.1")
    assert found["settings"]["max_model_len"] == "32768"
    figures = found["figures"]
    assert set(figures) == {"weights", "graphs", "available", "tokens", "concurrency"}
    assert figures["available"]["log"] == 50 * 2**30
    assert figures["weights"]["line"] == 4
    assert figures["weights"]["kvsim"] == pytest.approx(figures["weights"]["log"], rel=0.01)
    assert figures["tokens"] == pytest.approx(figures["tokens"] | {"log": 364_080})
    blocks = figures["available"]["kvsim"] // (16 * 147_456)  # 36 layers, 8 heads of 128, keys and values, two bytes
    assert figures["tokens"]["kvsim"] == 16 * (blocks - 1) or figures["tokens"]["kvsim"] == 16 * blocks


def test_the_first_sentence_is_the_difference(doctor: Run) -> None:
    code, output, _ = doctor(VLLM, "--gpu", "H100")
    assert code == 0
    assert output.startswith("The cache has 50.00 GiB; kvsim computes ")
    assert "maximum concurrency" in output


def test_a_flag_replaces_the_logs_setting(doctor: Run) -> None:
    own = [json.loads(doctor(VLLM, "--gpu", "H100", "--json", *more)[1]) for more in ((), ("--max-model-len", "16384"))]
    assert own[1]["figures"]["concurrency"]["kvsim"] == pytest.approx(2 * own[0]["figures"]["concurrency"]["kvsim"])


def test_a_stated_number_of_blocks_and_a_share_in_a_hint_are_used(doctor: Run) -> None:
    hint = "CUDA graph memory profiling is enabled. The current --gpu-memory-utilization=0.5000 is equivalent to"
    stated = "Overriding num_gpu_blocks=23000 with num_gpu_blocks_override=4000"
    found = json.loads(doctor(f"{ARGUMENTS}\n{hint}\n{stated}\n{VLLM}", "--gpu", "H100", "--json")[1])
    assert found["settings"]["gpu_memory_utilization"] == "0.5000"
    assert found["figures"]["tokens"]["kvsim"] == 16 * 4000


def test_an_unknown_model_is_no_reason_to_explain_nothing(doctor: Run) -> None:
    code, output, _ = doctor(VLLM.replace("Qwen/Qwen3-8B", "someone/secret"), "--gpu", "H100")
    assert code == 0
    assert "there is no model 'someone/secret'" in output
    assert "364,080" in output


def test_settings_that_the_log_lacks_are_named(doctor: Run) -> None:
    _, output, _ = doctor(VLLM, "--gpu", "H100")
    assert "The log does not say --max-num-seqs, --max-num-batched-tokens; vLLM's defaults are assumed." in output


def test_without_a_gpu_the_log_is_explained_and_nothing_is_guessed(doctor: Run) -> None:
    code, output, _ = doctor(VLLM)
    assert code == 0
    assert "give --gpu" in output
    assert "364,080" in output


def test_a_log_of_sglang(doctor: Run) -> None:
    code, output, _ = doctor(SGLANG, "--json")
    found = json.loads(output)
    assert (code, found["server"]) == (0, "sglang")
    assert {name: each["log"] for name, each in found["figures"].items()} == {
        "initial_free": pytest.approx(78.6 * 2**30),
        "weights": pytest.approx(7.7 * 2**30),
        "graphs": pytest.approx(0.41 * 2**30),
        "pool": pytest.approx(57.9 * 2**30),
        "tokens": 843_210,
    }


@pytest.mark.parametrize(
    ("line", "reason", "advice"),
    [
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "no_blocks",
            "weights and activations leave nothing",
        ),
        (f"ValueError: {TOO_LONG} Try", "too_long", "Lower --max-model-len"),
        (
            "Free memory on device cuda:0 (10.5/79.1 GiB) on startup is less than desired GPU memory utilization (0.9,",
            "others_hold_it",
            "other processes hold memory",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.1 GiB", "out_of_memory", "allocation"),
    ],
)
def test_a_failed_start_has_a_reason(line: str, reason: str, advice: str, doctor: Run) -> None:
    code, output, _ = doctor(f"{ARGUMENTS}\n{line}\n", "--gpu", "H100")
    assert code == 0
    assert output.startswith("Line 2: The start failed: ")
    assert advice in output.splitlines()[0]
    assert reason in json.loads(doctor(f"{ARGUMENTS}\n{line}\n", "--json")[1])["failures"]


def test_the_figures_of_a_failed_start_are_read(doctor: Run) -> None:
    figures = json.loads(doctor(TOO_LONG, "--json")[1])["figures"]
    values = [figures[name]["log"] for name in ("needed", "available", "longest_that_fits")]
    assert values == pytest.approx([10.12 * 2**30, 5.59 * 2**30, 122_080])


@pytest.mark.parametrize("text", ["", "hello\n", "\x00\xff" * 100])
def test_a_file_that_is_no_such_log_is_refused(text: str, doctor: Run) -> None:
    code, _, errors = doctor(text)
    assert code == 2
    assert "has no line about memory" in errors


def test_a_log_that_is_not_there_is_named(type_command: Run) -> None:
    code, _, errors = type_command("doctor", "none.log")
    assert (code, "none.log cannot be read" in errors) == (2, True)
