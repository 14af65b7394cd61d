"""Comparison of an installed vLLM with kvsim under the rules of its release, on golden and generated workloads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from importlib.resources import files
from random import Random
from typing import TYPE_CHECKING

from kvsim.conformance.answered_workload import answer, compare
from kvsim.conformance.driven import VllmMissingError
from kvsim.conformance.explained import Finding, explain
from kvsim.conformance.generated import realistic, small, staged
from kvsim.conformance.generated_groups import grouped, staged_groups
from kvsim.conformance.verdict import COUNTS
from kvsim.policies.releases import NEWEST, check_known, is_known, nearest_words, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.conformance.answered_workload import AnsweredWorkload
    from kvsim.conformance.driven import DrivenVllm
    from kvsim.conformance.generated import Document

GROUPS = ("one", "several", "both")
_KINDS: dict[str, tuple[tuple[Callable[[Random], Document], int], ...]] = {
    "one": ((small, 16), (staged, 3), (realistic, 1)),
    "several": ((grouped, 17), (staged_groups, 3)),
}
_MOST_EQUAL = 120
"""Limit for the equal workloads that are kept to test variants. With a variant, these must all stay equal."""
_MOST_RECORDS = 150
"""Limit for the number of records in an equal workload that is kept."""


@dataclass(slots=True, kw_only=True)
class Conformity:
    """Result of the comparison of an installed vLLM with kvsim."""

    installed: str
    release: str
    """vLLM release whose rules kvsim followed."""
    notes: list[str] = field(default_factory=list)
    num_workloads: int = 0
    num_refused: int = 0
    """Number of workloads that vLLM and kvsim both refuse."""
    totals: Counter[str] = field(default_factory=Counter)
    """Sums of counts such as `num_steps` (see `COUNTS`) over all workloads, each up to its first difference."""
    differing: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if no workload differs."""
        return not self.differing


def golden_workloads() -> list[tuple[str, Document]]:
    """Return the name and the document of each golden workload: a small one for each rule in which releases differ."""
    text = files(__package__).joinpath("golden.json").read_text(encoding="utf-8")
    return list(json.loads(text).items())


def workloads(*, count: int, seed: int, groups: str) -> Iterator[tuple[str, Document]]:
    """Yield the name and the document of each workload: the golden ones, then `count` generated ones.

    `groups` is one of `GROUPS`. `generated` makes a workload again from its name.
    """
    for name, document in golden_workloads():
        if groups == "both" or ("groups" in document) == (groups == "several"):
            yield name, document
    for number in range(count):
        kind = groups if groups != "both" else GROUPS[number % 2]
        yield generated(f"{kind}-{seed}-{number}")


def generated(name: str) -> tuple[str, Document]:
    """Generate the workload called `name`, and return the name and the document.

    A name such as `several-0-17` states the KV-cache groups ("one" or "several"), the seed, and the workload's index.
    """
    makers, weights = zip(*_KINDS[name.partition("-")[0]], strict=True)
    random = Random(name)
    return name, random.choices(makers, weights)[0](random)


def conform(
    engine: DrivenVllm,
    *,
    count: int,
    seed: int = 0,
    groups: str = "both",
    release: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> Conformity:
    """Compare each decision of a vLLM with the rules of `release`, on golden and on `count` generated workloads.

    Args:
        engine: the process with vLLM.
        count: number of generated workloads.
        seed: seed of the generated workloads.
        groups: `one` KV-cache group, `several`, or `both`.
        release: the release whose rules kvsim follows. None: the engine's release, or the newest one that kvsim knows
            if the engine's is newer.
        progress: function called with the number of compared workloads and the number of all workloads.

    Raises:
        UsageError: the release is older than all known releases, or not a release.
        VllmMissingError: the engine serves no workload at all.
    """
    installed = engine.release
    result = Conformity(installed=installed, release=release or installed)
    if release is None and not is_known(installed) and number_of(installed) > number_of(NEWEST):
        result.release, result.notes = NEWEST, nearest_words(installed)
    check_known(result.release, has_groups=groups != "one")
    differing: list[AnsweredWorkload] = []
    equal: list[AnsweredWorkload] = []
    failures: list[str] = []
    named = list(workloads(count=count, seed=seed, groups=groups))
    for number, (name, document) in enumerate(named):
        progress(number, len(named))
        answered = answer(engine, name, document)
        outcome = compare(answered, result.release)
        result.num_workloads += 1
        result.num_refused += outcome.is_refused
        result.totals.update({name: getattr(outcome.verdict, name) for name in COUNTS})
        if answered.failure and not answered.records:
            failures.append(answered.failure)
        if not outcome.equal:
            result.differing.append(name)
            differing.append(answered)
        elif answered.records and len(answered.records) <= _MOST_RECORDS and len(equal) < _MOST_EQUAL:
            equal.append(answered)
    if len(failures) == result.num_workloads:
        raise VllmMissingError(f"vLLM {installed} cannot be driven: {failures[0]}.")
    result.findings = explain(differing, equal, result.release)
    return result
