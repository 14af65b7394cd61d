"""Find the rules that explain the differences between vLLM and kvsim.

The first field that differs is assigned to the rule that decides it. Then variants of the rules are tried, to find
those with which the difference disappears.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from kvsim.conformance.answered_workload import AnswerComparison, compare
from kvsim.conformance.variants import variants_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.conformance.answered_workload import AnsweredWorkload
    from kvsim.conformance.variants import Document, Variant
    from kvsim.conformance.verdict import Difference, VerdictLine

_MOST_FINDINGS = 12
_MOST_IN_PAIRS = 3
"""Number of differing workloads on which pairs of variants are tried first: the shortest ones.

A pair that makes no such workload equal is not tried on the others. Workloads that differ in the last-token rule of
prefix hits (`_LAST_TOKEN`) are left out, because no variant changes this rule.
"""
_RULES: tuple[tuple[str, str], ...] = (
    ("kind", "the engine's loop: when a step is scheduled, and when an output is processed"),
    ("preempted", "preemption: the request that gives way, and when one has to"),
    ("new", "admission: the waiting request that is let in, and the room that it needs"),
    ("resumed", "admission: the preempted request that is let in again, and the room that it needs"),
    ("new_computed", "prefix hits: the tokens that an admitted request finds in the cache"),
    ("scheduled", "the size of a step: its requests, their order, and the tokens of each"),
    ("finished", "the end of a request: limits and stop tokens"),
    ("tokens", "the outputs of a step"),
    ("waiting", "the order of the waiting queue"),
    ("skipped", "the queue of requests that are passed over"),
    ("running", "the order of running requests"),
    ("free", "the number of blocks that a request holds, and when it lets go"),
    ("new_block_ids", "the order in which free blocks are used"),
    ("blocks", "the order in which free blocks are used"),
    ("keyed", "the blocks that are put into the prefix cache, and when they lose their prefix"),
    ("cached_keys", "the blocks that are put into the prefix cache, and when they lose their prefix"),
    ("free_queue", "the order in which freed blocks are used again"),
    ("computed", "the tokens that count as computed"),
    ("placeholders", "the outputs that are awaited"),
    ("start", "the workloads that are refused at the start"),
    ("end", "the workloads that vLLM itself fails on"),
)
"""Fields of a record, each with the rule that decides it. The first of these fields that differs names the rule."""
_SETTINGS = "the settings that an engine makes of its flags"
_NOTHING_LEFT = "num_new_tokens > 0"
"""Text of an assertion that fails in vLLM: an admitted request has no token to compute after its prefix hit."""
_LAST_TOKEN = "the last-token rule of prefix hits: a hit ends before the last token of a request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule in which vLLM and kvsim differ."""

    rule: str
    """Rule that decides the first field that differs."""
    variants: tuple[tuple[Variant, ...], ...]
    """Equally good explanations of the difference, each one variant or a pair of variants. Empty if there is none."""
    num_workloads: int
    """Number of workloads that `variants` explain.

    If `variants` is empty, it is the number of unexplained workloads that differ first in `rule`.
    """
    example: AnsweredWorkload
    """Shortest workload with this finding, and vLLM's decisions for it."""
    difference: Difference


def explain(differing: Sequence[AnsweredWorkload], equal: Sequence[AnsweredWorkload], release: str) -> list[Finding]:
    """Return the rules in which vLLM differs from the rules of a release.

    A variant is one rule or setting with another value. It is accepted if the first difference of some workloads comes
    later or disappears, no first difference comes earlier, and all `equal` workloads stay equal. Each further variant
    is combined with the accepted ones, up to `_MOST_FINDINGS` findings. Differences that no variant explains are
    grouped by the rule that decides the differing field.
    """
    search = _VariantSearch(differing, equal, release)
    findings: list[Finding] = []
    while search.open and len(findings) < _MOST_FINDINGS:
        found = search.next_variants()
        if not found:
            break
        findings.append(search.accept(found))
    return findings + search.unexplained()


class _VariantSearch:
    def __init__(self, differing: Sequence[AnsweredWorkload], equal: Sequence[AnsweredWorkload], release: str) -> None:
        self._release, self._equal = release, equal
        self._accepted: tuple[Variant, ...] = ()
        ordered = sorted(differing, key=lambda answered: len(answered.records))
        self.open = self._outcomes(ordered)
        """Workloads that differ under the accepted variants, the shortest first, each with its comparison."""
        whole = {answered: compare(answered, release) for answered in ordered}
        self._settings = {answered: outcome for answered, outcome in whole.items() if _is_of_settings(outcome)}

    def _outcomes(self, workloads: Iterable[AnsweredWorkload]) -> dict[AnsweredWorkload, AnswerComparison]:
        compared = {answered: self._compare(answered, ()) for answered in workloads}
        return {answered: outcome for answered, outcome in compared.items() if not outcome.equal}

    def _compare(self, answered: AnsweredWorkload, more: Sequence[Variant]) -> AnswerComparison:
        return compare(answered, self._release, (*self._accepted, *more), decisions_only=True)

    def next_variants(self) -> list[tuple[Variant, ...]]:
        """Return the single variants with the highest score (see `_score`). Several variants may have it.

        If no single variant explains any difference, return the pairs of variants with the highest score.
        """
        taken = {each.name for each in self._accepted}
        singles = [each for each in variants_of(self._release) if each.name not in taken]
        alone = self._best((each,) for each in singles)
        if alone:
            return alone
        unnamed = [answered for answered, outcome in self.open.items() if rule_of(answered, outcome) != _LAST_TOKEN]
        pairs = ((one, other) for one, other in combinations(singles, 2) if one.name != other.name)
        return self._best(pair for pair in pairs if self._helps(pair, unnamed[:_MOST_IN_PAIRS]))

    def _helps(self, variants: tuple[Variant, ...], workloads: list[AnsweredWorkload]) -> bool:
        return any(self._compare(answered, variants).equal for answered in workloads)

    def _best(self, candidates: Iterable[tuple[Variant, ...]]) -> list[tuple[Variant, ...]]:
        best: list[tuple[Variant, ...]] = []
        highest = (0, 1)
        for variants in candidates:
            score = self._score(variants, highest)
            if score is None or not self._leaves_equal(variants):
                continue
            if score > highest:
                best, highest = [], score
            best.append(variants)
        return best

    def _score(self, variants: tuple[Variant, ...], least: tuple[int, int]) -> tuple[int, int] | None:
        """Return two numbers of workloads: those that become equal, and those that become equal or differ later.

        Return None if a workload differs earlier than before, or as soon as the score cannot reach `least`.
        """
        num_equal, num_later = 0, 0
        for num_left, (answered, before) in zip(range(len(self.open) - 1, -1, -1), self.open.items(), strict=True):
            after = self._compare(answered, variants)
            if not after.equal and after.num_equal < before.num_equal:
                return None
            num_equal += after.equal
            num_later += after.equal or after.num_equal > before.num_equal
            if (num_equal + num_left, num_later + num_left) < least:
                return None
        return num_equal, num_later

    def _leaves_equal(self, variants: tuple[Variant, ...]) -> bool:
        return all(self._compare(answered, variants).equal for answered in self._equal)

    def accept(self, found: list[tuple[Variant, ...]]) -> Finding:
        """Apply the first of the equally good explanations `found`, and return a finding that lists them all."""
        before = self.open
        self._accepted = (*self._accepted, *found[0])
        self.open = self._outcomes(before)
        improved = [
            answered
            for answered in before
            if answered not in self.open or self.open[answered].num_equal > before[answered].num_equal
        ]
        return _finding(tuple(found), improved, before)

    def unexplained(self) -> list[Finding]:
        """Return a finding for each rule that decides the first difference of a workload in `open`.

        The most frequent rule comes first. If settings in the first record differ, a finding about them is first.
        """
        by_rule = defaultdict(list)
        for answered, outcome in self.open.items():
            by_rule[rule_of(answered, outcome)].append(answered)
        shown = sorted(by_rule.values(), key=len, reverse=True)
        settings = [_finding((), list(self._settings), self._settings)] if self._settings else []
        return settings + [_finding((), workloads, self.open) for workloads in shown]


def _finding(
    variants: tuple[tuple[Variant, ...], ...],
    workloads: list[AnsweredWorkload],
    outcomes: Mapping[AnsweredWorkload, AnswerComparison],
) -> Finding:
    example = workloads[0]
    difference = outcomes[example].verdict.difference
    assert difference is not None
    return Finding(
        rule=rule_of(example, outcomes[example]),
        variants=variants,
        num_workloads=len(workloads),
        example=example,
        difference=difference,
    )


def rule_of(answered: AnsweredWorkload, outcome: AnswerComparison) -> str:
    """Return the rule that decides the first field in which the workload of `outcome` differs."""
    difference = outcome.verdict.difference
    assert difference is not None
    if _is_of_settings(outcome):
        return _SETTINGS
    if _NOTHING_LEFT in answered.failure and difference.moment == "the end":
        return _LAST_TOKEN
    labels = {line.label.partition(".")[0].partition("[")[0] for line in difference.lines if line.differs}
    if "new_computed" in labels and not labels & {"preempted", "new", "resumed"}:
        prompts = {request["id"]: request["prompt_len"] for request in answered.document["requests"]}
        for line in difference.lines:
            name = line.label.partition(".")[2]
            if line.label.startswith("new_computed.") and _is_last_token(line, prompts[name], answered.document):
                return _LAST_TOKEN
    return next((rule for field, rule in _RULES if field in labels), f"the fields {', '.join(sorted(labels))}")


def _is_of_settings(outcome: AnswerComparison) -> bool:
    difference = outcome.verdict.difference
    return difference is not None and difference.moment.startswith("meta")


def _is_last_token(line: VerdictLine, num_tokens: int, document: Document) -> bool:
    if not (line.recorded.isdigit() and line.simulated.isdigit()):
        return False
    block_size = document.get("block_size", 16)
    return bool(int(line.simulated) == (num_tokens - 1) // block_size * block_size)
