"""Check the types and ranges of the fields in `meta.json` with which kvsim computes, because anyone may write the file.

All other fields are only displayed, and are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import RecordingError, UsageError, shortened
from kvsim.policies import EVERY_POLICY
from kvsim.policies.speculative_config import SpeculativeConfig
from kvsim.recording.model import HASH_TOKENS

_LARGEST = 1 << 53
"""Maximum whole number: larger ones are not exact in every program that reads JSON, and no recording needs them."""
_MOST_STEPS = 10_000_000
"""Maximum number of steps in earlier batches, which are replayed one by one."""
_MOST_LAYERS = 1 << 14
_OF_LAYERS = ("num_layers", "num_hidden_layers", "num_attention_heads", "num_kv_heads")
"""Fields of a model's shape that are at most `_MOST_LAYERS`, because kvsim iterates over them."""
_COUNTS = {
    "policy": (
        "block_size",
        "batch_size",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "row_tokens",
        "page_size",
        "max_running_requests",
    ),
    "engine": (
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "hash_block_size",
        "tensor_parallel_size",
        "num_hash_lookahead_tokens",
        "num_draft_modules",
    ),
    "model": ("tensor_parallel_size", "pipeline_parallel_size", "num_draft_layers", "draft_bytes_per_token"),
}
_SIZES_OF_POLICY = ("kv_offloading_block_size", "host_blocks", "store_threshold", "max_loras")
_AMOUNTS = {
    "policy": ("kv_offloading_size", "load_gb_per_s", "store_gb_per_s", "copy_latency_s", "swap_gib", "watermark"),
    "engine": ("gpu_memory_utilization",),
}
_SIZES = ("baseline_allocated_bytes", "baseline_reserved_bytes", "baseline_private_bytes", "num_batches")
_LISTS_OF_SIZES = ("private_segment_bytes", "given_back_before")
_FLAGS = {
    "policy": ("enable_prefix_caching", "disable_radix_cache"),
    "engine": ("enable_prefix_caching", "enforce_eager", "in_process", "min_new_tokens"),
}


def check_meta(document: Mapping[str, Any], file: Path) -> None:
    """Check the document of a `meta.json`, or of the first line of a log."""
    for name in ("gpu", "command", "created", "notes", "identity"):
        _require(document.get(name) is None or isinstance(document[name], str), file, name, "a text", document)
    _check_policy(document.get("policy", {}), file, document)
    for part, names in _COUNTS.items():
        for name in names:
            value = document.get(part, {}).get(name)
            _require(value is None or _is_whole(value, 1), file, f"{part}.{name}", "a whole number above 0", document)
    for part, names in _AMOUNTS.items():
        for name in names:
            value = document.get(part, {}).get(name)
            _require(value is None or _is_amount(value), file, f"{part}.{name}", "a number from 0 on", document)
    for part, names in _FLAGS.items():
        for name in names:
            value = document.get(part, {}).get(name)
            _require(value is None or isinstance(value, bool), file, f"{part}.{name}", "true or false", document)
    _check_model(document.get("model", {}), file, document)
    for name in _SIZES:
        _require(document.get(name) is None or _is_whole(document[name], 0), file, name, "a whole number from 0 on",
                 document)  # fmt: skip
    _require(document.get(HASH_TOKENS) is None or _is_whole(document[HASH_TOKENS], 1), file, HASH_TOKENS,
             "a whole number above 0", document)  # fmt: skip
    for name in _LISTS_OF_SIZES:
        value = document.get(name)
        listed = isinstance(value, list) and all(_is_whole(item, 0) for item in value)
        _require(value is None or listed, file, name, "a list of whole numbers from 0 on", document)
    if document.get("earlier_batches") is not None:
        _check_batches(document["earlier_batches"], file, document)


def _check_policy(policy: Mapping[str, Any], file: Path, document: Mapping[str, Any]) -> None:
    """Check the fields that only the policy has; `check_meta` checks the names that other parts have, too."""
    _require(policy.get("name", "paged") in EVERY_POLICY, file, "policy.name", f"one of {', '.join(EVERY_POLICY)}",
             document)  # fmt: skip
    for name in ("rules", "allocator"):
        _require(policy.get(name) is None or isinstance(policy[name], str), file, f"policy.{name}", "a text", document)
    if policy.get("speculative_config") not in (None, ""):
        _check_drafts(policy["speculative_config"], file)
    for name in _SIZES_OF_POLICY:
        _require(policy.get(name) is None or _is_whole(policy[name], 0), file, f"policy.{name}",
                 "a whole number from 0 on", document)  # fmt: skip


def _check_drafts(config: object, file: Path) -> None:
    """Check the configuration of speculative decoding: a text as for vLLM's flag `--speculative-config`."""
    try:
        SpeculativeConfig.parse(config if isinstance(config, str) else "")
    except UsageError as error:
        raise RecordingError(f"{file}: policy.speculative_config: {error}") from error


def _check_model(model: Mapping[str, Any], file: Path, document: Mapping[str, Any]) -> None:
    """Check that all whole numbers of a model's shape are in range, because sizes are products of these."""
    for name, value in model.items():
        if isinstance(value, int) and not isinstance(value, bool):
            most = _MOST_LAYERS if name in _OF_LAYERS else _LARGEST
            _require(0 <= value <= most, file, f"model.{name}", f"a whole number from 0 to {most:,}", document)


def _check_batches(batches: object, file: Path, document: Mapping[str, Any]) -> None:
    """Check the sizes of the batches that `generate()` ran before the recording."""
    counts, name = ("rows", "prompt_width", "new_tokens"), "earlier_batches"
    listed = isinstance(batches, list) and all(
        isinstance(batch, dict)
        and all(_is_whole(batch.get(key), 1) for key in counts)
        and isinstance(batch.get("padded"), bool)
        and batch.get("cache") in ("dynamic", "static")
        for batch in batches
    )
    form = f"a list of objects with {', '.join(counts)} (whole numbers above 0), padded and cache"
    _require(listed, file, name, form, document)
    assert isinstance(batches, list)
    total = sum(batch["new_tokens"] for batch in batches)
    _require(total <= _MOST_STEPS, file, name, f"of {_MOST_STEPS:,} new_tokens in all at most", document)


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _require(holds: bool, file: Path, name: str, what: str, document: Mapping[str, Any]) -> None:
    """Raise an error unless `holds`: the field `name`, such as `pool.num_units`, should be `what`."""
    if holds:
        return
    value: Any = document
    for key in name.split("."):
        value = value.get(key)
    raise RecordingError(f"{file}: {name} should be {what}, not {shortened(value)}.")
