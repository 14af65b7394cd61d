"""Flags of `kvsim capture vllm` that need others are refused before vLLM is looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import MissingExtraError, UsageError


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-loras", "2"], "give --enable-lora, too"),
        (["--adapters", "3", "--num-requests", "4"], "requests name adapters; give --enable-lora"),
        (["--speculative-config", "ngram"], "--speculative-config should be a JSON object"),
        (["--images", "1@640x480", "--prompt-tokens", "64"], "start it with KVSIM_RECORD=FOLDER and --scheduler-cls"),
    ],
)
def test_what_misses_something_else_is_refused_in_a_sentence(flags: list[str], words: str, tmp_path: Path) -> None:
    command = ["capture", "vllm", "--model", "Llama-3.2-1B", "-o", str(tmp_path / "run"), *flags]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code != 0
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_a_missing_vllm_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    done = CliRunner().invoke(cli, ["capture", "vllm", "--model", "Llama-3.2-1B", "-o", str(tmp_path / "run")])
    assert isinstance(done.exception, MissingExtraError)
    assert "pip install 'kvsim[vllm]'" in str(done.exception)
    assert not (tmp_path / "run").exists()
