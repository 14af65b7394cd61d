"""Variants of a release's rules, which are tried to name the rule that causes a difference between vLLM and kvsim.

`kvsim conform` and `kvsim compare --vllm A B` repeat a comparison with each variant: a rule has another value, or the
engine ignores a setting. A variant that removes the difference explains it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from kvsim.policies.releases import ReleaseRules, other_values, varied, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Document = dict[str, Any]

_STARTUP_RULES = (
    "hashes_aligned_states",
    "logs_longest",
    "pads_pages",
    "profiles_free_memory",
    "refuses_long_threshold",
)
"""Rules that affect only what vLLM logs or refuses when it starts. They change no step, so they are not tried."""
_FEATURE_RULES = (
    *("any_place_frees", "aligns_before_images", "counts_repeated_images", "cuts_before_images", "images_wait"),
    *("keeps_cached_whole", "keeps_repeated_images"),
    *("drafting_takes_tokens", "drafts_have_v2_runner", "drops_after_prompt", "drops_where_drafted"),
    *("keeps_below_drop", "keys_cover_drafts", "pads_alone", "reserves_drafts", "spares_modules"),
    *("balances_own", "caches_processed", "delivers_kept", "running_keep_adapters", "spares_busy"),
)
"""Rules of images, drafts, KV connectors, adapters and data-parallel ranks.

They are not tried, because no workload of `kvsim conform` has these features.
"""
_IGNORED_SETTINGS = (
    ("long_prefill_token_threshold", 0, "long_prefill_token_threshold limits no prompt."),
    ("policy", "fcfs", "The order of priorities is not followed."),
    ("enable_chunked_prefill", True, "Prompts are split over several steps although that is off."),
    ("enable_prefix_caching", False, "Nothing is found in the prefix cache."),
    ("scheduler_reserve_full_isl", True, "A request is admitted only when its whole prompt fits, whatever is set."),
    ("retention_interval", None, "Windows and states are kept for hits at all boundaries."),
)
"""Settings that an engine may ignore: name, the value that it would use for every workload, description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A rule or a setting whose value differs from that of the release or of the workload."""

    name: str
    value: Any
    description: str
    is_rule: bool
    """True for a rule of a release, False for a setting of a workload."""

    @property
    def shown(self) -> Any:
        """Value for a report: the name of an enumeration's member in lower case, any other value as it is."""
        return self.value.name.replace("_", " ").lower() if isinstance(self.value, Enum) else self.value

    def __str__(self) -> str:
        return f"{self.name} = {self.shown} ({self.description})" if self.is_rule else self.description


def variants_of(release: str) -> list[Variant]:
    """Return the variants to try for a release: other values of its rules, and settings that its engine may ignore."""
    rules = [
        Variant(name=rule.name, value=value, description=words_of(rule.name, value), is_rule=True)
        for rule in fields(ReleaseRules)
        if rule.name not in (*_STARTUP_RULES, *_FEATURE_RULES)
        for value in other_values(rule.name, release)
    ]
    settings = [
        Variant(name=name, value=value, description=description, is_rule=False)
        for name, value, description in _IGNORED_SETTINGS
    ]
    return rules + settings


def document_with(document: Document, variants: Sequence[Variant]) -> Document:
    """Return the document of a workload, changed by those of `variants` that are settings."""
    return document | {each.name: each.value for each in variants if not each.is_rule}


def release_with(release: str, variants: Sequence[Variant]) -> str:
    """Return the name of `release` with those of `variants` that are rules. It is accepted in place of a release."""
    return varied(release, {each.name: each.value for each in variants if each.is_rule})
