"""Decisions of vLLM's scheduler and cache that differ between releases.

The rest of kvsim asks for a rule by its name and never compares release numbers. The defaults of `ReleaseRules` are the
rules of the oldest known release; `CHANGES` lists what each later release changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any

from kvsim.errors import UnknownNameError, UsageError, shortened


class ReusedFirst(Enum):
    """Freed blocks without a cached prefix that go to the head of the free queue; all other blocks go to the tail."""

    NONE = "none"
    WINDOWS = "windows"
    """Blocks of sliding windows."""
    WITH_CACHING = "with caching"
    """All blocks, if prefix caching is on."""
    ALL = "all"


class Junction(Enum):
    """Treatment of a prefix that some groups have cached, and other groups (recurrent layers) have not.

    The request computes this prefix again. The junction is the token at which the prefix ends.
    """

    UNUSED = "unused"
    FIRST_CHUNK = "first chunk"
    """The step that admits the request ends at the junction."""
    KEPT = "kept"
    """A step ends at the junction, and the recurrent state there is kept for prefix hits."""


class LeftOut(Enum):
    """Full blocks of sliding windows that are not cached, because no prefix hit can need them."""

    NONE = "none"
    SMALLER = "smaller"
    """Blocks with fewer tokens than the granularity of hits."""
    ALL = "all"
    """All blocks that no hit can need."""


class AlignedSplit(Enum):
    """End of the chunk of a prompt, if recurrent states are kept only at block boundaries."""

    WHOLE_BLOCKS = "whole blocks"
    """The end of a block, if blocks are counted from the beginning of the chunk."""
    BOUNDARIES = "boundaries"
    """The next block boundary."""
    WIDE_BLOCKS = "wide blocks"
    """The end of a block, or a place inside it if the step has too few tokens for a whole block."""


class SecondKey(Enum):
    """The prefix whose key a block, if it is larger than a hash block, has in addition to its own key."""

    NONE = "none"
    END = "end"
    """The prefix up to the last hash-block boundary of the prompt."""
    BEFORE_LAST = "before last"
    """The prefix up to the last hash-block boundary before the last token of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRules:
    """Decisions that differ between releases. The defaults are those of the oldest known release.

    A text describes the rule if the field is true; what follows "before" is the rule if the field is false.
    """

    reused_first: ReusedFirst = ReusedFirst.NONE
    fills_pipeline: bool = False
    """A further step is scheduled even if the oldest step in flight is computed already, or the last one was empty."""
    knows_reserve: bool = False
    """`scheduler_reserve_full_isl` exists; before, only the first chunk of a prompt has to fit."""
    knows_watermark: bool = False
    """The setting `watermark` exists."""
    delivers_kept: bool = False
    """Late outputs of a preempted request are discarded if its KV must be delivered to another server."""
    balances_own: bool = False
    """A front end counts its own unanswered requests on each data-parallel rank, and weighs waiting requests by the
    usage of the pool.
    """
    spares_busy: bool = False
    """A request is not preempted while a step in flight prevents its blocks from being freed."""
    reserves_drafts: bool = False
    """The memory reserved for a prompt that loads its KV includes memory for drafts."""
    late_outputs_block: bool = False
    """A preempted request is not admitted again before the outputs of its steps in flight have arrived."""
    skipped_keep_places: bool = False
    """A waiting request that is skipped keeps its place; before, skipped requests were a separate queue in front."""
    keeps_turns: bool = False
    """No other request is skipped when a running request is preempted that had computed nothing in the step."""
    preempted_self_stops: bool = True
    """No further running request is scheduled in a step in which a request preempts itself for lack of memory."""
    lone_prompt_is_limited: bool = True
    """`long_prefill_token_threshold` also applies if there is only one request."""
    refuses_long_threshold: bool = False
    """vLLM does not start with a `long_prefill_token_threshold` above `max_model_len`."""
    cuts_before_images: bool = False
    """A chunk ends right before an image for which there is no room, without regard to drafts; a request that thereby
    gets no tokens is skipped.
    """
    counts_repeated_images: bool = False
    """An image that appears several times in a prompt is in use until its last appearance is computed."""
    running_keep_adapters: bool = False
    """The adapter of a running request is in use even in a step without tokens of this request."""
    drafts_have_v2_runner: bool = False
    """Model runner V2 serves every drafting method; before, only methods that read the model's hidden states."""
    drafting_takes_tokens: bool = False
    """Drafting takes tokens of a step for each request in the step; before, for `max_num_seqs` requests."""
    spares_modules: bool = False
    """No chunk ends so close to the end of a prompt that several drafting modules would read past the end."""
    keys_cover_drafts: bool = False
    """The key of a block covers the tokens that draft layers read ahead; before, the last block of a prefix hit was
    computed again.
    """
    pads_alone: bool = False
    """A request with one token to compute is admitted with drafts even if the step computes no other request."""
    caches_processed: bool = False
    """Blocks are cached only up to the tokens that no step in flight can reject any more."""
    has_v2_runner: bool = False
    """Model runner V2 is the default for models it supports; resumed requests are reported to it as new."""
    every_state_has_v2_runner: bool = True
    """Runner V2 also serves models that keep the recurrent state of every block."""
    pads_pages: bool = False
    """A page whose size does not divide the largest page is padded if kernels allow it; before, vLLM did not start."""
    hashes_aligned_states: bool = False
    """Prompts are hashed in common parts of all blocks if recurrent states are kept only at boundaries; before, only if
    the blocks of recurrent layers were as large as all others.
    """
    caches_to_boundaries: bool = False
    """Blocks are cached up to a common boundary of all groups; before, each block was cached as soon as it was full."""
    left_out: LeftOut = LeftOut.NONE
    retains_windows: bool = False
    """Windows can be kept for prefix hits at only some boundaries (the retention interval)."""
    retains_states: bool = False
    """Recurrent states can be kept for prefix hits at only some boundaries (the retention interval)."""
    junction: Junction = Junction.UNUSED
    windows_wait: bool = False
    """Blocks of windows, chunks and states are freed only when all steps in flight that read them are processed."""
    aligned_split: AlignedSplit = AlignedSplit.WHOLE_BLOCKS
    spares_last_token: bool = False
    """The last boundary at which the prefill is split is before the last token of the prompt."""
    frees_over_gaps: bool = False
    """Freeing recurrent states continues past entries of the block table that are null already."""
    marks_prompt_end: bool = False
    """The last state of a prompt counts as written only once its request has cached exactly its prompt."""
    second_key: SecondKey = SecondKey.NONE
    caches_every_state: bool = True
    """Models that keep the recurrent state of every block can cache prefixes."""
    cuts_every_full_kind: bool = False
    """Prefix hits of all kinds of full attention are cut to the common hit; before, only hits of the first kind."""
    profiles_free_memory: bool = False
    """The memory used at startup is one difference of free memory; before, a sum of measured parts."""
    logs_longest: bool = False
    """vLLM's "GPU KV cache size" counts sequences of `max_model_len`; before, the blocks divided among the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Default values of settings that differ between releases."""

    gpu_memory_utilization: float = 0.9
    async_scheduling: bool = False
    estimates_graphs: bool = False
    """Whether the estimated memory of CUDA graphs reduces the pool."""
    has_huge_cards: bool = False
    """Whether the token budget of a server on a GPU of 160 GiB or more is 16,384."""
    keeps_every_state: bool = True
    """Whether the recurrent state of every block is kept, if the kernels can do so; otherwise, only at boundaries."""
    retention_tokens: int | None = None
    """Distance in tokens between the boundaries at which windows and states are kept for prefix hits.

    None keeps all boundaries, 0 only the last boundary of each prompt.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """A rule or a default that a release changed."""

    since: str
    """The release."""
    says: str
    """Description of the new rule, in a sentence."""
    rules: dict[str, Any] = field(default_factory=dict)
    """New values of fields of `ReleaseRules`."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """New values of fields of `Defaults`."""


# fmt: off
CHANGES = (
    Change("0.14.0", "Steps are scheduled ahead where that is possible (async_scheduling).",
           defaults={"async_scheduling": True}),
    Change("0.19.0", "A request is admitted only when its whole prompt fits (scheduler_reserve_full_isl).",
           rules={"knows_reserve": True}),
    Change("0.20.0", "A server may use 0.92 of the GPU's memory instead of 0.9 (gpu_memory_utilization).",
           defaults={"gpu_memory_utilization": 0.92}),
    Change("0.20.2", "The estimated memory of CUDA graphs is taken from the pool.",
           defaults={"estimates_graphs": True}),
    Change("0.20.2",
           '"GPU KV cache size" is what sequences of max_model_len can hold, not blocks divided among the groups.',
           rules={"logs_longest": True}),
    Change("0.22.0", "With several groups, blocks are cached up to a boundary that all groups share.",
           rules={"caches_to_boundaries": True}),
    Change("0.22.0",
           "Blocks of windows that no hit can need are left out of the cache if they are smaller than the hit unit.",
           rules={"left_out": LeftOut.SMALLER}),
    Change("0.23.0",
           "Blocks of windows that no hit can need are left out of the cache: a window of one token caches nothing.",
           rules={"left_out": LeftOut.ALL}),
    Change("0.23.0", "Windows may be kept for hits at some boundaries alone (VLLM_PREFIX_CACHE_RETENTION_INTERVAL).",
           rules={"retains_windows": True}),
    Change("0.23.0",
           "Freed blocks without a prefix are reused first if a window left them behind, or was of their table.",
           rules={"reused_first": ReusedFirst.WINDOWS}),
    Change("0.23.0", "The pipeline is filled whether or not the oldest step is computed, also behind an empty step.",
           rules={"fills_pipeline": True}),
    Change("0.23.0", "Model runner V2 serves dense decoders: resumed requests are reported to it as new.",
           rules={"has_v2_runner": True}),
    Change("0.24.0", "Freed blocks that hold no prefix are reused first, of whatever layers.",
           rules={"reused_first": ReusedFirst.ALL}),
    Change("0.24.0",
           "A page that does not divide the largest is padded where kernels allow it; before, vLLM does not start.",
           rules={"pads_pages": True}),
    Change("0.24.0", "Admission may leave a share of the pool free (watermark, 0 by default).",
           rules={"knows_watermark": True}),
    Change("0.24.0",
           "Recurrent states may be kept for hits at some boundaries alone (VLLM_PREFIX_CACHE_RETENTION_INTERVAL).",
           rules={"retains_states": True}),
    Change("0.24.0", "A request's first step ends where some groups hold a prefix and recurrent layers do not.",
           rules={"junction": Junction.FIRST_CHUNK}),
    Change("0.26.0",
           "Steps end where some groups hold a prefix and recurrent layers do not, and the blocks before are kept.",
           rules={"junction": Junction.KEPT}),
    Change("0.26.0",
           "Windows and recurrent layers hold blocks until the steps in flight are processed, and need more room.",
           rules={"windows_wait": True}),
    Change("0.26.0", "Where recurrent states are kept at boundaries alone, a step ends at the next boundary.",
           rules={"aligned_split": AlignedSplit.BOUNDARIES}),
    Change("0.26.0", "The last boundary of a prompt has a key of its own in blocks larger than a hash block.",
           rules={"second_key": SecondKey.END}),
    Change("0.27.0", "A block of states may be larger than a step: the step goes on inside it.",
           rules={"aligned_split": AlignedSplit.WIDE_BLOCKS}),
    Change("0.27.0", "Without prefix caching, freed blocks are reused last.",
           rules={"reused_first": ReusedFirst.WITH_CACHING}),
    Change("0.27.0",
           "Outputs that were under way when a request was preempted have to come before it is admitted again.",
           rules={"late_outputs_block": True}),
    Change("0.27.0", "What the profiling run takes of the memory is one difference of free memory.",
           rules={"profiles_free_memory": True}),
    Change("0.27.0", "A long_prefill_token_threshold above max_model_len is refused.",
           rules={"refuses_long_threshold": True}),
    Change("0.27.0", "A front end counts its own unanswered requests on each data-parallel rank.",
           rules={"balances_own": True}),
    Change("0.27.0", "Outputs under way of a preempted request are thrown away where another server needs its KV.",
           rules={"delivers_kept": True}),
    Change("0.28.0", "Freed blocks that hold no prefix are reused first, with prefix caching and without.",
           rules={"reused_first": ReusedFirst.ALL}),
    Change("0.28.0", "No running request misses its turn when one before it is preempted.",
           rules={"keeps_turns": True}),
    Change("0.28.0", "A server takes 16,384 tokens a step on a GPU of 160 GiB or more.",
           defaults={"has_huge_cards": True}),
    Change("0.28.0", "Recurrent states are kept at boundaries alone, also by models that can keep every block's.",
           defaults={"keeps_every_state": False}),
    Change("0.28.0",
           "Prompts are hashed in the largest part of all blocks if recurrent states are kept at boundaries alone.",
           rules={"hashes_aligned_states": True}),
    Change("0.29.0", "Hits of every kind of full attention are cut to what all groups hold.",
           rules={"cuts_every_full_kind": True}),
    Change("0.30.0", "Windows and states are kept for hits at the last boundary of each prompt alone.",
           defaults={"retention_tokens": 0}),
    Change("0.30.0", "Recurrent states are let go also behind places that are null already.",
           rules={"frees_over_gaps": True}),
    Change("0.30.0", "Models that keep the state of every block are served by model runner V1.",
           rules={"every_state_has_v2_runner": False}),
    Change("0.30.0", "A request is not preempted while a step in flight keeps its blocks from being free.",
           rules={"spares_busy": True}),
    Change("0.31.0", "A waiting request that is passed over keeps its place in the queue.",
           rules={"skipped_keep_places": True}),
    Change("0.31.0", "long_prefill_token_threshold does not bind a request that is alone.",
           rules={"lone_prompt_is_limited": False}),
    Change("0.31.0", "Room that is reserved for prompts which load from elsewhere includes that of their drafts.",
           rules={"reserves_drafts": True}),
    Change("0.32.0", "The last boundary of a prompt is before its last token.",
           rules={"spares_last_token": True, "second_key": SecondKey.BEFORE_LAST}),
    Change("0.32.0",
           "The last state of a prompt counts as written while its request has cached just the prompt: others wait.",
           rules={"marks_prompt_end": True}),
    Change("0.33.0", "The last state of a prompt can be hit at once if it was written in an earlier step.",
           rules={"marks_prompt_end": False}),
    Change("0.33.0", "Models that keep the state of every block cache no prefix.", rules={"caches_every_state": False}),
    Change("0.33.0", "A chunk ends right before an image without room; a request that gets no token so is passed over.",
           rules={"cuts_before_images": True}),
    Change("0.33.0", "An image that a request repeats is in use until its last place is computed.",
           rules={"counts_repeated_images": True}),
    Change("0.33.0", "A running request keeps its adapter in use also in a step that does not compute it.",
           rules={"running_keep_adapters": True}),
    Change("0.33.0", "Model runner V2 serves every method of drafting.", rules={"drafts_have_v2_runner": True}),
    Change("0.33.0", "Drafting takes tokens of a step for each request in it, not for as many as a step may hold.",
           rules={"drafting_takes_tokens": True}),
    Change("0.33.0", "Where several modules draft, a chunk ends before what they read ahead, or with the prompt.",
           rules={"spares_modules": True}),
    Change("0.33.0",
           "Keys cover the tokens that drafting layers read ahead; before, the last block of a hit was left out.",
           rules={"keys_cover_drafts": True}),
    Change("0.33.0", "A request with one token to compute is admitted with drafts also where no other is computed.",
           rules={"pads_alone": True}),
    Change("0.33.0", "With drafts, blocks are cached up to the tokens that no step in flight may take back.",
           rules={"caches_processed": True}),
    Change("0.33.0", "By priority, the turns go on when a request is preempted for itself.",
           rules={"preempted_self_stops": False}),
)
# fmt: on
"""Changes in order of the releases; a later change overrides an earlier one of the same field."""

OLDEST, NEWEST = "0.12.0", "0.33.0"
OLDEST_WITH_GROUPS, OLDEST_WITH_STAGES = "0.18.0", "0.20.0"
"""Oldest releases whose rules for layers of several kinds, and for pipelines, are known."""
OFFLOAD = "0.25.1"
"""Release whose native offload is known; other patches of this minor release have the same rules."""
VERIFIED = ((0, 25), (0, 33))
"""Major and minor numbers of the releases whose speculative decoding, KV connectors and encoder cache are known."""
DEFAULT = NEWEST
"""Release that is simulated unless another is named."""
UNSTATED = "0.25.1"
"""Release of a recording, or of an oracle's answer, that names no release; older kvsim versions knew only this one."""
_NUMBER = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


def number_of(release: str) -> tuple[int, int, int]:
    """Return major, minor and patch of a release, such as (0, 25, 1); a suffix is ignored."""
    found = _NUMBER.match(release)
    if not found:
        raise UsageError(f"vllm should be a release such as {NEWEST}, not {shortened(release)}.")
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)


def is_known(release: str) -> bool:
    """Tell whether a release lies between the oldest and the newest known release; any patch of the newest does."""
    return number_of(OLDEST) <= number_of(release) and number_of(release)[:2] <= number_of(NEWEST)[:2]


def nearest_words(release: str) -> list[str]:
    """Return a warning that names the release that replaces an unknown one; an empty list if `release` is known."""
    if is_known(release):
        return []
    nearest = OLDEST if number_of(release) < number_of(OLDEST) else NEWEST
    return [f"the rules of vLLM {release} are not known: those of {nearest}, the nearest that is, are followed"]


def check_known(release: str, *, has_groups: bool = False, num_stages: int = 1, offloads: bool = False) -> None:
    """Check that the rules of a release are known for an engine with these features."""
    if not is_known(release):
        raise UsageError(f"the rules of vLLM {release} are not known; those of {OLDEST} to {NEWEST} are.")
    for is_there, what, oldest in (
        (has_groups, "layers of several kinds", OLDEST_WITH_GROUPS),
        (num_stages > 1, "pipelines", OLDEST_WITH_STAGES),
    ):
        if is_there and number_of(release) < number_of(oldest):
            known = f"those of {oldest} to {NEWEST} are"
            raise UsageError(f"the rules of vLLM {release} for {what} are not known; {known}.")
    if offloads:
        check_offload(release)


def check_has(release: str, name: str, since: str) -> None:
    """Check that a release has the setting `name`, which exists since release `since`."""
    if number_of(release) < number_of(since):
        raise UsageError(f"vLLM {release} has no {name}: {since} is the first that has it; leave it out.")


def changes_between(old: str, new: str) -> tuple[Change, ...]:
    """Return the changes after release `old`, up to and including release `new`."""
    check_known(old)
    check_known(new)
    if number_of(new) < number_of(old):
        raise UsageError(f"vLLM {new} is older than {old}; name the older release first.")
    return tuple(change for change in CHANGES if number_of(old) < number_of(change.since) <= number_of(new))


def check_feature(release: str, feature: str) -> None:
    """Check that a release is in `VERIFIED`, for speculative decoding, KV connectors or the encoder cache."""
    if number_of(release)[:2] not in VERIFIED:
        known = " and ".join(f"{major}.{minor}" for major, minor in VERIFIED)
        raise UsageError(f"kvsim knows {feature} of vLLM {known}, not of {release}.")


def check_offload(release: str) -> None:
    """Check that the rules of the native offload in a release are known."""
    if number_of(release)[:2] != number_of(OFFLOAD)[:2]:
        raise UsageError(
            f"kvsim knows the native offload of vLLM {OFFLOAD}, not that of {release}; leave --kv-offloading-size out, "
            f"or take --vllm {OFFLOAD}."
        )


@cache
def rules_of(release: str) -> ReleaseRules:
    """Return the rules of a release, or of a name made by `varied`; for an unknown release, those of the nearest.

    Raises:
        UsageError: `release` does not begin with a release number.
    """
    changed = {name: value for change in _until(release) for name, value in change.rules.items()}
    return replace(ReleaseRules(), **changed | _variations(release, ReleaseRules))


@cache
def defaults_of(release: str) -> Defaults:
    """Return the defaults of a release, or of a name made by `varied`; for an unknown release, those of the nearest."""
    changed = {name: value for change in _until(release) for name, value in change.defaults.items()}
    return replace(Defaults(), **changed | _variations(release, Defaults))


def varied(release: str, values: Mapping[str, Any]) -> str:
    """Return a name for `release` with these rules or defaults replaced, such as "0.25.1+windows_wait=yes".

    The name is accepted wherever a release is, so that the effect of a single rule can be simulated.
    """
    texts = {name: {value: text for text, value in _values(name).items()} for name in values}
    return "+".join([release, *(f"{name}={texts[name][value]}" for name, value in values.items())])


def other_values(name: str, release: str) -> list[Any]:
    """Return the possible values of a rule, except the value that the rule has in `release`."""
    return [value for value in _values(name).values() if value != getattr(rules_of(release), name)]


def words_of(name: str, value: Any) -> str:
    """Return a clause that names the release since which, or before which, a rule has this value."""
    changes = [change for change in CHANGES if name in change.rules]
    since = next((change for change in changes if change.rules[name] == value), None)
    if since is None:
        return f"as before vLLM {changes[0].since}, since when: {changes[0].says}"
    return f"as since vLLM {since.since}: {since.says}"


def net_changes(old: str, new: str) -> tuple[Change, ...]:
    """Return the changes from `old` to `new` that are still in effect in `new`, each with only its effective fields."""
    changes, found = changes_between(old, new), []
    before = {**_by_name(rules_of(old)), **_by_name(defaults_of(old))}
    after = {**_by_name(rules_of(new)), **_by_name(defaults_of(new))}
    left = {name for name in after if after[name] != before[name]}
    for change in changes:
        kept = {
            name: value
            for name, value in (change.rules | change.defaults).items()
            if name in left and after[name] == value
        }
        left -= set(kept)
        if kept:
            rules = {name: value for name, value in kept.items() if name in change.rules}
            defaults = {name: value for name, value in kept.items() if name in change.defaults}
            found.append(replace(change, rules=rules, defaults=defaults))
    return tuple(found)


def _variations(release: str, kind: type) -> dict[str, Any]:
    """Return the fields of `kind` that a name made by `varied` replaces."""
    stated = dict(part.split("=", 1) for part in release.split("+") if "=" in part)
    names = {each.name for each in fields(kind)}
    for name in names & stated.keys():
        if stated[name] not in _values(name):
            raise UnknownNameError(f"value of {name}", stated[name], _values(name))
    return {name: _values(name)[text] for name, text in stated.items() if name in names}


def _values(name: str) -> dict[str, Any]:
    """Return the possible values of a rule or a default, by their texts in a name made by `varied`."""
    start = {**_by_name(ReleaseRules()), **_by_name(Defaults())}[name]
    if isinstance(start, bool):
        return {"no": False, "yes": True}
    if isinstance(start, Enum):
        return {each.name: each for each in type(start)}
    return {str(value): value for value in (start, *(each.defaults[name] for each in CHANGES if name in each.defaults))}


def _by_name(values: ReleaseRules | Defaults) -> dict[str, Any]:
    return {each.name: getattr(values, each.name) for each in fields(values)}


def _until(release: str) -> list[Change]:
    """Return the changes up to a release."""
    return [change for change in CHANGES if number_of(change.since) <= number_of(release)]
