"""What a client sees behind an HTTP front end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvsim.cli.run import command as run_command
from kvsim.hardware import find_gpu
from kvsim.machines import card_of
from kvsim.simulation.front_end import http_s

FEW = ("--arrivals", "at-once", "--num-requests", "8", "--prompt-tokens", "60", "--output-tokens", "20", "--json")


def test_a_front_end_delays_every_request_and_changes_nothing_in_the_engine() -> None:
    engine, client = (
        json.loads(CliRunner().invoke(run_command, [*FEW, "--front-end", kind], catch_exceptions=False).stdout)
        for kind in ("none", "http")
    )
    delay_s = http_s(find_gpu("H200"))
    for name in ("ttft_s", "e2e_s"):
        for statistic, value in engine[name].items():
            assert client[name][statistic] == pytest.approx(value + delay_s)
    assert client["tpot_s"] == engine["tpot_s"]
    assert client["duration_s"] == engine["duration_s"]


def test_it_is_within_what_was_measured_and_goes_by_the_host() -> None:
    h200 = card_of(find_gpu("H200"))
    assert 6e-3 < http_s(find_gpu("H200")) < 16e-3
    slow = replace(h200, factors={"host": 1.5})
    assert http_s(find_gpu("H200"), slow) == pytest.approx(1.5 * http_s(find_gpu("H200"), h200))
    assert http_s(find_gpu("H200"), replace(slow, factors={"host": 1.5, "front_end": 1.1})) == pytest.approx(
        1.1 * http_s(find_gpu("H200"))
    )
