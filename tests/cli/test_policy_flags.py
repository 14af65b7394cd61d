"""The flags of the contiguous and the static policy reach the simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..conftest import REPOSITORY

if TYPE_CHECKING:
    import subprocess

Run = Callable[..., "subprocess.CompletedProcess[str]"]
REQUESTS = (
    *("--arrivals", "at-once", "--num-requests", "60", "--prompt-tokens", "40:0.8", "--output-tokens", "60:0.8"),
    *("--num-blocks", "60", "--max-model-len", "512", "--check", "--json"),
)


@pytest.fixture(scope="module")
def summary(kvsim: Run) -> Callable[..., dict[str, Any]]:
    def run(*flags: str) -> dict[str, Any]:
        done = kvsim("run", *flags, *REQUESTS, "--no-band")
        odd = [line for line in done.stderr.splitlines() if "the times extrapolate" not in line]
        assert (done.returncode, odd) == (0, [])
        return dict(json.loads(done.stdout))

    return run


def test_contiguous_reservations_can_grow_move_and_be_compacted(summary: Callable[..., dict[str, Any]]) -> None:
    contiguous = ("--policy", "contiguous", "--reserve")
    oracle, compacted = summary(*contiguous, "oracle"), summary(*contiguous, "oracle", "--compaction")
    assert oracle["num_fragmented_requests"] > 0 == compacted["num_fragmented_requests"]
    moving, failing = summary(*contiguous, "doubling"), summary(*contiguous, "doubling", "--growth", "fail")
    assert failing["num_preemptions"] > moving["num_preemptions"] > oracle["num_preemptions"] == 0
    assert summary(*contiguous, "oracle", "--request-level")["mean_batch"] < oracle["mean_batch"]


def test_static_batches_can_wait_be_sorted_and_run_out_of_memory(summary: Callable[..., dict[str, Any]]) -> None:
    static = ("--policy", "static")
    plain, alike = summary(*static), summary(*static, "--sort-by-length")
    assert alike["waste"]["allocated_percent"]["padding"] < plain["waste"]["allocated_percent"]["padding"]
    unguarded = summary(*static, "--batch-size", "60", "--no-memory-guard")
    assert (unguarded["num_aborted"], unguarded["num_finished"]) == (60, 0)
    assert summary(*static, "--batch-size", "61", "--batch-timeout", "7")["wait_s"]["mean"] >= 7


def test_a_time_out_that_cannot_be_is_refused(kvsim: Run) -> None:
    done = kvsim("run", "--policy", "static", "--batch-timeout", "-1", *REQUESTS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--batch-timeout should be at least 0, not -1.0" in done.stderr


def test_a_profile_is_carried_to_another_gpu_and_says_so(kvsim: Run) -> None:
    done = kvsim("run", "--num-requests", "5", "--gpu", "A100-80G", "--profile", "vllm-h200-llama-3-8b", "--all")
    assert "times: measured with this model on another GPU; how far off that is was never measured" in done.stdout
    assert "in full: transferred from H200 to A100-80G with" in done.stdout
    assert "not measured there" in done.stdout


def test_naming_the_gpu_of_the_recording_keeps_its_pool(kvsim: Run) -> None:
    few = ("run", "--workload", "vllm-h200-llama-3-8b-pressure", "--num-requests", "5", "--json")
    silent, named, other = (
        json.loads(kvsim(*few, *flags).stdout)["peak_occupancy"] for flags in ((), ("--gpu", "H200"), ("--gpu", "H100"))
    )
    assert silent == named
    assert other < named / 2


def test_a_profile_of_another_model_is_refused(kvsim: Run) -> None:
    done = kvsim("run", "--num-requests", "5", "--profile", "vllm-h200-llama-2-7b")
    assert done.returncode == 2
    assert "carry over to another GPU, not to another model" in done.stderr


def test_a_policy_in_a_file_runs_with_the_flags(
    summary: Callable[..., dict[str, Any]], kvsim: Run, tmp_path: Path
) -> None:
    evict = str(REPOSITORY / "examples" / "evict.py")
    found = summary("--policy", f"{evict}:LeastOftenHit", "--max-num-seqs", "7")
    assert (found["policy"], found["peak_batch"]) == ("least-often-hit", 7)
    assert summary("--eviction", "optimal")["prefix_hit_tokens"] >= 0
    for given, said in (
        (evict, "LeastOftenHit, TimeToLive, PinnedPrompts, TokensSaved; give one policy as"),
        (f"{evict}:Lfu", "give one policy as"),
        ("absent.py", "there is no file absent.py"),
        (str(tmp_path / "broken.py"), "cannot be made: SyntaxError"),
    ):
        (tmp_path / "broken.py").write_text("def", encoding="utf-8")
        done = kvsim("run", "--policy", given, *REQUESTS)
        assert done.returncode == 2
        assert said in " ".join(done.stderr.split())
    alias = tmp_path / "alias.py"
    alias.write_text(
        "from kvsim import CustomPolicy\n\n\nclass First(CustomPolicy):\n    name = 'first'\n\n\nOther = First\n"
    )
    for given in (str(alias), f"{alias}:Other"):
        assert summary("--policy", given)["policy"] == "first"
    done = kvsim("fit", "--eviction", "optimal", "--users", "2")
    assert (done.returncode, "leave it out" in done.stderr) == (2, True)
    sweep = ("--policy", f"{evict}:LeastOftenHit", *REQUESTS[:8], "--vary", "num-blocks=80,90", "--jobs", "1")
    for counts in ("2 done, 0 kept", "0 done, 2 kept"):
        done = kvsim("sweep", *sweep, "-o", str(tmp_path / "points.parquet"))
        assert (done.returncode, counts in done.stdout) == (0, True), done.stderr


def test_flags_add_to_the_settings_of_a_policy_in_a_file_and_never_contradict_them(
    summary: Callable[..., dict[str, Any]], kvsim: Run, tmp_path: Path
) -> None:
    file = tmp_path / "few.py"
    file.write_text(
        "from kvsim import ContinuousSettings, CustomPolicy, PagedSettings\n\n\n"
        "class Few(CustomPolicy):\n"
        "    scheduler = ContinuousSettings(max_num_seqs=3)\n"
        "    cache = PagedSettings(enable_prefix_caching=False)\n",
        encoding="utf-8",
    )
    found = summary("--policy", str(file), "--max-num-batched-tokens", "77")
    assert found["peak_batch"] == found["limits"]["max_num_seqs"] == 3
    assert found["limits"]["max_num_batched_tokens"] == 77
    assert found["prefix_queried_tokens"] == 0
    for flag, name in (("--max-num-seqs", "max_num_seqs"), ("--enable-prefix-caching", "enable_prefix_caching")):
        values = () if flag.startswith("--enable") else ("9",)
        done = kvsim("run", "--policy", str(file), flag, *values, *REQUESTS)
        assert (done.returncode, done.stdout) == (2, "")
        said = f" has no effect: the policy in {file} sets {name}; leave one out."
        assert flag in done.stderr
        assert said in " ".join(done.stderr.split())


def test_a_setting_that_only_follows_from_the_release_in_a_file_can_be_given_as_a_flag(
    summary: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "old.py"
    file.write_text(
        "from kvsim import ContinuousSettings, CustomPolicy\n\n\n"
        "class Old(CustomPolicy):\n"
        "    scheduler = ContinuousSettings(vllm='0.12.0')\n",
        encoding="utf-8",
    )
    apart, ahead = summary("--policy", str(file)), summary("--policy", str(file), "--async-scheduling")
    assert apart["duration_s"] > ahead["duration_s"]
