"""Prefill and decode servers in `kvsim fit`: other splits are tried, and judged as clients see them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.cli.fit_answer import print_fit
from kvsim.fitting import Goal, Kind, Load, Outcome, Remedy, Search, Server, ServerChange, answer, changes, repeated
from kvsim.fitting.split_effect import splits_words
from kvsim.hardware import find_gpu
from kvsim.metrics import Distribution
from kvsim.models import find_model
from kvsim.simulation import Disaggregation, Replicas
from kvsim.workload import AllAtOnce, Fixed, generate


def test_other_splits_are_tried_and_judged() -> None:
    flags = ["--prefill", "1", "--decode", "1", "--users", "2", "--num-requests", "8", "--prompt-tokens", "4000"]
    flags += ["--output-tokens", "20", "--max-model-len", "4100", "--gpu", "H200", "--model", "Llama-3-8B"]
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
    assert splits["2 prefill and 1 decode server"].kind is Kind.SETTING
    assert splits["3 prefill and 2 decode servers"].server.num_gpus == 5
    assert splits["3 servers that compute prompts and decode"].server.apart is None
    assert "1 prefill and 2 decode servers" not in splits
    assert not any("behind one queue instead" in each.words for each in changes(server, longest_tokens=1000, most=200))


def split(words: str, apart: Disaggregation | None, e2e_s: float, *, fits: bool = True) -> Remedy:
    on = Server(gpu=find_gpu("H200"), model=find_model("Llama-3-8B"), replicas=4, apart=apart)
    fields = ("apart",) if apart else ("apart", "replicas")
    return Remedy(
        change=ServerChange(words=words, fields=fields, kind=Kind.SETTING, server=on),
        outcome=outcome(e2e_s, fits=fits), fits=fits, shortfall=0.0 if fits else 1.0,
    )  # fmt: skip


def outcome(e2e_s: float, *, fits: bool = True) -> Outcome:
    times = Distribution(mean=e2e_s, p50=e2e_s, p90=e2e_s, p99=e2e_s)
    return Outcome(
        e2e_s=times, ttft_s=times, tpot_s=times, output_tokens_per_s=100.0, refused_share=0.0 if fits else 1.0
    )


EQUAL = Server(gpu=find_gpu("H200"), model=find_model("Llama-3-8B"), replicas=4)
TWO, THREE = Disaggregation(num_prefill=2, num_decode=2), Disaggregation(num_prefill=3, num_decode=1)
FEW = Load(workload=generate(4, arrivals=AllAtOnce(), prompt=Fixed(tokens=9), output=Fixed(tokens=9), seed=1))


BETTER, EQUAL_ONES = "are better for this load than", "4 servers that do both"


@pytest.mark.parametrize(
    ("equal_s", "two", "words"),
    [
        (2.0, outcome(1.0), f"2 prefill and 2 decode servers {BETTER} {EQUAL_ONES}: "),
        (2.0, outcome(1.99), f"2 prefill and 2 decode servers serve this load about as well as {EQUAL_ONES}"),
        (2.0, outcome(1.0, fits=False), f"{EQUAL_ONES} {BETTER} the best split, 2 prefill and 2 decode servers: "),
        (0.5, outcome(1.0), f"{EQUAL_ONES} {BETTER} the best split, 2 prefill and 2 decode servers: "),
        (
            2.0,
            Outcome(error="no such layers."),
            f"{EQUAL_ONES} {BETTER} the best split, 3 prefill and 1 decode server: ",
        ),
    ],
)
def test_the_better_of_servers_and_splits_is_named(equal_s: float, two: Outcome, words: str) -> None:
    tried = [replace(split("two", TWO, 1.0), outcome=two), split("three", THREE, 9.0, fits=equal_s < 2)]
    assert splits_words(EQUAL, FEW, outcome(equal_s), Goal(), tried).startswith(words)
    asked, others = tried[0].change.server, [split("equal", None, equal_s), tried[1]]
    assert splits_words(asked, FEW, two, Goal(), others).startswith(words), "whichever of them was asked for"


def test_what_is_not_compared_says_why_and_one_server_says_nothing() -> None:
    tried = [replace(split("two", TWO, 1.0), outcome=Outcome(error="no such layers."))]
    assert splits_words(EQUAL, FEW, outcome(1.0), Goal(), tried) == (
        "No split into prefill and decode servers is compared: no such layers."
    )
    long = replace(FEW, workload=repeated(FEW.workload, 60_000))
    assert "were not tried: the load has over 500,000 output tokens" in splits_words(
        EQUAL, long, outcome(1), Goal(), tried
    )
    alone = replace(EQUAL, replicas=1)
    assert splits_words(alone, long, outcome(1.0), Goal(), tried[:0]) == ""
    assert not [each for each in changes(alone, longest_tokens=100, most=400) if "apart" in each.fields]


@pytest.mark.parametrize(("number", "prefill"), [(2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (16, [4, 8, 12])])
def test_few_splits_of_equal_servers_are_tried_before_anything_else(number: int, prefill: list[int]) -> None:
    found = changes(replace(EQUAL, replicas=number), longest_tokens=100, most=len(prefill) + 1)
    aparts = [each.server.apart for each in found[:-1]]
    assert [apart.num_prefill for apart in aparts if apart] == prefill
    assert {apart.num_prefill + apart.num_decode for apart in aparts if apart} == {number}
    assert found[-1].server.apart is None
    assert {each.kind for each in found} == {Kind.SETTING}


def test_equal_servers_are_compared_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    work = generate(8, arrivals=AllAtOnce(), prompt=Fixed(tokens=300), output=Fixed(tokens=5), seed=1)
    on, load = replace(EQUAL, replicas=2, max_model_len=512), Load(workload=work, users=4)
    found = answer(on, load, Goal(), Search(engine="interpreted"), most=1, find_largest=False)
    assert [each.change.words for each in found.tried] == ["1 prefill and 1 decode server"]
    assert "1 prefill and 1 decode server" in found.splits
    print_fit(found)
    assert capsys.readouterr().out.splitlines()[2] == found.splits == found.as_dict()["splits"]


def test_servers_of_ranks_are_all_simulated() -> None:
    ranks = find_model("Qwen3-30B-A3B").served(data_parallel_size=2)
    servers = Server(gpu=find_gpu("H200"), model=ranks, replicas=2, max_model_len=4096).servers()
    assert isinstance(servers, Replicas)
    assert servers.num_engines == 4
