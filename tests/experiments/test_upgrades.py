"""Two releases of vLLM on the same load: what differs first, and the rule that is named for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import kvsim
from kvsim.errors import UsageError
from kvsim.policies.releases import defaults_of, net_changes, rules_of, varied
from kvsim.simulation.simulation_run import SimulationRun

from ..conftest import PRESSURE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.simulation.measured import Measured

    Run = Callable[..., subprocess.CompletedProcess[str]]

GEMMA = (
    *("--gpu", "H200", "--model", "gemma-4-26B-A4B-it", "--kv-gib", "20", "--max-model-len", "131072"),
    *("--num-requests", "4", "--prompt-tokens", "3000", "--output-tokens", "20", "--arrivals", "at-once"),
)


@pytest.fixture(scope="module")
def few() -> kvsim.Workload:
    return kvsim.workload_of(kvsim.read(PRESSURE)).head(60)


def test_a_release_with_the_net_changes_of_another_has_its_rules() -> None:
    for old, new in (("0.12.0", "0.33.0"), ("0.22.1", "0.33.0"), ("0.25.1", "0.27.1"), ("0.20.0", "0.24.0")):
        switched = {name: value for each in net_changes(old, new) for name, value in each.values.items()}
        assert rules_of(varied(old, switched)) == rules_of(new)
        assert defaults_of(varied(old, switched)) == defaults_of(new)


def test_a_change_that_was_taken_back_is_none() -> None:
    switched = {name for each in net_changes("0.26.0", "0.33.0") for name in each.values}
    assert "marks_prompt_end" not in switched  # only 0.32 marks it
    assert "reused_first" not in switched  # only 0.27 differs


def test_the_name_of_a_varied_release_is_read_with_care() -> None:
    assert not rules_of("0.25.1+cu129").windows_wait
    assert rules_of("0.25.1+windows_wait=yes").windows_wait
    with pytest.raises(UsageError, match="there is no value of windows_wait 'maybe'"):
        rules_of("0.25.1+windows_wait=maybe")


def test_the_order_of_freed_blocks_is_named_for_the_first_difference(few: kvsim.Workload) -> None:
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=400)
    upgrade = kvsim.compare_releases(few, "0.22.1", "0.33.0", machine)
    assert upgrade.first is not None
    [named] = [each for each in upgrade.effects if each.names_first]
    assert named.change.values == {"reused_first": rules_of("0.33.0").reused_first}
    assert named.first_step == upgrade.first.step == min(upgrade.first_step_of_kind.values())
    assert next(iter(upgrade.first_step_of_kind)) == "blocks handed out"
    assert [each.matters for each in upgrade.effects].count(True) == 1


def test_the_first_difference_is_the_first_in_two_runs(few: kvsim.Workload) -> None:
    """Blocks of the step that is named differ in two runs made apart from the comparison, and none before it does."""
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=400)
    upgrade = kvsim.compare_releases(few, "0.22.1", "0.24.0", machine)
    assert upgrade.first is not None
    limits = {"max_model_len": machine.model.max_position_embeddings}
    found = []
    for release in ("0.22.1", "0.24.0"):
        policy = kvsim.Paged(scheduler=kvsim.ContinuousSettings(vllm=release, **limits))
        memory = kvsim.simulate(few, policy, machine).memory
        found.append([set(zip(memory.step.tolist(), memory.address.tolist(), strict=True)), memory])
    apart = {step for step, _ in found[0][0] ^ found[1][0]}
    assert min(apart) == upgrade.first.step


def test_a_rule_of_which_the_engine_learns_nothing_is_not_simulated(
    few: kvsim.Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, finished = SimulationRun.finish, list[str]()

    def counted(run: SimulationRun) -> list[Measured]:
        finished.append(run.setup.base.scheduler.vllm)  # type: ignore[union-attr]
        return finish(run)

    monkeypatch.setattr(SimulationRun, "finish", counted)
    few = few.head(25)
    old, machine = "0.20.0", kvsim.machine("H200/Llama-3-8B", num_blocks=200)
    upgrade = kvsim.compare_releases(few, old, "0.33.0", machine)
    assert len(upgrade.effects) > 45
    assert 2 < len(finished) < 30
    not_simulated = [each for each in upgrade.effects if varied(old, each.change.values) not in finished]
    assert {"images_wait", "knows_watermark"} <= {name for each in not_simulated for name in each.change.values}
    limits = {"max_model_len": machine.model.max_position_embeddings}
    for each in not_simulated[::8]:
        policy = kvsim.Paged(scheduler=kvsim.ContinuousSettings(vllm=varied(old, each.change.values), **limits))
        summary = kvsim.summarize(kvsim.simulate(few, policy, machine))
        for figure in ("num_preemptions", "duration_s", "prefix_hit_rate", "output_tokens_per_s"):
            assert each.alone[figure] == getattr(summary, figure)


def test_two_releases_with_the_same_rules_make_the_same_decisions(few: kvsim.Workload) -> None:
    upgrade = kvsim.compare_releases(few, "0.24.0", "0.25.1", kvsim.machine("H200/Llama-3-8B", num_blocks=400))
    assert (upgrade.first, upgrade.first_step_of_kind, upgrade.effects) == (None, {}, ())
    assert upgrade.before == upgrade.after


def test_defaults_of_a_release_reach_a_machine_that_is_named(few: kvsim.Workload) -> None:
    """From 0.19 to 0.20 a server gets 2 % more of the memory, and no decision differs while it has room."""
    upgrade = kvsim.compare_releases(few, "0.19.1", "0.20.0", "H200/Llama-3-8B")
    assert upgrade.after["num_blocks"] > 1.02 * upgrade.before["num_blocks"]
    assert upgrade.first is None
    [effect] = upgrade.effects
    assert effect.change.values == {"gpu_memory_utilization": 0.92}
    assert effect.matters
    assert not effect.names_first


def test_a_windowed_model_needs_more_cache_from_0_26_on(kvsim: Run) -> None:
    document = _compared(kvsim, "0.25.1", "0.26.0", *GEMMA)
    before, after = document["figures"]["0.25.1"], document["figures"]["0.26.0"]
    assert after["longest_sequence_bytes"] > 1.3 * before["longest_sequence_bytes"]
    assert after["max_concurrency"] < 0.75 * before["max_concurrency"]
    [rule] = [each for each in document["rules"] if each["names_first"]]
    assert rule["switches"] == ["windows_wait"]
    assert rule["alone"]["longest_sequence_bytes"] == after["longest_sequence_bytes"]


def test_a_windowed_model_has_many_times_the_tokens_in_the_log_from_0_20_2_on(kvsim: Run) -> None:
    document = _compared(kvsim, "0.20.0", "0.22.1", *GEMMA)
    before, after = document["figures"]["0.20.0"], document["figures"]["0.22.1"]
    assert after["gpu_kv_cache_size_tokens"] > 5 * before["gpu_kv_cache_size_tokens"]
    assert after["max_concurrency"] == before["max_concurrency"]
    switches = [each["switches"] for each in document["rules"] if each["changes_together"]]
    assert ["logs_longest"] in switches


def test_the_model_of_the_report_has_its_tokens_in_the_log(kvsim: Run, tmp_path: Path) -> None:
    """vllm#43308: gemma-4-31B with 50 GiB on an A100 has 55,000 tokens, and 525,000 in the next release."""
    config = {
        "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 60, "hidden_size": 5376, "head_dim": 256,
        "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4, "global_head_dim": 512,
        "intermediate_size": 21504, "vocab_size": 262144, "sliding_window": 1024, "max_position_embeddings": 262144,
        "attention_k_eq_v": True, "torch_dtype": "bfloat16", "hidden_size_per_layer_input": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = ("--gpu", "A100-80G", "--model", str(tmp_path), "--oversize", "--kv-gib", "50", *GEMMA[6:])
    figures = _compared(kvsim, "0.20.0", "0.21.0", *flags, "--max-num-batched-tokens", "2048")["figures"]
    before, after = (figures[release]["gpu_kv_cache_size_tokens"] for release in ("0.20.0", "0.21.0"))
    assert (before, after) == (54_608, 530_400)


def test_the_comparison_is_told_in_words(kvsim: Run) -> None:
    done = kvsim("compare", "--vllm", "0.22.1", "0.24.0", "--num-requests", "60", "--num-blocks", "400")
    assert done.returncode == 0, done.stderr
    assert "The first decision that differs: step" in done.stdout
    assert "because of: Freed blocks that hold no cached prefix are reused first." in done.stdout
    same = kvsim("compare", "--vllm", "0.24.0", "0.25.1", "--num-requests", "20")
    assert "Every decision is the same." in same.stdout


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("0.33.0",), "unexpected extra argument (0.33.0)"),
        (("--vllm", "0.33.0", "0.22.1"), "name the older release first"),
        (("--vllm", "0.22.1", "0.40.0"), "the rules of vLLM 0.40.0 are not known"),
        (("--vllm", "0.22.1", "0.33.0", "--ladder"), "compare different things"),
        (("--vllm", "0.22.1", "0.33.0", "-o", "x"), "writes no recordings"),
    ],
)
def test_what_cannot_be_compared_is_refused(kvsim: Run, flags: tuple[str, ...], sentence: str) -> None:
    done = kvsim("compare", *flags)
    assert done.returncode != 0
    assert sentence in done.stderr


def _compared(kvsim: Run, old: str, new: str, *flags: str) -> dict[str, Any]:
    done = kvsim("compare", "--vllm", old, new, *flags, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
