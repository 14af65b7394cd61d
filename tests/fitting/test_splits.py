"""Prefill and decode servers in `kvsim fit`: other splits are tried, and judged as clients see them."""

from __future__ import annotations

import json

from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.fitting import Server, changes
from kvsim.fitting.server_change import Kind
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.simulation import Disaggregation


def test_other_splits_are_tried_and_judged() -> None:
    flags = ["--prefill", "1", "--decode", "1", "--rate", "8", "--num-requests", "24", "--prompt-tokens", "3000"]
    flags += ["--output-tokens", "20", "--max-model-len", "4096", "--gpu", "H200", "--model", "Llama-3-8B"]
    done = CliRunner().invoke(cli, ["fit", *flags, "--points", "0", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["outcome"]["ttft_s"]["mean"] > 0.1  # the prompt, and its KV over the link
    assert found["outcome"]["waiting_share"] < 0.5


def test_a_range_of_loads_is_for_one_kind() -> None:
    done = CliRunner().invoke(cli, ["fit", "--prefill", "1", "--decode", "1", "--load", "1x..4x"])
    assert done.exit_code
    assert "servers of one kind" in str(done.exception)


def test_splits_of_as_many_servers_cost_nothing_and_more_servers_do() -> None:
    apart = Disaggregation(num_prefill=1, num_decode=2)
    server = Server(gpu=find_gpu("H200"), model=find_model("Llama-3-8B"), replicas=3, apart=apart)
    splits = {each.words: each for each in changes(server, longest_tokens=1000, most=200) if "apart" in each.fields}
    assert splits["2 prefill and 1 decode servers"].kind is Kind.SETTING
    assert splits["3 prefill and 2 decode servers"].server.num_gpus == 5
    assert splits["3 servers that compute prompts and decode"].server.apart is None
    assert "1 prefill and 2 decode servers" not in splits
    assert not any("behind one queue instead" in each.words for each in changes(server, longest_tokens=1000, most=200))
