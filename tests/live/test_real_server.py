"""`kvsim diagnose` against a server that serves: over HTTP, while clients ask it for completions."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.live.address import page_of

from .vllm_like import serving


def complete(address: str, prompt_tokens: int, max_tokens: int) -> int:
    """Ask for a completion; return how many tokens came."""
    asked = json.dumps({"prompt": list(range(prompt_tokens)), "max_tokens": max_tokens}).encode()
    request = urllib.request.Request(f"http://{address}/v1/completions", asked, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


@contextmanager
def users(address: str, number: int, prompt_tokens: int, max_tokens: int) -> Iterator[None]:
    """So many users who ask, wait and ask again."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            assert complete(address, prompt_tokens, max_tokens) == max_tokens

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(10)


def diagnosed(source: str) -> str:
    result = CliRunner().invoke(cli, ["diagnose", source, "--seconds", "1.5"])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("prefix", ["", "http://"])
def test_a_server_short_of_memory_says_so_at_its_address(prefix: str) -> None:
    with serving(num_blocks=40) as (address, engine), users(address, 12, 60, 120):
        said = diagnosed(f"{prefix}{address}")
        preempted = engine.counts["num_preemptions"]
    assert preempted > 0
    assert said.startswith("Memory is short: ")
    assert "of 40 blocks of 16 tokens" in said
    counted = re.search(r"([\d,]+) preemptions a minute over .*, ([\d,]+) since", said)
    assert counted is not None
    assert int(counted[1].replace(",", "")) > 0
    assert 0 < int(counted[2].replace(",", "")) <= preempted
    assert "KVSIM_RECORD=runs/mine vllm serve small" in said


def test_a_server_with_room_has_nothing_to_tell() -> None:
    with serving(num_blocks=2_000) as (address, engine), users(address, 4, 60, 20):
        said = diagnosed(address)
        assert engine.counts["num_preemptions"] == 0
    assert said.startswith("Nothing waits and nothing is preempted now.")


def test_an_address_without_a_web_server_is_none() -> None:
    assert page_of("127.0.0.1:1") is None
    with serving(num_blocks=10) as (address, _):
        assert page_of(address) == f"http://{address}/metrics"
