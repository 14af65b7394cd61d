"""Hugging Face, for real: a tiny model with random weights on the CPU."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli.capture import command
from kvsim.errors import UsageError, WorkloadError
from kvsim.hf_memory import earlier_batches
from kvsim.memory.waste import SlotState
from kvsim.metrics import waste
from kvsim.recording import read, write
from kvsim.replay import Replay
from kvsim.workload import Workload

pytestmark = pytest.mark.filterwarnings("default")  # the warnings of other people's packages are not ours

PROMPTS, OUTPUTS = [5, 9, 3, 4, 8, 2], [4, 6, 3, 2, 9, 5]


@pytest.fixture(scope="module")
def hf() -> Any:
    """The recorder of `generate()`. It loads PyTorch, which only a process that runs these tests needs."""
    for name in ("torch", "transformers"):
        pytest.importorskip(name, reason="the extra hf is not installed")
    return import_module("kvsim.capture.hf")


@pytest.fixture(scope="module")
def folder(hf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiny")
    config = hf.transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=256,
        architectures=["LlamaForCausalLM"],
        dtype="float32",
    )
    config.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(hf: Any, folder: Path) -> Any:
    return hf.load_model(folder, device="cpu")


@pytest.fixture
def workload() -> Workload:
    return Workload(arrival_s=np.zeros(6), prompt_tokens=PROMPTS, output_tokens=OUTPUTS)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_batches_are_recorded_as_the_rectangles_they_are(hf: Any, model: Any, workload: Workload, cache: str) -> None:
    with hf.GenerateRecorder(model) as recorder:
        hf.generate_workload(model, workload, batch_size=4, cache=cache, recorder=recorder)
    recording = recorder.recording("tiny")
    assert len(recording.steps) == 6 + 9, "each batch runs to its longest output"
    assert recording.requests.prompt_tokens.tolist() == PROMPTS
    assert recording.requests.output_tokens.tolist() == OUTPUTS
    assert recording.meta.policy["cache"] == cache
    assert recording.steps.prefill_tokens[[0, 6]].tolist() == [4 * 9, 2 * 8]
    first, last = waste(Replay(recording)).slots[[0, 5]]
    assert first[SlotState.TOKEN] == sum(PROMPTS[:4])
    assert first[SlotState.PADDING] == 4 * 9 - sum(PROMPTS[:4])
    assert last[SlotState.TOKEN] == 9 + 5, "only the longest row is alive in the batch's last step"
    assert np.diff(recording.steps.start_s).min() >= 0


def test_a_program_of_ones_own(hf: Any, model: Any) -> None:
    ids = hf.torch.tensor([[0, 0, 11, 12], [21, 22, 23, 24]])
    mask = hf.torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    plain = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    with hf.GenerateRecorder(model) as recorder:
        watched = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert hf.torch.equal(plain, watched), "being watched changes nothing"
    recording = recorder.recording()
    assert recording.requests.prompt_tokens.tolist() == [2, 4]
    assert len(recording.steps) == watched.shape[1] - 4
    assert "generate" not in vars(model), "the model is as it was"


def test_what_a_process_had_generated_before_is_stated(hf: Any, model: Any, workload: Workload) -> None:
    with hf.GenerateRecorder(model) as first:
        hf.generate_workload(model, workload, batch_size=4, recorder=first)
    assert first.recording().meta.extra["earlier_batches"] == []
    with hf.GenerateRecorder(model, earlier_batches=first.batches) as second:
        hf.generate_workload(model, workload, batch_size=6, recorder=second)
    four = {"rows": 4, "prompt_width": 9, "new_tokens": 6, "padded": True, "cache": "dynamic"}
    two = {"rows": 2, "prompt_width": 8, "new_tokens": 9, "padded": True, "cache": "dynamic"}
    recording = second.recording()
    assert recording.meta.extra["earlier_batches"] == [four, two]
    assert [batch.rows for batch in earlier_batches(recording)] == [4, 2]


def test_what_costs_memory_beside_the_shapes_is_stated(hf: Any, model: Any, workload: Workload) -> None:
    ids = hf.torch.tensor([[11, 12, 13]])
    with hf.GenerateRecorder(model) as plain:
        model.generate(input_ids=ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
        plain.give_back()
        model.generate(input_ids=ids, max_new_tokens=2, do_sample=False, pad_token_id=0)
    with hf.GenerateRecorder(model) as fixed:
        hf.generate_workload(model, workload, batch_size=6, recorder=fixed)
    stated, of_fixed = plain.recording().meta, fixed.recording().meta
    assert stated.engine["min_new_tokens"] is False
    assert of_fixed.engine["min_new_tokens"] is True, "to run to the workload's lengths"
    assert stated.extra["given_back_before"] == [1]
    assert of_fixed.extra["given_back_before"] == []


def test_nothing_generated(hf: Any, model: Any) -> None:
    with hf.GenerateRecorder(model) as recorder:
        pass
    with pytest.raises(UsageError, match="nothing was recorded"):
        recorder.recording()


def test_a_recording_round_trips(hf: Any, model: Any, workload: Workload, tmp_path: Path) -> None:
    with hf.GenerateRecorder(model) as recorder:
        hf.generate_workload(model, workload, batch_size=6, recorder=recorder)
    again = read(write(recorder.recording("tiny"), tmp_path / "tiny"))
    assert again.meta.model["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 4
    assert again.requests.output_tokens.tolist() == OUTPUTS


def test_the_command(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    arguments = [
        "hf",
        "--model",
        str(folder),
        "--arrivals",
        "at-once",
        "--num-requests",
        "5",
        "--prompt-tokens",
        "6:0.4",
    ]
    arguments += ["--output-tokens", "4:0.3", "--batch-size", "2", "-o", str(output), "--device", "cpu"]
    CliRunner().invoke(command, arguments, catch_exceptions=False)
    recording = read(output)
    assert len(recording.requests) == 5
    assert recording.meta.policy["batch_size"] == 2
    with pytest.raises(UsageError, match=r"a recording of a real run of generate\(\); --overwrite replaces it"):
        CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)


def test_a_request_that_the_model_cannot_take(hf: Any, model: Any) -> None:
    long = Workload(arrival_s=np.zeros(2), prompt_tokens=np.array([9, 200]), output_tokens=np.array([9, 57]))
    with pytest.raises(WorkloadError, match="request 1 has 257 tokens, prompt and answer, and the model takes 256 at"):
        hf.generate_workload(model, long, batch_size=1)


@pytest.mark.parametrize("device", ["cuda:99", "meta", "1_000", "cpu:0"])
def test_a_device_that_is_not_there(hf: Any, device: str) -> None:
    with pytest.raises(UsageError, match=f"there is no device '{device}' on this machine; there are cpu"):
        hf.find_device(device)
