"""`kvsim doctor`: the lines about memory of a server's start-up log, as vLLM's and SGLang's releases write them."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def test_the_release_of_the_flag_decides_which_tokens_are_compared(doctor: Run, type_command: Run) -> None:
    """With several groups of layers, vLLM counts the tokens otherwise since 0.20.2."""
    flags = (
        "--gpu",
        "H100",
        "--model",
        "gemma-3-4b-it",
        "--gpu-memory-utilization",
        "0.9",
        "--max-model-len",
        "32768",
        "--json",
    )
    of_vllm = VLLM.replace(" (v0.25.1)", "").replace("Qwen/Qwen3-8B", "google/gemma-3-4b-it")
    tokens = []
    for release in ("0.20.1", "0.25.1"):
        found = json.loads(doctor(of_vllm, *flags, "--vllm", release)[1])
        size = type_command("size", *flags, "--vllm", release, "--defaults", "server")[1]
        assert found["figures"]["tokens"]["kvsim"] == json.loads(size)["gpu_kv_cache_size_tokens"]
        tokens.append(found["figures"]["tokens"]["kvsim"])
    assert tokens[0] != tokens[1]


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
        "after_weights": pytest.approx(70.9 * 2**30),
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
        ("torch.OutOfMemoryError: CUDA out of memory. RemedyRun to allocate 1.1 GiB", "out_of_memory", "allocation"),
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


SGLANG_ON_H100 = """
[2025-03-25 16:36:58] server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B-Instruct', mem_fraction_static=0.88)
[2025-03-25 16:37:06 TP0] Load weight end. type=LlamaForCausalLM, avail mem=63.48 GB, mem usage=15.11 GB.
[2025-03-25 16:37:06 TP0] KV Cache is allocated. #tokens: 442750, K size: 27.02 GB, V size: 27.02 GB
[2025-03-25 16:37:08 TP0] Memory pool end. avail mem=9.20 GB
"""
"""Figures that a public test of SGLang printed, on an H100; the share is SGLang's default there."""
VLLM_PAGE = """
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",gpu_memory_utilization="0.82",\
num_gpu_blocks="573",num_gpu_blocks_override="None"} 1.0
vllm:kv_cache_usage_perc{model_name="Qwen/Qwen3-32B"} 0.31
""".replace("\\\n", "")


def test_the_cache_of_sglang_follows_from_its_own_readings(doctor: Run) -> None:
    code, output, _ = doctor(SGLANG_ON_H100)
    assert code == 0
    assert output.startswith("The cache has 54.04 GiB; kvsim computes 54.05 GiB, +0.0%.")
    tokens = json.loads(doctor(SGLANG_ON_H100, "--json")[1])["figures"]["tokens"]
    free_before = 63.48 + 15.11
    assert tokens["kvsim"] == int((63.48 - 0.12 * free_before) * 2**30 / 131_072)
    assert tokens["kvsim"] == pytest.approx(tokens["log"], rel=1e-4)


@pytest.mark.parametrize("lacks", ["mem_fraction_static", "Load weight end"])
def test_without_a_reading_no_cache_of_sglang_is_computed(lacks: str, doctor: Run) -> None:
    log = "\n".join(line for line in SGLANG_ON_H100.splitlines() if lacks not in line)
    code, output, _ = doctor(f"server_args=\n{log}", "--model", "Llama-3.1-8B", "--json")
    assert code == 0
    assert json.loads(output)["figures"]["tokens"]["kvsim"] is None


def test_a_page_of_metrics_is_explained_like_a_log(doctor: Run) -> None:
    limits = ("--max-num-seqs", "1", "--max-num-batched-tokens", "8192", "--max-model-len", "8192")
    code, output, _ = doctor(VLLM_PAGE, "--gpu", "A100-80G", *limits)
    assert code == 0
    assert output.startswith("The cache has 573 blocks; kvsim computes ")
    assert "31 %" in output
    found = json.loads(doctor(VLLM_PAGE, "--gpu", "A100-80G", *limits, "--json")[1])
    assert (found["source"], found["settings"]["gpu_memory_utilization"]) == ("metrics", "0.82")
    assert found["figures"]["blocks"]["kvsim"] == pytest.approx(573, rel=0.03)
    assert "Metrics do not name all that an own account needs; give --gpu." in doctor(VLLM_PAGE)[1]


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ('"0.82"', '"many"'),
        ('"0.82"', '"9.9"'),
        ('"auto"', '"fp99"'),
        ('"573"', '"-1"'),
        ('"True"', '"perhaps"'),
        ("0.31", "NaN"),
        ("0.31", "1e300"),
        ('"16"', '"16'),
    ],
)
def test_metrics_that_cannot_be_are_left_out_or_refused(true: str, false: str, doctor: Run) -> None:
    code, output, complaint = doctor(VLLM_PAGE.replace(true, false), "--gpu", "A100-80G")
    assert code in (0, 1)
    assert "Traceback" not in complaint
    assert "vLLM" in output or "is not a sample of a metric" in complaint or "which cannot be" in complaint


def test_metrics_of_sglang_say_the_tokens(doctor: Run) -> None:
    labels = '{model_name="meta-llama/Llama-3.1-8B-Instruct"}'
    page = f"sglang:max_total_num_tokens{labels} 442750.0\nsglang:token_usage{labels} 0.28\n"
    code, output, _ = doctor(page)
    assert code == 0
    assert "442,750" in output
    assert "its start-up log says" in output


def test_a_server_that_runs_is_asked(type_command: Run, publisher: Callable[[bytes], str]) -> None:
    page = VLLM_PAGE.encode()
    address = publisher(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(page), page))
    code, output, _ = type_command("doctor", address)
    assert code == 0
    assert "573" in output


def test_a_recording_is_explained(type_command: Run) -> None:
    code, output, _ = type_command("doctor", "vllm-h200-llama-3-8b-sharegpt-pressure", "--json")
    assert code == 0
    found = json.loads(output)
    assert (found["source"], found["figures"]["blocks"]["log"]) == ("recording", 1600)
    assert found["figures"]["blocks"]["kvsim"] > 50_000
    assert "Nor whether the number of blocks was set by hand." in found["no_account"]


def test_what_is_neither_a_file_nor_an_address_is_named(type_command: Run) -> None:
    for source in ("nosuch", "127.0.0.1:1"):
        code, output, complaint = type_command("doctor", source)
        assert (code, output) == (2, "")
        assert f"{source} cannot be read: it is no file, no recording, and no server answers there" in complaint
    assert type_command("doctor", "http://127.0.0.1:1")[0] == 1


def test_a_page_that_contradicts_itself_is_refused(doctor: Run) -> None:
    line = next(line for line in VLLM_PAGE.splitlines() if line.startswith("vllm:kv_cache_usage_perc"))
    code, _, complaint = doctor(f"{VLLM_PAGE}\n{line}\n")
    assert code == 1
    assert "is given twice" in complaint
