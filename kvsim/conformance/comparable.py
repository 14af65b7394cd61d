"""Checks that a recording can be compared block for block; and the settings of the recorded engine."""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from kvsim.engine.paged.block_pool import NULL_BLOCK
from kvsim.errors import RecordingError, UsageError
from kvsim.policies.pipeline import Pipeline
from kvsim.policies.releases import UNSTATED, check_known, defaults_of
from kvsim.policies.settings import ContinuousSettings, Eviction, Order, PagedSettings, PrefixEviction
from kvsim.recording import MemoryKind, Meta, Recording, RequestStatus

Settings = TypeVar("Settings", ContinuousSettings, PagedSettings, Pipeline)

_VLLM_NAMES = {"order": "policy", "reserve_full_prompt": "scheduler_reserve_full_isl"}
"""Names in vLLM of the settings that have another name in kvsim."""
_LIKE_A_LIMIT = 16384
"""Example of a limit whose default depends on the machine. A recorded limit must have the example's Python type."""
_DEPEND_ON_THE_GPU = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")


def check_comparable(recording: Recording) -> None:
    """Check that a recording can be compared block for block with vLLM's rules.

    Raises:
        RecordingError: the recorded engine is not like vLLM's, or data is missing; the message says which.
    """
    meta, pool = recording.meta, recording.meta.pool

    def refuse(applies: object, problem: str) -> None:
        if applies:
            raise RecordingError(f"recording {recording.name!r} {problem}")

    refuse(
        meta.source == "hf" or meta.policy_name != "paged",
        f"is of a {meta.policy_name} cache from {meta.source}; only a paged one, from vLLM or from kvsim run --policy "
        "paged, can be compared block for block.",
    )
    refuse(
        meta.rules_name != meta.policy_name,
        f"was made under rules of its own ({meta.rules_name}); only vLLM's can be compared with vLLM's.",
    )
    refuse(
        meta.policy.get("swap_gib"),
        "was made with swapping, which kvsim models and vLLM has not; only runs without it can be compared block for "
        "block.",
    )
    refuse(
        pool.num_units is None or pool.first_unit != NULL_BLOCK + 1,
        f"has no pool of blocks that begins at block {NULL_BLOCK + 1}, as vLLM's does, so there are no block ids to "
        "compare.",
    )
    refuse(
        meta.extra.get("joined_at_step"),
        f"begins at step {meta.extra.get('joined_at_step')} of its server, and what the server had decided and cached "
        "before is not in it; one that was made with KVSIM_RECORD can be compared.",
    )
    refuse(
        recording.meta.exchanges_kv and recording.transfers is None,
        "is of a server that exchanges KV with others, and has no transfers.parquet.",
    )
    refuse(not len(recording.steps), "has no steps, so there is nothing to compare.")
    refuse(not len(recording.memory), "has no memory.parquet, so there are no block ids to compare.")
    _check_hashes(recording)


def check_prompts(recording: Recording, max_model_len: int) -> None:
    """Check that an engine with this `max_model_len` accepts every prompt of the recording.

    Raises:
        RecordingError: a prompt is too long.
    """
    requests = recording.requests
    too_long = (requests.prompt_tokens >= max_model_len) & (requests.status != RequestStatus.REFUSED)
    if too_long.any():
        row = int(np.argmax(too_long))
        raise RecordingError(
            f"recording {recording.name!r}, request row {row}: a prompt of {requests.prompt_tokens[row]} tokens "
            f"would have been refused with max_model_len {max_model_len}."
        )


def release_of(recording: Recording) -> str:
    """Return the vLLM release whose rules the recorded engine followed.

    Raises:
        RecordingError: kvsim does not know the release, or does not simulate the recorded features under its rules.
    """
    meta, stages = recording.meta, recording.meta.engine.get("pipeline_parallel_size")
    release = meta.stated_release or UNSTATED
    try:
        check_known(
            release,
            has_groups=meta.pool.layout is not None,
            num_stages=stages if isinstance(stages, int) else 1,
            offloads=bool(meta.policy.get("kv_offloading_size") or meta.policy.get("host_blocks")),
        )
    except UsageError as error:
        raise RecordingError(f"recording {recording.name!r} cannot be compared: {error}") from error
    return release


def retention_of(recording: Recording, release: str) -> int | None:
    """Return the distance in tokens between positions at which windows and recurrent states stay cached.

    Return None if they stay cached at every block boundary.
    """
    usual = defaults_of(release).retention_tokens
    stated = recording.meta.engine.get("prefix_cache_retention_interval", usual)
    return None if stated is None else int(stated)


def settings_of(kind: type[Settings], recording: Recording, **known: Any) -> Settings:
    """Return the recorded engine's settings of the class `kind`. Values in `known` replace recorded ones.

    Raises:
        RecordingError: a setting is missing or invalid.
    """
    stated = (*recording.meta.engine.items(), *recording.meta.policy.items())
    recorded = {name: value for name, value in stated if value is not None}
    values = ({"vllm": recording.meta.stated_release or UNSTATED} if kind is ContinuousSettings else {}) | known
    file = f"meta.json of recording {recording.name!r}"
    for field in fields(kind):
        name = field.name if field.name in recorded else _VLLM_NAMES.get(field.name, field.name)
        if field.name in values:
            continue
        if name in recorded:
            values[field.name] = recorded[name]
        elif field.name in _DEPEND_ON_THE_GPU or field.default is MISSING:
            raise RecordingError(f"{file} does not say engine.{name}, and vLLM's default depends on the GPU.")
        default = field.default
        if default is None:
            default = True if field.name == "async_scheduling" else _LIKE_A_LIMIT
        if field.name in values and type(values[field.name]) not in _types(default):
            example = default.value if isinstance(default, Enum) else default
            raise RecordingError(f"{file}: {name} should be like {example!r}, not {values[field.name]!r}.")
    try:
        for name, kinds in (("order", Order), ("eviction", PrefixEviction), ("kv_offloading_eviction", Eviction)):
            if name in values:
                values[name] = kinds(values[name])
        return kind(**values)
    except (UsageError, ValueError) as error:
        raise RecordingError(f"{file}: {str(error).rstrip('.')}.") from error


def _check_hashes(recording: Recording) -> None:
    memory, requests = recording.memory, recording.requests
    owned = np.flatnonzero(memory.kind != MemoryKind.EVICT)
    request, first = np.unique(memory.request[owned], return_index=True)
    blind = (memory.kind[owned][first] == MemoryKind.SHARE) & (requests.prompt_hashes.lengths[request] == 0)
    if blind.any():
        name = str(requests.id[request[int(np.argmax(blind))]])
        raise RecordingError(
            f"recording {recording.name!r} has no prompt_hashes of request {name!r}, which shares a prefix; without "
            "them it is not known which prefixes are equal."
        )


def host_blocks_of(meta: Meta) -> int:
    """Return the number of blocks in the recorded engine's host memory; 0 without offloading.

    Raises:
        RecordingError: the engine does not store every block.
    """
    policy = meta.policy
    if int(policy.get("store_threshold") or 0) > 1:
        raise RecordingError(
            "the recorded engine stores blocks that were looked up several times (store_threshold), and kvsim knows "
            "only offloads that store every block."
        )
    if "host_blocks" in policy:
        return int(policy["host_blocks"])
    size = float(policy.get("kv_offloading_size") or 0)
    block_size = int(policy.get("kv_offloading_block_size") or meta.pool.unit_tokens)
    num_gpus = int(meta.model.get("tensor_parallel_size", 1))
    return int(size * (1 << 30)) // (block_size // meta.pool.unit_tokens * meta.pool.bytes_per_unit * num_gpus)


def _types(default: object) -> tuple[type, ...]:
    if isinstance(default, Enum):
        return (str,)
    return (int, float) if isinstance(default, float) else (type(default),)
