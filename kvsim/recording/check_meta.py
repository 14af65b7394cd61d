"""Check types and ranges of those fields in `meta.json` with which kvsim computes, because anyone may write it.

All other fields are only displayed, and are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvsim.errors import RecordingError, UsageError, shortened
from kvsim.files.values import is_integer, is_number
from kvsim.policies import EVERY_POLICY
from kvsim.policies.speculative_config import SpeculativeConfig
from kvsim.recording.model import HASH_TOKENS

_LARGEST = 1 << 53
"""Largest integer accepted in `meta.json`. Larger ones are not exact in every program that reads JSON."""
_MOST_STEPS = 10_000_000
"""Largest number of steps in the batches that Transformers' `generate()` ran before the recording began
(`earlier_batches`). kvsim repeats each of these steps.
"""
_MOST_LAYERS = 1 << 14
_ITERATED_FIELDS = ("num_layers", "num_hidden_layers", "num_attention_heads", "num_kv_heads")
"""Fields of a model's shape that are at most `_MOST_LAYERS`, because kvsim iterates over as many objects."""


_is_whole = partial(is_integer, low=0, high=_LARGEST)
_is_positive = partial(is_integer, low=1, high=_LARGEST)
_is_amount = partial(is_number, low=0, high=_LARGEST)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_whole(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_whole, value))


_RULES = (
    ("a text", _is_text, ("gpu", "command", "created", "notes", "identity", "policy.rules", "policy.allocator")),
    ("a whole number above 0", _is_positive, (
        "policy.block_size", "policy.batch_size", "policy.max_model_len", "policy.max_num_seqs",
        "policy.max_num_batched_tokens", "policy.row_tokens", "policy.page_size", "policy.max_running_requests",
        "engine.max_model_len", "engine.max_num_seqs", "engine.max_num_batched_tokens", "engine.hash_block_size",
        "engine.tensor_parallel_size", "engine.num_hash_lookahead_tokens", "engine.num_draft_modules",
        "model.tensor_parallel_size", "model.pipeline_parallel_size", "model.num_draft_layers",
        "model.draft_bytes_per_token", HASH_TOKENS,
    )),
    ("a whole number from 0 on", _is_whole, (
        "policy.kv_offloading_block_size", "policy.host_blocks", "policy.store_threshold", "policy.max_loras",
        "baseline_allocated_bytes", "baseline_reserved_bytes", "baseline_private_bytes", "num_batches",
    )),
    ("a number from 0 on", _is_amount, (
        "policy.kv_offloading_size", "policy.load_gb_per_s", "policy.store_gb_per_s", "policy.copy_latency_s",
        "policy.swap_gib", "policy.watermark", "engine.gpu_memory_utilization",
    )),
    ("true or false", _is_flag, (
        "policy.enable_prefix_caching", "policy.disable_radix_cache", "engine.enable_prefix_caching",
        "engine.enforce_eager", "engine.in_process", "engine.min_new_tokens",
    )),
    ("a list of whole numbers from 0 on", _are_whole, ("private_segment_bytes", "given_back_before")),
)  # fmt: skip
"""Rules, each of three parts: how a value should be, in words; the function that checks it; the names of the fields
that must be so if they are present.
"""


def check_meta(document: Mapping[str, Any], file: Path) -> None:
    """Check `document`, the contents of a `meta.json` or of the first line of a log.

    Raises:
        RecordingError: a field has a wrong type or is out of range.
    """
    policy = document.get("policy", {})
    names = ", ".join(EVERY_POLICY)
    _require(policy.get("name", "paged") in EVERY_POLICY, file, "policy.name", f"one of {names}", document)
    for form, is_valid, fields in _RULES:
        for field in fields:
            value = _value_of(field, document)
            _require(value is None or is_valid(value), file, field, form, document)
    if policy.get("speculative_config") not in (None, ""):
        _check_drafts(policy["speculative_config"], file)
    _check_model(document.get("model", {}), file, document)
    if document.get("earlier_batches") is not None:
        _check_batches(document["earlier_batches"], file, document)


def _check_drafts(config: object, file: Path) -> None:
    try:
        SpeculativeConfig.parse(config if isinstance(config, str) else "")
    except UsageError as error:
        raise RecordingError(f"{file}: policy.speculative_config: {error}") from error


def _check_model(model: Mapping[str, Any], file: Path, document: Mapping[str, Any]) -> None:
    """Check the range of all integers in the shape of a model, because sizes are products of these integers."""
    for name, value in model.items():
        if is_integer(value):
            most = _MOST_LAYERS if name in _ITERATED_FIELDS else _LARGEST
            _require(0 <= value <= most, file, f"model.{name}", f"a whole number from 0 to {most:,}", document)


def _check_batches(batches: object, file: Path, document: Mapping[str, Any]) -> None:
    counts, name = ("rows", "prompt_width", "new_tokens"), "earlier_batches"
    listed = isinstance(batches, list) and all(
        isinstance(batch, dict)
        and all(_is_positive(batch.get(key)) for key in counts)
        and isinstance(batch.get("padded"), bool)
        and batch.get("cache") in ("dynamic", "static")
        for batch in batches
    )
    form = f"a list of objects with {', '.join(counts)} (whole numbers above 0), padded and cache"
    _require(listed, file, name, form, document)
    assert isinstance(batches, list)
    total = sum(batch["new_tokens"] for batch in batches)
    _require(total <= _MOST_STEPS, file, name, f"of {_MOST_STEPS:,} new_tokens in all at most", document)


def _value_of(field: str, document: Mapping[str, Any]) -> Any:
    part, _, name = field.rpartition(".")
    return (document.get(part, {}) if part else document).get(name)


def _require(holds: bool, file: Path, name: str, what: str, document: Mapping[str, Any]) -> None:
    if not holds:
        raise RecordingError(f"{file}: {name} should be {what}, not {shortened(_value_of(name, document))}.")
