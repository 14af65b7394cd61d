"""Every `vllm serve` line that an answer may print starts: judged by vLLM's own arguments and configuration."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from kvsim.errors import KvsimError
from kvsim.fitting import Server, changes
from kvsim.hardware import GPUS
from kvsim.kv_groups.specs import check_block_size
from kvsim.models import Model, all_models
from kvsim.policies.releases import OFFLOAD_RELEASE
from kvsim.policies.settings import EngineDefaults, PagedSettings
from tests.forks import ROOT
from tests.vllm_engine.install import MAIN, NEWEST, missing, python_path

Interpreter = Callable[[str], tuple[str, ...]]


class Refusal(Protocol):
    def __call__(self, command: str, config: dict[str, Any]) -> str:
        """Why vLLM refuses the command for a checkpoint with these fields; empty if it does not."""


@contextmanager
def refusals(log: Any, release: str, interpreter: Sequence[str]) -> Iterator[Refusal]:
    """A process with the own classes of a release of vLLM."""
    settings = {
        "PYTHONPATH": python_path(release, ROOT),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("wb") as file, subprocess.Popen(
        [*interpreter, "-m", "tests.vllm_engine.start_process"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, cwd=ROOT, env=os.environ | settings,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        sent, answers = process.stdin, process.stdout

        def refusal(command: str, config: dict[str, Any]) -> str:
            program, verb, *rest = shlex.split(command)
            assert (program, verb) == ("vllm", "serve")
            assert rest[0].count("/") == 1, "a model is found by its organisation and its name"
            sent.write(json.dumps({"command": rest, "config": config}) + "\n")
            sent.flush()
            error: str = json.loads(answers.readline())["error"]
            return error

        yield refusal
        sent.close()


def config_of(model: Model) -> dict[str, Any]:
    """As much of a checkpoint's config.json as decides whether vLLM starts, but for how its weights are stored: what
    reads that needs kernels.
    """
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32_000, "intermediate_size": 128,
        "hidden_size": 16 * model.num_attention_heads, "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads, "num_key_value_heads": model.num_kv_heads, "head_dim": 16,
        "max_position_embeddings": model.max_position_embeddings, "torch_dtype": model.dtype,
    }  # fmt: skip


def any_server(rng: random.Random, release: str) -> Server:
    """A server as somebody might describe it."""
    model, gpu = rng.choice(all_models()), rng.choice(GPUS)
    heads = model.num_attention_heads
    served = model.served(
        tensor_parallel_size=rng.choice([size for size in (1, 1, 2, 4, 8) if not heads % size]),
        kv_cache_dtype=rng.choice(("auto", "auto", "fp8")),
    )
    longest = rng.choice((model.max_position_embeddings, min(4096, model.max_position_embeddings)))
    chunked, block_size = rng.random() < 0.8, rng.choice((None, None, 16, 32, 64))
    asked = rng.choice((None, 1, 7, 64, 256, 1024, 4096)), rng.choice((None, 10, 512, 2048, 8192, 65536))
    defaults = EngineDefaults.of("server", gpu)
    num_seqs, num_tokens = defaults.limits(*asked, longest, chunked=chunked)
    offload = rng.choice((0.0, 0.0, 4.0, 0.5)) if release == OFFLOAD_RELEASE else 0.0
    server = Server(
        gpu=gpu, model=served, max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens, max_model_len=longest,
        gpu_memory_utilization=rng.choice((0.5, 0.9, 0.92, 0.96)), block_size=block_size,
        enable_prefix_caching=rng.random() < 0.7, watermark=rng.choice((0.0, 0.05)),
        cache=PagedSettings(
            block_size=block_size or 16, kv_offloading_size=offload, kv_offloading_prompt_only=rng.random() < 0.5
        ),
        enable_chunked_prefill=chunked, long_prefill_token_threshold=rng.choice((0, 512)),
        async_scheduling=rng.random() < 0.8, captured=rng.random() < 0.9, num_blocks=rng.choice((None, None, 5000)),
        name=rng.choice(("", model.name.rpartition("/")[2], model.name)), vllm=release,
    )  # fmt: skip
    check_block_size(served, block_size)
    server.policy()
    return server


def check_lines(refusal: Refusal, release: str, number: int, seed: int) -> None:
    """Put `number` lines of servers, and of changes of them, to vLLM."""
    rng, judged = random.Random(seed), 0
    while judged < number:
        try:
            server = any_server(rng, release)
        except KvsimError:
            continue  # which is refused before anything is printed
        own = server.model.quantization
        candidates = changes(server, longest_tokens=256, most=200)
        for each in (server, *(change.server for change in rng.sample(candidates, min(4, len(candidates))))):
            if not each.has_checkpoint:
                assert not each.command().startswith("vllm")
                continue
            line, wanted = each.command(), each.model.quantization
            if own is None and wanted is not None:
                assert line.endswith("--quantization fp8") or line.split()[2].endswith(("AWQ", "AWQ-INT4"))
            else:
                assert "--quantization" not in line
            assert not (error := refusal(line, config_of(each.model))), f"{line}: {error}"
            judged += 1


@pytest.mark.parametrize("release", [MAIN, pytest.param(NEWEST, marks=pytest.mark.slow)])
def test_vllm_starts_with_every_line_that_an_answer_prints(
    release: str, interpreter_with_vllm: Interpreter, tmp_path: Any
) -> None:
    if reason := missing(release):
        pytest.skip(reason)
    with refusals(tmp_path / "log", release, interpreter_with_vllm(release)) as refusal:
        config = config_of(all_models()[0])
        line = "vllm serve an/model --max-num-seqs"
        assert "must be greater than or equal to max_num_seqs" in refusal(
            f"{line} 1024 --max-num-batched-tokens 512", config
        )
        assert refusal(f"{line} 4 --swap-space 4", config) == "SystemExit: 2"
        check_lines(refusal, release, 15, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("release", [MAIN, NEWEST])
def test_vllm_starts_with_five_hundred_lines(release: str, interpreter_with_vllm: Interpreter, tmp_path: Any) -> None:
    if reason := missing(release):
        pytest.skip(reason)
    with refusals(tmp_path / "log", release, interpreter_with_vllm(release)) as refusal:
        check_lines(refusal, release, 500, seed=2)
