"""`kvsim conform`: vLLM's own files against the rules that kvsim knows, and files with other rules, which are named."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

from kvsim.conformance.answered_workload import UNAWAITED, AnsweredWorkload, answer, compare
from kvsim.conformance.conformity import Conformity, conform, generated, golden_workloads, workloads
from kvsim.conformance.driven import DRIVER, DrivenVllm, EngineFailedError, VllmMissingError
from kvsim.conformance.explained import rule_of
from kvsim.conformance.variants import variants_of
from kvsim.errors import UsageError
from kvsim.policies.releases import NEWEST, rules_of, varied

from ..vllm_engine.install import NEWEST as INSTALLED
from ..vllm_engine.install import missing, python_path
from .rule_workloads import name_of, shows, told

if TYPE_CHECKING:
    import subprocess

    Run = Callable[..., subprocess.CompletedProcess[str]]

NOT_SHOWN = {"every_state_has_v2_runner", "caches_every_state", "marks_prompt_end"}
"""Rules that no golden workload shows: two matter to models that the newest release does not serve, one is rare."""
FEATURES = {"spec", "lora", "kv", "mm", "rank", "offload"}
"""Fields of workloads with drafts, adapters, connectors, images, data-parallel ranks and host memory."""
CHANGES = {
    "order of freeing": (
        "block_pool.py",
        "self.free_block_queue.prepend_n(blocks_to_evict_first)",
        "self.free_block_queue.append_n(blocks_to_evict_first)",
    ),
    "watermark": ("kv_cache_manager.py", "watermark_blocks = self.watermark_blocks", "watermark_blocks = 0"),
    "last token": (
        "kv_cache_manager.py",
        "max_cache_hit_length = request.num_tokens - 1",
        "max_cache_hit_length = max(request.num_tokens - 2, 0)",
    ),
}
"""Rules that are changed by hand: the file, what it says, and what it says then."""


def files_of_newest() -> list[str]:
    """The folders of the newest release's files, and of what they need."""
    if reason := missing(INSTALLED):
        pytest.skip(reason)
    return python_path(INSTALLED, Path()).split(os.pathsep)[:2]


@pytest.fixture(scope="module")
def newest(interpreter_with_vllm: Callable[[str], tuple[str, ...]]) -> Iterator[DrivenVllm]:
    path = os.pathsep.join(files_of_newest())
    python, *first = interpreter_with_vllm(INSTALLED)
    with DrivenVllm(python, (*first, str(DRIVER)), PYTHONPATH=path) as engine:
        yield engine


@pytest.fixture(scope="module")
def changed(interpreter_with_vllm: Callable[[str], tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of the newest release with three rules changed by hand."""
    files, _ = files_of_newest()
    core = tmp_path_factory.mktemp("changed") / "core"
    copytree(Path(files, "vllm", "v1", "core"), core)
    for name, before, after in CHANGES.values():
        text = (core / name).read_text()
        assert before in text
        (core / name).write_text(text.replace(before, after))
    interpreter = core.with_name("python")
    command = shlex.join([*interpreter_with_vllm(INSTALLED), "-m", "tests.vllm_engine.changed_core", str(core)])
    interpreter.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    interpreter.chmod(0o755)
    return interpreter


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_the_newest_release_decides_as_kvsim_does(newest: DrivenVllm, count: int) -> None:
    result = conform(newest, count=count, seed=1)
    assert (result.equal, result.findings, result.installed, result.release) == (True, [], NEWEST, NEWEST)
    assert result.num_workloads == count + len(golden_workloads())
    assert min(result.totals[name] for name in ("num_steps", "num_hits", "num_preemptions", "num_evictions")) > 0


@pytest.mark.parametrize(("count", "seed"), [(16, 2), pytest.param(60, 0, marks=pytest.mark.slow)])
def test_rules_changed_by_hand_are_named(changed: Path, count: int, seed: int, kvsim: Run, tmp_path: Path) -> None:
    """By the command, which writes a report and fails where something differs."""
    drawn = ("--count", str(count), "--seed", str(seed))
    done = kvsim("conform", *drawn, "--report", tmp_path / "report", "--python", changed)
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["vllm"], document["compared_with"], document["equal"]) == (NEWEST, NEWEST, False)
    assert document["num_workloads"] == count + len(golden_workloads())
    ways = [[each["name"] for each in way] for finding in document["findings"] for way in finding["explained_by"]]
    assert ["reused_first"] in ways
    assert ["knows_watermark"] in ways
    assert any("last-token rule" in each["rule"] and not each["explained_by"] for each in document["findings"])
    assert "Explained by: reused_first" in done.stdout
    assert "| **differs** |" in (tmp_path / "report.md").read_text()


def test_the_rules_of_another_release_are_what_explains_its_decisions(newest: DrivenVllm) -> None:
    result = conform(newest, count=0, release="0.30.0")
    found = {each.name for finding in result.findings for way in finding.variants for each in way}
    assert {"lone_prompt_is_limited", "skipped_keep_places", "preempted_self_stops"} <= found
    assert not any(finding.variants == () for finding in result.findings)
    assert result.differing
    assert result.release == "0.30.0"


def test_a_workload_that_vllm_cannot_serve_does_not_stop_the_next(newest: DrivenVllm) -> None:
    name, document = generated("one-0-1")
    broken = answer(newest, "broken", document | {"groups": [{"type": "unheard-of"}]})
    assert (broken.records, broken.failure) == ([], "ValueError: there are no layers of type unheard-of")
    assert answer(newest, name, document).failure == ""
    assert compare(answer(newest, name, document), NEWEST).equal


def test_a_hit_of_a_whole_prompt_is_the_last_token_rule_although_vllm_ends() -> None:
    """Nothing is left to compute, and vLLM's scheduler asserts that there is: the line that failed names the rule."""
    document = dict(golden_workloads())["golden-reused_first-none"]
    records = told(document, release=NEWEST).records[:4]
    failed = AnsweredWorkload(
        name="failed",
        document=document,
        records=records,
        failure="AssertionError in schedule: assert num_new_tokens > 0",
    )
    assert rule_of(failed, compare(failed, NEWEST)).startswith("the last-token rule")


def test_an_end_of_vllm_that_kvsim_foresees_is_no_difference() -> None:
    """vLLM before 0.27 ends at an answer that it does not await, and only there."""
    file = Path(__file__).with_name("golden_ends") / "pipeline-0.20.2.json"
    document = json.loads(file.read_text())
    with gzip.open(file.with_suffix(".jsonl.gz"), "rt") as lines:
        records = [json.loads(line) for line in lines]
    assert records.pop()["kind"] == "failed"
    words = f"AssertionError in _update_request_with_output: assert request.{UNAWAITED}"
    ended = AnsweredWorkload(name="ended", document=document, records=records, failure=words)
    assert compare(ended, "0.20.2").equal
    other = AnsweredWorkload(
        name="other", document=document, records=records, failure="AssertionError in schedule: assert x"
    )
    assert not compare(other, "0.20.2").equal
    earlier = AnsweredWorkload(name="earlier", document=document, records=records[:-2], failure=words)
    assert not compare(earlier, "0.20.2").equal


class Stub:
    """A vLLM of some release that says of every workload what it is given."""

    def __init__(self, release: str, answer: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
        self.release, self._answer = release, answer

    def records(self, document: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(self._answer(document), 1)


def conform_with(release: str, answer: Callable[[dict[str, Any]], list[dict[str, Any]]], **more: Any) -> Conformity:
    engine: Any = Stub(release, answer)
    return conform(engine, count=0, **more)


def test_a_release_that_is_not_known_is_compared_with_the_newest() -> None:
    result = conform_with("0.99.0", lambda document: told(document).records)
    assert (result.equal, result.installed, result.release) == (True, "0.99.0", NEWEST)
    assert result.notes == [
        f"the rules of vLLM 0.99.0 are not known: those of {NEWEST}, the nearest that is, are followed"
    ]


def test_a_release_that_is_too_old_is_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.11\.2"):
        conform_with("0.11.2", lambda document: told(document).records)


def test_a_vllm_that_serves_nothing_cannot_be_driven() -> None:
    def fail(_: dict[str, Any]) -> list[dict[str, Any]]:
        raise EngineFailedError("AttributeError: no attribute schedule")

    with pytest.raises(VllmMissingError, match=r"vLLM 0\.33\.0 cannot be driven: AttributeError"):
        conform_with("0.33.0", fail)


def test_two_rules_that_changed_together_are_named_as_a_pair() -> None:
    """A workload that shows both at once is explained by no variant alone."""
    document = dict(golden_workloads())["golden-reused_first-none"]
    other = varied(NEWEST, {"reused_first": rules_of("0.22.1").reused_first, "knows_watermark": False})
    both = AnsweredWorkload(name="both", document=document, records=told(document, release=other).records)
    assert not compare(both, NEWEST, decisions_only=True).equal
    result = conform_with("0.33.0", lambda each: told(each, release=other).records)
    found = {each.name for finding in result.findings for way in finding.variants for each in way}
    assert {"reused_first", "knows_watermark"} <= found


def test_every_rule_has_a_golden_workload_that_shows_it() -> None:
    documents = dict(golden_workloads())
    for variant in variants_of(NEWEST):
        if variant.name not in NOT_SHOWN:
            assert shows(documents[name_of(variant)], variant), variant


def test_rules_of_features_that_no_workload_has_are_not_tried() -> None:
    assert not any(FEATURES & document.keys() for _, document in workloads(count=60, seed=0, groups="both"))
    tried = {variant.name for variant in variants_of(NEWEST)}
    assert "images_wait" not in tried
    assert tried >= NOT_SHOWN


def test_workloads_are_made_again_from_their_names() -> None:
    made = list(workloads(count=6, seed=3, groups="both"))[-6:]
    assert [name for name, _ in made] == [f"{('one', 'several')[number % 2]}-3-{number}" for number in range(6)]
    assert all(generated(name) == (name, document) for name, document in made)
    assert all("groups" not in document for _, document in workloads(count=4, seed=3, groups="one"))
    assert all("groups" in document for _, document in workloads(count=4, seed=3, groups="several"))


@pytest.mark.slow
def test_the_command_follows_the_rules_of_the_release_that_it_is_given(kvsim: Run, tmp_path: Path) -> None:
    path = os.pathsep.join(files_of_newest())
    arguments = ("--count", "0", "--groups", "several", "--report", tmp_path / "report")
    done = kvsim("conform", *arguments, "--vllm", "0.30.0", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "Explained by: lone_prompt_is_limited = False" in done.stdout
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["vllm"], document["compared_with"], document["equal"]) == (NEWEST, "0.30.0", False)
    assert any(finding["explained_by"] for finding in document["findings"])
    assert "| **differs** |" in (tmp_path / "report.md").read_text()


def test_an_interpreter_without_vllm_ends_in_a_sentence(kvsim: Run) -> None:
    done = kvsim("conform", "--python", sys.executable, PYTHONNOUSERSITE="1")
    assert done.returncode == 1
    assert done.stderr.startswith(f"kvsim: {sys.executable} has no vLLM that can be driven (ModuleNotFoundError: ")
    assert done.stderr.count("\n") == 1
    missing = kvsim("conform", "--python", "/nowhere/python")
    assert missing.stderr == ("kvsim: /nowhere/python cannot be run: No such file or directory; give an interpreter.\n")
