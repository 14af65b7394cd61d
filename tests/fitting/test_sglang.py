"""`kvsim fit` for SGLang: its settings are searched, and what is printed is a command that SGLang takes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from click.testing import CliRunner

import kvsim
from kvsim.cli import cli
from kvsim.cli.fit import command as fit_command
from kvsim.cli.fit_server import server_of
from kvsim.cli.fleet_flags import fleet_of
from kvsim.errors import BudgetError, UsageError
from kvsim.fitting import Goal, Kind, Load, Search, SGLangServer, answer, changes, evaluate
from kvsim.metrics.run_verdict import Limit
from kvsim.models import find_quantization
from kvsim.workload import AllAtOnce, Fixed, generate

from ..thinned import one_of

INTERPRETED = Search(engine="interpreted")
SMALL = {"context_length": 512, "max_running_requests": 256, "chunked_prefill_size": 2048}


def server(on: str = "H100/Llama-3-8B", **settings: object) -> SGLangServer:
    return kvsim.server(on, policy="radix", **SMALL | settings)  # type: ignore[return-value]


def share_of(num_slots: int) -> float:
    """Return the `mem_fraction_static` that leaves a few more slots than `num_slots` beside the weights."""
    half, more = (server(mem_fraction_static=share).budget() for share in (0.5, 0.6))
    per_slot = 0.1 / (more.num_slots - half.num_slots)
    return 0.5 - per_slot * (half.num_slots - num_slots)


def users(number: int) -> Load:
    """Each has 90 tokens at the end."""
    work = generate(4 * number, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=30), seed=1)
    return Load(workload=work, users=number)


def test_more_memory_is_found_where_slots_are_short() -> None:
    """By hand: 1,000 slots hold 11 requests of 90 tokens, and 12 users have one each."""
    on, load = server(mem_fraction_static=share_of(1000)), users(12)
    found = answer(on, load, Goal(), INTERPRETED, most=4)
    assert not found.fits
    assert found.outcome.limit is Limit.MEMORY
    assert 1000 <= found.outcome.num_blocks < 1010
    assert " slots left hold 11 requests of 90 tokens; a request waits until there is room" in found.limit
    assert found.verdict.endswith("SGLang's pace was not measured: steps take the time of vLLM's host and kernels.")
    best = found.remedies[0]
    assert best.fits
    assert best.change.fields == ("mem_fraction_static",)
    assert best.change.kind is Kind.SETTING
    again = evaluate(best.change.server, load, engine="interpreted")
    assert again == best.outcome
    assert found.largest is not None
    assert found.largest < 12
    assert Goal().is_met(evaluate(on, load.of_users(int(found.largest)), engine="interpreted"))
    assert not best.band, "the error of such times was never measured"


def test_a_batch_that_is_too_small_is_what_limits_and_a_larger_one_helps() -> None:
    on, load = server(max_running_requests=2), users(4)
    found = answer(on, load, Goal(), INTERPRETED, most=0, find_largest=False)
    assert found.limit.startswith("the batch limit: 2 sequences run, and others wait (max_running_requests)")
    larger = {each.words: each.server for each in changes(on, longest_tokens=90)}[
        "max_running_requests 16 instead of 2"
    ]
    assert Goal().is_met(evaluate(larger, load, engine="interpreted"))


def test_a_prompt_that_is_too_long_names_the_context() -> None:
    found = answer(server(context_length=48), users(2), Goal(), INTERPRETED, most=0, find_largest=False)
    assert found.limit.endswith("context_length, which is 48 tokens; --max-model-len 90 would be needed.")


def test_requests_larger_than_all_slots_are_a_matter_of_memory() -> None:
    found = answer(server(mem_fraction_static=share_of(50)), users(2), Goal(), INTERPRETED, most=4)
    assert found.outcome.refused_share == 1
    assert found.limit.startswith("memory: no request that context_length allows fits the pool, which has 5")
    assert found.remedies[0].change.fields == ("mem_fraction_static",)


def test_as_many_slots_as_the_policy_of_kvsim_run_has() -> None:
    size = CliRunner().invoke(cli, ["size", "--policy", "radix", "--model", "Llama-3-8B", "--gpu", "H100", "--json"])
    outcome = evaluate(server(chunked_prefill_size=8192), users(2), engine="interpreted")
    assert outcome.num_blocks == json.loads(size.stdout)["num_slots"]


def parsed(line: str, gpu: str) -> SGLangServer:
    """Return the server that `kvsim fit --from` takes a line for."""
    flags = dict(fit_command.make_context("fit", ["--gpu", gpu, "--from", line]).params)
    found = server_of(flags, fleet_of(flags))
    assert isinstance(found, SGLangServer)
    return found


@pytest.mark.parametrize(
    "asked",
    one_of(
        2,
        [
            server(),
            server("4xH100/Llama-3.1-70B-Instruct", kv_cache_dtype="fp8", page_size=16, disable_radix_cache=True),
            server("B200/Qwen3-8B", mem_fraction_static=0.7, schedule_policy="lpm", enable_mixed_chunk=True),
            server("H200/gpt-oss-20b", enable_priority_scheduling=True, disable_overlap_schedule=True, captured=False),
            server("8xH200/DeepSeek-V3.2", chunked_prefill_size=-1, max_prefill_tokens=4096, prefill_max_requests=3),
        ],
    ),
    ids=repr,
)
def test_every_line_that_is_printed_is_taken_back_as_the_same_server(asked: SGLangServer) -> None:
    found = changes(asked, longest_tokens=90, most=400)[::7]
    assert len({each.server for each in found}) == len(found)
    for each in (asked, *(change.server for change in found)):
        assert isinstance(each, SGLangServer)
        if not each.has_checkpoint:
            assert each.command().startswith("a checkpoint of ")
            continue
        again = parsed(each.command(), each.gpu.name.replace(" ", "-"))
        assert again.policy() == each.policy()
        with suppress(BudgetError):  # such a change is never printed
            assert again.machine().kv_bytes == each.machine().kv_bytes, each.command()
        assert again.num_gpus * each.replicas == each.num_gpus
        assert again.captured == each.captured


def test_a_change_leaves_room_for_the_largest_step() -> None:
    """A share that leaves 6 % of an H100 has no room for a step of 65,536 tokens."""
    on = server("H100/Llama-3.1-8B", chunked_prefill_size=32768)
    shares = [each.server for each in changes(on, longest_tokens=90, most=400) if "mem_fraction_static" in each.fields]
    assert shares
    assert all(each.spare_bytes >= 0 for each in shares)
    assert on.changed(mem_fraction_static=0.94).spare_bytes > 0
    whole = on.changed(mem_fraction_static=0.94, chunked_prefill_size=65536)
    assert whole.spare_bytes < 0
    assert whole not in [each.server for each in changes(whole.changed(mem_fraction_static=0.9), longest_tokens=90)]


def test_settings_without_an_argument_are_variables() -> None:
    line = server(retract_decode_steps=10, init_new_token_ratio=0.5, enable_priority_scheduling=True).command()
    assert line.startswith(
        "SGLANG_INIT_NEW_TOKEN_RATIO=0.5 SGLANG_RETRACT_DECODE_STEPS=10 python -m sglang.launch_server --model-path "
    )
    assert line.endswith(" --enable-priority-scheduling")


def test_weights_that_sglang_cannot_make_are_another_checkpoint() -> None:
    on = server("H100/Qwen3-32B")
    fp8, awq = (on.changed(model=on.model.served(quantization=find_quantization(name))) for name in ("fp8", "awq"))
    assert fp8.command().endswith(" --quantization fp8")
    assert " --model-path Qwen/Qwen3-32B-AWQ " in awq.command()
    small = server("H100/Qwen3-0.6B")
    unknown = small.changed(model=small.model.served(quantization=find_quantization("awq")))
    assert unknown.command().startswith("a checkpoint of Qwen/Qwen3-0.6B with awq weights is needed, served with --mem")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"page_size": 7}, "no multiple of --page-size 7"),
        ({"page_size": 0}, "page_size should be at least 1, not 0"),
        ({"context_length": 1_000_000}, "its configuration allows 8,192 tokens"),
        ({"kv_cache_dtype": "nvfp4"}, "SGLang has no cache of the type nvfp4"),
        ({"mem_fraction_static": 1.5}, "must be above 0 and below 1"),
        ({"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "--schedule-policy fcfs or lof, not lpm"),
        ({"retraction_policy": "priority"}, "retracts by priority only if it serves by priority"),
        ({"replicas": 0}, "replicas is 0; it must be an integer of at least 1"),
        (
            {"max_num_seqs": 4},
            "max_num_seqs is no setting of a server; there are cache, captured, chunked_prefill_size",
        ),
    ],
)
def test_what_sglang_refuses_is_never_printed(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        server(**settings)


def test_pages_are_those_of_the_kernels() -> None:
    assert server("B200/Qwen3-8B").page_size == 64
    assert "--page-size 64" in server("B200/Qwen3-8B").command()
    with pytest.raises(UsageError, match="on B200 have pages of 16, 32, 64, 128 slots, not 1"):
        server("B200/Qwen3-8B", page_size=1)
    hopper = server("H200/Qwen3-8B")
    moved = next(each.server for each in changes(hopper, longest_tokens=90, most=200) if each.fields[0] == "gpu")
    assert (moved.gpu.name, moved.changed().command().count("--page-size 64")) == ("B200", 1)


def test_other_limits_of_the_cache_stay_with_every_change() -> None:
    on = server(cache=replace(server().cache, radix_eviction_policy="lfu"))
    assert on.policy().cache.radix_eviction_policy == "lfu"
    assert "--radix-eviction-policy lfu" in on.changed(page_size=16).command()
    assert on.changed(page_size=16).policy().cache.page_size == 16
