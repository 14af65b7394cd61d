"""Known variants of vLLM's rules: rules of other releases, and settings that have no effect."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvsim.policies.releases import ReleaseRules, other_values, varied, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Document = dict[str, Any]

_UNDECIDED = (
    *("hashes_aligned_states", "logs_longest", "pads_pages", "profiles_free_memory"),
    "refuses_long_threshold",
)
"""Rules of what vLLM writes or refuses when it starts: no step shows them."""
_IGNORED = (
    ("long_prefill_token_threshold", 0, "long_prefill_token_threshold limits no prompt."),
    ("policy", "fcfs", "The order of priorities is not followed."),
    ("enable_chunked_prefill", True, "Prompts are split over several steps although that is off."),
    ("enable_prefix_caching", False, "Nothing is found in the prefix cache."),
    ("scheduler_reserve_full_isl", True, "A request is admitted only when its whole prompt fits, whatever is set."),
    ("retention_interval", None, "Windows and states are kept for hits at all boundaries."),
)
"""Settings, the value with which all engines would run, and words for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A rule, or a setting of every workload, with another value."""

    name: str
    value: Any
    says: str
    is_rule: bool

    def __str__(self) -> str:
        value = getattr(self.value, "value", self.value)
        return f"{self.name} = {value} ({self.says})" if self.is_rule else self.says


def variants_of(release: str) -> list[Variant]:
    """Return the known variants of the rules of a release."""
    rules = [
        Variant(name=rule.name, value=value, says=words_of(rule.name, value), is_rule=True)
        for rule in fields(ReleaseRules)
        if rule.name not in _UNDECIDED
        for value in other_values(rule.name, release)
    ]
    return rules + [Variant(name=name, value=value, says=says, is_rule=False) for name, value, says in _IGNORED]


def document_with(document: Document, variants: Sequence[Variant]) -> Document:
    """Return a workload with the settings of the variants."""
    return document | {each.name: each.value for each in variants if not each.is_rule}


def release_with(release: str, variants: Sequence[Variant]) -> str:
    """Return the name of a release with the rules of the variants."""
    return varied(release, {each.name: each.value for each in variants if each.is_rule})
