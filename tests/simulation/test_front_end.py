"""What a client sees behind an HTTP front end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvsim.cli.run import command as run_command
from kvsim.hardware import find_gpu
from kvsim.machines import card_of
from kvsim.simulation.front_end import http

FEW = ("--arrivals", "at-once", "--num-requests", "8", "--prompt-tokens", "60", "--output-tokens", "20", "--json")
MANY = ("--arrivals", "at-once", "--num-requests", "400", "--prompt-tokens", "20", "--output-tokens", "60")
H200 = find_gpu("H200")
RECORDED = replace(card_of(H200), launch_s=5.92e-6)
"""The host behind whose server the engine was recorded."""


def test_a_front_end_delays_every_request_and_changes_nothing_in_the_engine() -> None:
    engine, client = (
        json.loads(CliRunner().invoke(run_command, [*FEW, "--front-end", kind], catch_exceptions=False).stdout)
        for kind in ("none", "http")
    )
    delay_s = http().delay_s(60, engine["output_tokens_per_s"])
    for name in ("ttft_s", "e2e_s"):
        for statistic, value in engine[name].items():
            assert client[name][statistic] == pytest.approx(value + delay_s)
    assert client["front_end_s"] == pytest.approx(delay_s)
    assert "front_end_s" not in engine
    assert client["tpot_s"] == engine["tpot_s"]
    assert client["duration_s"] == engine["duration_s"]


# Output tokens per second, mean prompt, and by how much TTFT is longer on the side of the client than in the engine:
# vllm bench serve at 5, 20 and 40 requests/s, with long prompts at 4, and with 32 users.
@pytest.mark.parametrize(
    ("tokens_per_s", "prompt_tokens", "measured_s", "share"),
    [
        (989, 295, 8.19e-3, 0.1),
        (3672, 302, 11.45e-3, 0.1),
        (7685, 294, 17.22e-3, 0.1),
        (523, 2590, 17.64e-3, 0.1),
        (7232, 302, 18.58e-3, 0.2),
    ],
)
def test_it_is_near_what_was_measured(
    tokens_per_s: float, prompt_tokens: float, measured_s: float, share: float
) -> None:
    assert http(RECORDED).delay_s(prompt_tokens, tokens_per_s) == pytest.approx(measured_s, rel=share)


# The same of inference-sim's Llama-2-7b on an H100 (training ed5c1d2), whose engine's part is simulated.
@pytest.mark.parametrize(
    ("tokens_per_s", "prompt_tokens", "told_s"),
    [(1223, 592, 6.0e-3), (2440, 592, 6.0e-3), (1962, 576, 5.7e-3), (4867, 576, 11.5e-3)],
)
def test_a_host_that_nobody_measured_is_within_four_milliseconds(
    tokens_per_s: float, prompt_tokens: float, told_s: float
) -> None:
    assert http().delay_s(prompt_tokens, tokens_per_s) == pytest.approx(told_s, abs=4e-3)


def test_it_goes_by_the_host_and_by_its_own_factor_if_there_is_one() -> None:
    usual = http(card_of(H200)).delay_s(300, 0)
    slow = replace(card_of(H200), factors={"host": 1.5})
    assert http(slow).delay_s(300, 0) == pytest.approx(1.5 * usual)
    own = replace(slow, factors={"host": 1.5, "front_end": 1.1})
    assert http(own).delay_s(300, 0) == pytest.approx(1.1 * usual)


def test_more_tokens_than_one_process_hands_on_are_no_delay_but_a_sentence() -> None:
    found = http()
    assert found.delay_s(300, 1.01 * found.most_tokens_per_s) == float("inf")
    assert found.delay_s(300, 0.99 * found.most_tokens_per_s) > 10 * found.delay_s(300, 0)
    model = ("--model", "granite-4.0-350m", "--gpu", "H200")
    plain, client = (
        CliRunner().invoke(run_command, [*MANY, *model, "--front-end", kind], catch_exceptions=False).stdout
        for kind in ("none", "http")
    )
    assert "--api-server-count" in client
    assert [line for line in plain.splitlines() if "TTFT" in line] == [
        line for line in client.splitlines() if "TTFT" in line
    ]
