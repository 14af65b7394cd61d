"""Name what differs: the rule that a first difference touches, and the known variants that explain it."""

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
"""Workloads on which pairs of variants are tried: the shortest of those that differ."""
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
"""The rule that a difference in a field touches; the first field that differs decides."""
_SETTINGS = "the settings that an engine makes of its flags"
_NOTHING_LEFT = "num_new_tokens > 0"
"""Assertion of vLLM about an admitted request, which fails if a hit holds all of its tokens."""
_LAST_TOKEN = "the last-token rule of prefix hits: a hit ends before the last token of a request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that differs."""

    rule: str
    """The rule that the first difference touches."""
    variants: tuple[tuple[Variant, ...], ...]
    """Known variants, each of one or two rules, that explain it; any one does."""
    num_workloads: int
    """Workloads that show it first."""
    example: AnsweredWorkload
    """The shortest."""
    difference: Difference


def explain(differing: Sequence[AnsweredWorkload], equal: Sequence[AnsweredWorkload], release: str) -> list[Finding]:
    """Find the rules that differ from those of a release.

    A variant is accepted if it lets first differences come later, and none earlier, also among `equal` workloads.
    With it, the next is looked for; differences that remain are grouped by the rule that they touch.
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
    """The variants that are accepted so far, and the workloads that still differ with them."""

    def __init__(self, differing: Sequence[AnsweredWorkload], equal: Sequence[AnsweredWorkload], release: str) -> None:
        self._release, self._equal = release, equal
        self._accepted: tuple[Variant, ...] = ()
        ordered = sorted(differing, key=lambda told: len(told.records))
        self.open = self._outcomes(ordered)
        """The first decision that differs of each workload, the shortest workload first."""
        whole = {told: compare(told, release) for told in ordered}
        self._settings = {told: outcome for told, outcome in whole.items() if _is_of_settings(outcome)}

    def _outcomes(self, workloads: Iterable[AnsweredWorkload]) -> dict[AnsweredWorkload, AnswerComparison]:
        compared = {told: self._compare(told, ()) for told in workloads}
        return {told: outcome for told, outcome in compared.items() if not outcome.equal}

    def _compare(self, told: AnsweredWorkload, more: Sequence[Variant]) -> AnswerComparison:
        return compare(told, self._release, (*self._accepted, *more), decisions_only=True)

    def next_variants(self) -> list[tuple[Variant, ...]]:
        """Return the variants, alone or else in pairs, that explain most."""
        taken = {each.name for each in self._accepted}
        singles = [each for each in variants_of(self._release) if each.name not in taken]
        alone = self._best(((each,) for each in singles), list(self.open))
        if alone:
            return alone
        pairs = ((one, other) for one, other in combinations(singles, 2) if one.name != other.name)
        hopeful = [pair for pair in pairs if self._helps(pair)]
        return self._best(hopeful, list(self.open))

    def _helps(self, variants: tuple[Variant, ...]) -> bool:
        """Tell whether variants explain one of the shortest workloads to its end."""
        return any(self._compare(told, variants).equal for told in list(self.open)[:_MOST_IN_PAIRS])

    def _best(
        self, candidates: Iterable[tuple[Variant, ...]], workloads: list[AnsweredWorkload]
    ) -> list[tuple[Variant, ...]]:
        scores: dict[tuple[int, int], list[tuple[Variant, ...]]] = defaultdict(list)
        for variants in candidates:
            score = self._score(variants, workloads)
            if score is not None:
                scores[score].append(variants)
        for score in sorted(scores, reverse=True):
            holding = [variants for variants in scores[score] if self._leaves_equal(variants)]
            if holding:
                return holding
        return []

    def _score(self, variants: tuple[Variant, ...], workloads: list[AnsweredWorkload]) -> tuple[int, int] | None:
        """Return the workloads that become equal and those that differ later; None if one differs earlier, or none
        later.
        """
        num_equal = num_later = 0
        for told in workloads:
            before, after = self.open[told], self._compare(told, variants)
            if not after.equal and after.num_equal < before.num_equal:
                return None
            num_equal += after.equal
            num_later += after.equal or after.num_equal > before.num_equal
        return (num_equal, num_later) if num_later else None

    def _leaves_equal(self, variants: tuple[Variant, ...]) -> bool:
        return all(self._compare(told, variants).equal for told in self._equal)

    def accept(self, found: list[tuple[Variant, ...]]) -> Finding:
        """Follow the first of the variants from now on; return what they explain."""
        before = self.open
        self._accepted = (*self._accepted, *found[0])
        self.open = self._outcomes(before)
        moved = [told for told in before if told not in self.open or self.open[told].num_equal > before[told].num_equal]
        return _finding(tuple(found), moved, before)

    def unexplained(self) -> list[Finding]:
        """Group the workloads that still differ by the rule that the first difference touches; most of all first."""
        by_rule = defaultdict(list)
        for told, outcome in self.open.items():
            by_rule[rule_of(told, outcome)].append(told)
        shown = sorted(by_rule.values(), key=len, reverse=True)
        settings = [_finding((), list(self._settings), self._settings)] if self._settings else []
        return settings + [_finding((), workloads, self.open) for workloads in shown]


def _finding(
    variants: tuple[tuple[Variant, ...], ...],
    workloads: list[AnsweredWorkload],
    of: Mapping[AnsweredWorkload, AnswerComparison],
) -> Finding:
    example = workloads[0]
    difference = of[example].verdict.difference
    assert difference is not None
    return Finding(
        rule=rule_of(example, of[example]),
        variants=variants,
        num_workloads=len(workloads),
        example=example,
        difference=difference,
    )


def rule_of(told: AnsweredWorkload, outcome: AnswerComparison) -> str:
    """Return the rule that the first difference of a workload touches."""
    difference = outcome.verdict.difference
    assert difference is not None
    if _is_of_settings(outcome):
        return _SETTINGS
    if _NOTHING_LEFT in told.failure and difference.moment == "the end":
        return _LAST_TOKEN
    labels = {line.label.partition(".")[0].partition("[")[0] for line in difference.lines if line.differs}
    if "new_computed" in labels and not labels & {"preempted", "new", "resumed"}:
        prompts = {request["id"]: request["prompt_len"] for request in told.document["requests"]}
        for line in difference.lines:
            name = line.label.partition(".")[2]
            if line.label.startswith("new_computed.") and _is_last_token(line, prompts[name], told.document):
                return _LAST_TOKEN
    return next((rule for field, rule in _RULES if field in labels), f"the fields {', '.join(sorted(labels))}")


def _is_of_settings(outcome: AnswerComparison) -> bool:
    difference = outcome.verdict.difference
    return difference is not None and difference.moment.startswith("meta")


def _is_last_token(line: VerdictLine, num_tokens: int, document: Document) -> bool:
    """Tell whether one side alone lets a hit end with the last block that a request may hit."""
    if not (line.recorded.isdigit() and line.simulated.isdigit()):
        return False
    block_size = document.get("block_size", 16)
    return bool(int(line.simulated) == (num_tokens - 1) // block_size * block_size)
