"""Rules and defaults of vLLM's releases: what one table says of each, and what is refused because it is not known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import kvsim
from kvsim.conformance import verify_recording
from kvsim.conformance.conformity import generated
from kvsim.conformance.oracle import OracleRun
from kvsim.conformance.oracle_files import parse_workload
from kvsim.errors import RecordingError, UsageError
from kvsim.policies import ContinuousSettings, Paged, PagedSettings
from kvsim.policies.releases import (
    CHANGES,
    NEWEST,
    OLDEST,
    Junction,
    ReusedFirst,
    check_known,
    defaults_of,
    nearest_words,
    number_of,
    rules_of,
)
from kvsim.workload import Request, Workload


def paged(release: str, **cache: object) -> Paged:
    return Paged(
        scheduler=ContinuousSettings(vllm=release, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=2048),
        cache=PagedSettings(**cache),
    )


def requests(number: int) -> Workload:
    return Workload.from_requests(
        Request(id=f"r{row}", arrival_s=row / 100, prompt_tokens=90 + 7 * row, output_tokens=60, max_tokens=60)
        for row in range(number)
    )


def serve(release: str, *, num_blocks: int = 60) -> kvsim.Run:
    return kvsim.simulate(
        requests(24), paged(release), kvsim.machine("H200/Llama-3-8B", num_blocks=num_blocks), refuse_misfits=True
    )


def small_workload(layers: list[dict[str, object]]) -> dict[str, object]:
    """An oracle's workload with such layers."""
    request = {"id": "a", "arrival_step": 0, "prompt_len": 3, "output_len": 2}
    return {"num_blocks": 9, "block_size": 2, "groups": layers, "requests": [request]}


def test_changes_are_listed_release_by_release_and_each_changes_something() -> None:
    numbers = [number_of(change.since) for change in CHANGES]
    assert numbers == sorted(numbers)
    assert number_of(OLDEST) <= numbers[0]
    assert numbers[-1] <= number_of(NEWEST)
    for change in CHANGES:
        assert change.values, change
        assert change.says.endswith("."), change


@pytest.mark.parametrize(
    ("release", "reused", "junction"),
    [
        ("0.20.2", ReusedFirst.NONE, Junction.UNUSED),
        ("0.21.0", ReusedFirst.NONE, Junction.UNUSED),
        ("0.23", ReusedFirst.WINDOWS, Junction.UNUSED),
        ("0.25.1+cu129", ReusedFirst.ALL, Junction.FIRST_CHUNK),
        ("v0.27.1", ReusedFirst.WITH_CACHING, Junction.KEPT),
        ("0.28.0", ReusedFirst.ALL, Junction.KEPT),
        ("0.33.4", ReusedFirst.ALL, Junction.KEPT),
    ],
)
def test_a_release_follows_the_nearest_known_below(release: str, reused: ReusedFirst, junction: Junction) -> None:
    rules = rules_of(release)
    assert (rules.reused_first, rules.junction) == (reused, junction)


def test_a_release_that_is_not_known_is_followed_as_the_nearest_in_a_sentence_that_says_so() -> None:
    assert rules_of("0.40.0") == rules_of(NEWEST)
    assert rules_of("0.9.2") == rules_of(OLDEST)
    [newer], [older] = nearest_words("0.40.0"), nearest_words("0.9.2")
    assert "0.40.0" in newer
    assert NEWEST in newer
    assert OLDEST in older
    assert nearest_words("0.33.4") == nearest_words("0.21.0") == []
    with pytest.raises(UsageError, match=r"a release such as 0\.33\.0, not 'newest'"):
        rules_of("newest")


def test_defaults_follow_the_release() -> None:
    assert [ContinuousSettings(vllm=release).async_scheduling for release in ("0.13.0", "0.14.0")] == [False, True]
    assert ContinuousSettings(vllm="0.33.0", async_scheduling=False).async_scheduling is False
    assert [defaults_of(release).gpu_memory_utilization for release in ("0.19.1", "0.20.2")] == [0.9, 0.92]
    assert [defaults_of(release).retention_tokens for release in ("0.29.0", "0.30.0")] == [None, 0]


@pytest.mark.parametrize(
    ("release", "engine", "words"),
    [
        ("0.11.2", {}, "those of 0.12.0 to 0.33.0 are"),
        ("0.34.0", {}, "those of 0.12.0 to 0.33.0 are"),
        ("0.16.0", {"has_groups": True}, "layers of several kinds"),
        ("0.19.1", {"num_stages": 2}, "pipelines"),
        ("0.33.0", {"offloads": True}, "native offload"),
    ],
)
def test_what_is_not_known_of_a_release_is_refused(release: str, engine: dict[str, object], words: str) -> None:
    usual = {"has_groups": False, "num_stages": 1, "offloads": False}
    check_known("0.25.1", **usual | engine)
    with pytest.raises(UsageError, match=re.escape(words)):
        check_known(release, **usual | engine)


def test_a_threshold_above_the_longest_sequence_is_refused_where_vllm_does() -> None:
    settings = ContinuousSettings(
        max_num_seqs=4, max_num_batched_tokens=64, max_model_len=100, long_prefill_token_threshold=200
    )
    replace(settings, vllm="0.26.0").check_starts()
    for release in ("0.27.0", NEWEST):
        with pytest.raises(UsageError, match="does not start with long_prefill_token_threshold"):
            replace(settings, vllm=release).check_starts()


def test_a_simulation_states_its_release_and_is_verified_by_it() -> None:
    runs = {release: serve(release) for release in ("0.22.1", "0.33.0")}
    blocks = [run.memory.address.tolist() for run in runs.values()]
    assert blocks[0] != blocks[1], "the order of freed blocks differs"
    for release, run in runs.items():
        assert run.meta.policy["vllm"] == release
        assert verify_recording(run).equal
        other = replace(run, meta=replace(run.meta, policy={**run.meta.policy, "vllm": "0.25.1"}))
        assert verify_recording(other).equal == (release == "0.33.0")
    unknown = replace(run, meta=replace(run.meta, policy={**run.meta.policy, "vllm": "0.40.0"}))
    with pytest.raises(RecordingError, match=r"0\.40\.0 are not known"):
        verify_recording(unknown)


@pytest.mark.parametrize(("release", "mode"), [("0.27.1", "all"), ("0.28.0", "align"), ("0.33.0", "align")])
def test_states_are_kept_for_hits_as_the_release_does_by_default(release: str, mode: str) -> None:
    machine = kvsim.machine("H200/granite-4.0-h-350m", num_blocks=60)
    layout = machine.layout(paged(release))
    assert layout is not None
    assert {group.mamba_mode for group in layout.groups} == {None, mode}
    served = kvsim.simulate(requests(4), paged(release), machine, refuse_misfits=True)
    assert (served.requests.output_tokens == 60).all()


def test_a_model_that_keeps_every_state_caches_no_prefix_in_the_newest_release() -> None:
    layers = [{"type": "mamba", "block_size": 2}, {"type": "full", "block_size": 2}]
    workload = parse_workload(small_workload(layers) | {"mamba_cache_mode": "all"}, "the workload")
    OracleRun(workload.of_release("0.32.0"))
    with pytest.raises(UsageError, match="does not cache prefixes of a model that keeps the recurrent state"):
        OracleRun(workload.of_release("0.33.0"))


def test_who_is_passed_over_before_those_that_were_takes_no_place_of_theirs() -> None:
    """What vLLM 0.30.0 says: by priority, `r03` is looked at before `r01`, which was passed over earlier."""
    run = OracleRun(parse_workload(generated("several-1-133")[1], "the workload").of_release("0.30.0"))
    step = next(record for record in run.records() if record["kind"] == "schedule" and record["i"] == 21)
    assert (step["scheduled"], step["skipped"], step["waiting"]) == ([["r00", 1]], ["r03", "r01"], ["r04"])


def test_pages_that_do_not_divide_are_refused_where_vllm_does() -> None:
    layers = [
        {"type": "full", "num_kv_heads": 3, "indexes_by_stride": True},
        {"type": "sliding_window", "window": 4, "num_kv_heads": 2, "indexes_by_stride": True},
    ]
    workload = parse_workload(small_workload(layers), "the workload")
    OracleRun(workload.of_release("0.24.0"))
    with pytest.raises(UsageError, match=r"vLLM 0\.23\.0 does not start with a page"):
        OracleRun(workload.of_release("0.23.0"))


def test_size_refuses_such_pages_before_an_engine_starts(
    kvsim: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    shape = {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_hidden_layers": 4,
        "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4, "num_global_key_value_heads": 4,
        "head_dim": 256, "global_head_dim": 384, "intermediate_size": 10240, "vocab_size": 32768,
        "max_position_embeddings": 32768, "sliding_window": 1024, "torch_dtype": "bfloat16",
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": True, "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    arguments = ("size", "--gpu", "H200", "--model", tmp_path / "config.json")
    refused = kvsim(*arguments, "--vllm", "0.22.1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("kvsim: vLLM 0.22.1 does not start with a page of one layer that does not divide")
    assert kvsim(*arguments, "--vllm", "0.24.0").returncode == 0


def test_pipelines_are_followed_from_the_oldest_release_that_was_asked() -> None:
    check_known("0.20.0", num_stages=2)
    with pytest.raises(
        UsageError, match=r"vLLM 0\.19\.1 for pipelines are not known; those of 0\.20\.0 to 0\.33\.0 are"
    ):
        check_known("0.19.1", num_stages=2)


def test_states_of_every_block_beside_smaller_blocks_are_refused_where_vllm_does() -> None:
    workload = parse_workload(generated("several-1-16")[1], "the workload")
    assert workload.of_release("0.27.1").layout == workload.layout
    with pytest.raises(RecordingError, match="prompts are hashed 2 tokens at a time"):
        workload.of_release("0.30.0")
