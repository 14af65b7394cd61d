"""Decisions of vLLM's scheduler and cache that differ between releases.

The rest of kvsim asks for a rule by its name and never compares release numbers. Each field of `ReleaseRules` and
`Defaults` declares its value in the oldest known release, and the releases that changed it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any

from kvsim.errors import UnknownNameError, UsageError, shortened


class ReusedFirst(Enum):
    """Rule that chooses the freed blocks that go to the head of the free queue, not to the tail."""

    NONE = "Freed blocks are reused last."
    WINDOWS = "Freed blocks of sliding windows that hold no cached prefix are reused first."
    WITH_CACHING = "Without prefix caching, freed blocks are reused last."
    ALL = "Freed blocks that hold no cached prefix are reused first."


class Junction(Enum):
    """Treatment of a prefix that all groups but the recurrent ones have cached.

    A request computes such a prefix again. The token at which the prefix ends is the junction.
    """

    UNUSED = "Steps do not end at junctions."
    FIRST_CHUNK = (
        "The first step of a request ends at its junction: the end of a prefix that only some groups have cached."
    )
    KEPT = "A step ends at the junction of its request, and the recurrent state there is kept for prefix hits."


class LeftOut(Enum):
    """Rule that chooses the full blocks of sliding windows that are not cached."""

    NONE = "All full blocks of windows are cached."
    SMALLER = "Blocks of windows that no prefix hit can need are not cached if they are smaller than the unit of hits."
    ALL = "Blocks of windows that no prefix hit can need are not cached, whatever their size."


class AlignedSplit(Enum):
    """Rule for the end of a prompt's chunk, if recurrent states are kept only at block boundaries."""

    WHOLE_BLOCKS = "A chunk is a whole number of blocks."
    BOUNDARIES = "If recurrent states are kept only at boundaries, a chunk of a prompt ends at the next boundary."
    WIDE_BLOCKS = "A chunk ends inside a block of recurrent states if the step has too few tokens for the whole block."


class SecondKey(Enum):
    """Rule for a second prefix key of a block that spans several of the hash blocks in which prompts are hashed."""

    NONE = "Blocks have one key."
    END = "A block larger than a hash block has a second key, for the last hash-block boundary of the prompt."
    BEFORE_LAST = "The last boundary of a prompt, and that of its second key, is before its last token."


def _changes(*changes: tuple[str, Any, str]) -> dict[str, Any]:
    """Return the metadata of a field. Each change is (release, new value, sentence about the new rule)."""
    return {"changes": changes}


def _members(members: dict[str, Enum]) -> dict[str, Any]:
    """Return the metadata of an enumeration field. `members` has the field's new values, by the changing release."""
    return _changes(*((since, member, str(member.value)) for since, member in members.items()))


def _since(release: str, rule: str) -> Any:
    """Declare a field that is True from `release` on. `rule` is a sentence about the rule that applies then."""
    return field(default=False, metadata=_changes((release, True, rule)))


def _until(release: str, new_rule: str) -> Any:
    """Declare a field that is False from `release` on. `new_rule` is a sentence about the rule that applies then."""
    return field(default=True, metadata=_changes((release, False, new_rule)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Default values of settings that differ between releases."""

    async_scheduling: bool = _since("0.14.0", "Steps are scheduled ahead if the engine supports it (async_scheduling).")
    gpu_memory_utilization: float = field(
        default=0.9,
        metadata=_changes(("0.20.0", 0.92, "A server uses 92% of the GPU's memory, not 90% (gpu_memory_utilization).")),
    )
    estimates_graphs: bool = _since("0.20.2", "The estimated memory of CUDA graphs reduces the pool.")
    has_huge_cards: bool = _since(
        "0.28.0", "On a GPU with 160 GiB or more, a server computes up to 16,384 tokens a step."
    )
    keeps_every_state: bool = _until(
        "0.28.0", "Recurrent states are kept only at boundaries, even if the kernels can keep the state of every block."
    )
    retention_tokens: int | None = field(
        default=None,
        metadata=_changes(
            ("0.30.0", 0, "Windows and states are kept for hits only at the last boundary of each prompt.")
        ),
    )
    """Distance in tokens between the boundaries at which windows and states are kept for prefix hits.

    If it is None, they are kept at all boundaries; if it is 0, only at the last boundary of each prompt.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRules:
    """Decisions that differ between releases, in the order of their first change."""

    knows_reserve: bool = _since(
        "0.19.0",
        "A request is admitted only if its whole prompt fits (scheduler_reserve_full_isl); before, its first chunk.",
    )
    logs_longest: bool = _since(
        "0.20.2",
        'The logged "GPU KV cache size" counts sequences of max_model_len; before, blocks divided among the groups.',
    )
    caches_to_boundaries: bool = _since(
        "0.22.0",
        "Blocks are cached up to a boundary that all KV-cache groups share; before, each as soon as it was full.",
    )
    left_out: LeftOut = field(
        default=LeftOut.NONE, metadata=_members({"0.22.0": LeftOut.SMALLER, "0.23.0": LeftOut.ALL})
    )
    retains_windows: bool = _since(
        "0.23.0", "Windows can be kept for prefix hits at only some boundaries (VLLM_PREFIX_CACHE_RETENTION_INTERVAL)."
    )
    reused_first: ReusedFirst = field(
        default=ReusedFirst.NONE,
        metadata=_members(
            {
                "0.23.0": ReusedFirst.WINDOWS,
                "0.24.0": ReusedFirst.ALL,
                "0.27.0": ReusedFirst.WITH_CACHING,
                "0.28.0": ReusedFirst.ALL,
            }
        ),
    )
    fills_pipeline: bool = _since(
        "0.23.0",
        "Another step is scheduled even if the oldest step in flight is computed already, or the last one was empty.",
    )
    has_v2_runner: bool = _since(
        "0.23.0", "Model runner V2 serves dense decoders; resumed requests are reported to it as new."
    )
    pads_pages: bool = _since(
        "0.24.0",
        "A page whose size does not divide the largest page is padded if kernels allow it; before, vLLM did not start.",
    )
    knows_watermark: bool = _since("0.24.0", "Admission can leave a share of the pool free (watermark, 0 by default).")
    retains_states: bool = _since(
        "0.24.0",
        "Recurrent states can be kept for prefix hits at only some boundaries (VLLM_PREFIX_CACHE_RETENTION_INTERVAL).",
    )
    junction: Junction = field(
        default=Junction.UNUSED, metadata=_members({"0.24.0": Junction.FIRST_CHUNK, "0.26.0": Junction.KEPT})
    )
    windows_wait: bool = _since(
        "0.26.0",
        "Blocks of windows, chunks and states are freed only when all steps in flight that read them are processed.",
    )
    aligned_split: AlignedSplit = field(
        default=AlignedSplit.WHOLE_BLOCKS,
        metadata=_members({"0.26.0": AlignedSplit.BOUNDARIES, "0.27.0": AlignedSplit.WIDE_BLOCKS}),
    )
    second_key: SecondKey = field(
        default=SecondKey.NONE, metadata=_members({"0.26.0": SecondKey.END, "0.32.0": SecondKey.BEFORE_LAST})
    )
    late_outputs_block: bool = _since(
        "0.27.0", "A preempted request is admitted again only after the outputs of its steps in flight have arrived."
    )
    profiles_free_memory: bool = _since(
        "0.27.0", "The memory used at startup is one difference of free memory; before, a sum of measured parts."
    )
    refuses_long_threshold: bool = _since(
        "0.27.0", "vLLM does not start with a long_prefill_token_threshold above max_model_len."
    )
    balances_own: bool = _since(
        "0.27.0",
        "A front end counts its own unanswered requests on each data-parallel rank, and weighs waiting requests by the "
        "usage of the pool.",
    )
    delivers_kept: bool = _since(
        "0.27.0", "Late outputs of a preempted request are discarded if its KV must be delivered to another server."
    )
    keeps_turns: bool = _since(
        "0.28.0",
        "The preemption of a running request that is not in the step does not make the step miss the next one.",
    )
    hashes_aligned_states: bool = _since(
        "0.28.0",
        "If states are kept only at boundaries, prompts are hashed in the greatest common divisor of all block sizes; "
        "before, only if the blocks of recurrent layers were as large as all others.",
    )
    cuts_every_full_kind: bool = _since(
        "0.29.0",
        "Prefix hits of all kinds of full attention are cut to the common hit; before, only hits of the first kind.",
    )
    frees_over_gaps: bool = _since(
        "0.30.0", "Freeing recurrent states continues past entries of the block table that are null already."
    )
    every_state_has_v2_runner: bool = _until(
        "0.30.0", "Model runner V1 serves models that keep the recurrent state of every block."
    )
    spares_busy: bool = _since(
        "0.30.0", "A request is not preempted while a step in flight prevents its blocks from being freed."
    )
    skipped_keep_places: bool = _since(
        "0.31.0",
        "A waiting request that is skipped keeps its place; before, skipped requests were a separate queue in front.",
    )
    lone_prompt_is_limited: bool = _until(
        "0.31.0", "long_prefill_token_threshold does not limit a request that is the only one."
    )
    reserves_drafts: bool = _since(
        "0.31.0", "The memory reserved for a prompt that loads its KV includes memory for drafts."
    )
    spares_last_token: bool = _since("0.32.0", SecondKey.BEFORE_LAST.value)
    marks_prompt_end: bool = field(
        default=False,
        metadata=_changes(
            (
                "0.32.0",
                True,
                "A request can hit the last state of a prompt one step after a request has cached its prompt.",
            ),
            ("0.33.0", False, "A request can hit the last state of a prompt at once if an earlier step wrote it."),
        ),
    )
    caches_every_state: bool = _until(
        "0.33.0", "Models that keep the recurrent state of every block cannot cache prefixes."
    )
    aligns_before_images: bool = _since(
        "0.28.0", "A chunk is cut to a boundary of recurrent states before its images are encoded; before, after that."
    )
    images_wait: bool = _since(
        "0.24.0",
        "An image is in use until the steps that compute its tokens are processed; before, until they are scheduled.",
    )
    cuts_before_images: bool = _since(
        "0.33.0",
        "A chunk ends right before an image that has no room; a request that thereby gets no tokens is skipped.",
    )
    any_place_frees: bool = _until(
        "0.23.0",
        "An image that a prompt repeats is in use again until its next place is computed; before, it was freed after "
        "every step because an earlier place was computed.",
    )
    keeps_repeated_images: bool = _since(
        "0.29.0", "An image that occurs several times in a prompt is in use until its last occurrence is computed."
    )
    counts_repeated_images: bool = _since(
        "0.32.0", "Such an image is also kept for occurrences in the chunk that encodes it."
    )
    keeps_cached_whole: bool = _since(
        "0.32.0", "Without chunked images, a chunk ends before an image that it would cut even if the image is cached."
    )
    running_keep_adapters: bool = _since(
        "0.33.0", "The adapter of a running request is in use even in a step that does not compute the request."
    )
    drafts_have_v2_runner: bool = _since(
        "0.33.0",
        "Model runner V2 serves every drafting method; before, only methods that read the model's hidden states.",
    )
    drafting_takes_tokens: bool = _since(
        "0.33.0", "Drafting takes tokens of a step for each request in the step; before, for max_num_seqs requests."
    )
    spares_modules: bool = _since(
        "0.33.0",
        "No chunk ends so close to the end of a prompt that one of several drafting modules would read past the end.",
    )
    keys_cover_drafts: bool = _since(
        "0.33.0",
        "The key of a block covers the tokens that draft layers read ahead; before, the last block of a prefix hit was "
        "computed again.",
    )
    drops_where_drafted: bool = _since(
        "0.33.0",
        "If the last block of a prefix hit is computed again for drafting, only groups that draft do so; before, "
        "all groups.",
    )
    drops_after_prompt: bool = _since(
        "0.33.0", "With several groups, the block that is computed again may end with the last known token."
    )
    keeps_below_drop: bool = _since(
        "0.33.0", "With such drafts, windows are kept for hits one boundary before the last boundary of a prompt."
    )
    pads_alone: bool = _since(
        "0.33.0",
        "A request with one token to compute is admitted with drafts even if the step computes no other request.",
    )
    caches_processed: bool = _since(
        "0.33.0", "With drafts, blocks are cached only up to the tokens that no step in flight can reject."
    )
    preempted_self_stops: bool = _until(
        "0.33.0", "By priority, further running requests are scheduled after a request has preempted itself."
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A change of rules or defaults in one release."""

    since: str
    says: str
    """The new rule, in a sentence."""
    values: dict[str, Any]
    """New value of each changed field of `ReleaseRules` and `Defaults`."""


def _all_changes() -> tuple[Change, ...]:
    """Return the changes that the fields declare, in order of releases. Changes with equal texts become one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in (*fields(Defaults), *fields(ReleaseRules)):
        for since, value, says in each.metadata["changes"]:
            found.setdefault((since, says), {})[each.name] = value
    changes = (Change(since, says, values) for (since, says), values in found.items())
    return tuple(sorted(changes, key=lambda change: number_of(change.since)))


OLDEST, NEWEST = "0.12.0", "0.33.0"
OLDEST_WITH_GROUPS, OLDEST_WITH_STAGES = "0.18.0", "0.20.0"
"""Oldest releases whose rules are known for layers of several kinds and for pipelines, in this order."""
OFFLOAD_RELEASE = "0.25.1"
"""Release whose native offload is known; other patches of this minor release have the same rules."""
FEATURE_RELEASES = ((0, 25), (0, 33))
"""Releases, as (major, minor), whose speculative decoding and KV connectors are known. All others are refused."""
OLDEST_WITH_IMAGES = "0.20.0"
"""Oldest release whose encoder cache is known."""
DEFAULT_RELEASE = NEWEST
"""Release that is simulated if none is named."""
UNSTATED = "0.25.1"
"""Release of a recording, or of decisions of an oracle (vLLM's own scheduler with a fake model), that states none:
older kvsim versions knew only this one.
"""
_NUMBER = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")


def number_of(release: str) -> tuple[int, int, int]:
    """Return major, minor and patch of a release, such as (0, 25, 1). A suffix is ignored, and a missing patch is 0.

    Raises:
        UsageError: `release` does not begin with a release number.
    """
    found = _NUMBER.match(release) if isinstance(release, str) else None
    if not found:
        raise UsageError(f"vllm should be a release such as {NEWEST}, not {shortened(release)}.")
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)


CHANGES = _all_changes()
"""All changes in order of the releases. A later change overrides an earlier one of the same field."""


def is_known(release: str) -> bool:
    """Tell whether a release is between the oldest and the newest known one. All patches of the newest are known."""
    return number_of(OLDEST) <= number_of(release) and number_of(release)[:2] <= number_of(NEWEST)[:2]


def nearest_words(release: str) -> list[str]:
    """Return a list with a warning that names the release whose rules apply; empty if `release` is known."""
    if is_known(release):
        return []
    nearest = OLDEST if number_of(release) < number_of(OLDEST) else NEWEST
    return [f"the rules of vLLM {release} are not known: those of {nearest}, the nearest that is, are followed"]


def check_known(release: str, *, has_groups: bool = False, num_stages: int = 1, offloads: bool = False) -> None:
    """Raise a `UsageError` if the rules of a release are not known for an engine with these features."""
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
    """Raise a `UsageError` if a release lacks the setting `name`, which exists since release `since`."""
    if number_of(release) < number_of(since):
        raise UsageError(f"vLLM {release} has no {name}: {since} is the first that has it; leave it out.")


def changes_between(old: str, new: str) -> tuple[Change, ...]:
    """Return the changes after release `old`, up to and including release `new`.

    Raises:
        UsageError: a release is not known, or `new` is older than `old`.
    """
    check_known(old)
    check_known(new)
    if number_of(new) < number_of(old):
        raise UsageError(f"vLLM {new} is older than {old}; name the older release first.")
    return tuple(change for change in CHANGES if number_of(old) < number_of(change.since) <= number_of(new))


def check_feature(release: str, feature: str) -> None:
    """Raise a `UsageError` if a release is not in `FEATURE_RELEASES`. The error names `feature`: "KV connectors"."""
    if number_of(release)[:2] not in FEATURE_RELEASES:
        known = " and ".join(f"{major}.{minor}" for major, minor in FEATURE_RELEASES)
        raise UsageError(f"kvsim knows {feature} of vLLM {known}, not of {release}.")


def check_images(release: str) -> None:
    """Raise a `UsageError` if the rules of the encoder cache in a release are not known."""
    if number_of(release) < number_of(OLDEST_WITH_IMAGES):
        raise UsageError(f"kvsim knows the encoder cache of vLLM {OLDEST_WITH_IMAGES} to {NEWEST}, not of {release}.")


def check_offload(release: str) -> None:
    """Raise a `UsageError` if the rules of the native offload in a release are not known."""
    if number_of(release)[:2] != number_of(OFFLOAD_RELEASE)[:2]:
        raise UsageError(
            f"kvsim knows the native offload of vLLM {OFFLOAD_RELEASE}, not that of {release}; leave "
            f"--kv-offloading-size out, or take --vllm {OFFLOAD_RELEASE}."
        )


@cache
def rules_of(release: str) -> ReleaseRules:
    """Return the rules of a release, or of a name made by `varied`; for an unknown release, those of the nearest one.

    Raises:
        UsageError: `release` does not begin with a release number.
    """
    return ReleaseRules(**_values_at(release, ReleaseRules))


@cache
def defaults_of(release: str) -> Defaults:
    """Return the defaults of a release or of a `varied` name; for an unknown release, those of the nearest."""
    return Defaults(**_values_at(release, Defaults))


def varied(release: str, values: Mapping[str, Any]) -> str:
    """Return a name for `release` with some rules or defaults replaced, such as "0.25.1+windows_wait=yes".

    The name is accepted in place of a release, so that the effect of a single rule can be simulated. `values` has the
    new values of rules or defaults, by field.
    """
    texts = {name: {value: text for text, value in _values(name).items()} for name in values}
    return "+".join([release, *(f"{name}={texts[name][value]}" for name, value in values.items())])


def other_values(name: str, release: str) -> list[Any]:
    """Return the possible values of a rule, except the value that the rule has in `release`."""
    return [value for value in _values(name).values() if value != getattr(rules_of(release), name)]


def words_of(name: str, value: Any) -> str:
    """Return a clause that names the release from which on, or before which, the rule `name` has the value `value`."""
    changes = [change for change in CHANGES if name in change.values]
    since = next((change for change in changes if change.values[name] == value), None)
    if since is None:
        return f"as before vLLM {changes[0].since}, since when: {changes[0].says}"
    return f"as since vLLM {since.since}: {since.says}"


def net_changes(old: str, new: str) -> tuple[Change, ...]:
    """Return the changes after `old`, up to `new`, without values that a later change overrides.

    Values that are equal in `old` and `new` are left out, too, and so are changes without any values left.
    """
    before, after = _by_name(old), _by_name(new)
    left = {name: value for name, value in after.items() if value != before[name]}
    found = []
    for change in changes_between(old, new):
        kept = {name: value for name, value in change.values.items() if name in left and left[name] == value}
        left = {name: value for name, value in left.items() if name not in kept}
        if kept:
            found.append(replace(change, values=kept))
    return tuple(found)


def _values_at(release: str, kind: type) -> dict[str, Any]:
    """Return the values of those fields of `kind` that changes up to `release` have set, by name.

    If `release` is a name made by `varied`, the values in this name are included.
    """
    names = {each.name for each in fields(kind)}
    changes = (change for change in CHANGES if number_of(change.since) <= number_of(release))
    changed = {name: value for change in changes for name, value in change.values.items() if name in names}
    for name, text in (part.split("=", 1) for part in release.split("+") if "=" in part):
        if name in names:
            if text not in _values(name):
                raise UnknownNameError(f"value of {name}", text, _values(name))
            changed[name] = _values(name)[text]
    return changed


def _values(name: str) -> dict[str, Any]:
    """Return the possible values of a rule or a default, by the texts that `varied` writes for them."""
    start = {each.name: each.default for each in (*fields(ReleaseRules), *fields(Defaults))}[name]
    if isinstance(start, bool):
        return {"no": False, "yes": True}
    if isinstance(start, Enum):
        return {each.name: each for each in type(start)}
    return {str(value): value for value in (start, *(each.values[name] for each in CHANGES if name in each.values))}


def _by_name(release: str) -> dict[str, Any]:
    return asdict(rules_of(release)) | asdict(defaults_of(release))
