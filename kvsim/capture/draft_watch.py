"""Recorder of speculative decoding inside vLLM's scheduler: settings, and tokens and drafts after every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.errors import RecordingError, UsageError
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies.draft_counts import DraftCounts
from kvsim.policies.drafts import Drafts
from kvsim.policies.releases import rules_of
from kvsim.policies.speculative_config import SpeculativeConfig

_KEYS = (
    *("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting"),
    *("disable_eagle_block_drop", "disable_lookahead_block_hashes"),
)
_DROPS = ("use_eagle_block_drop", "use_eagle")
"""Two releases' names for the same attribute: whether the last block of a prefix hit is computed again."""


def speculates(scheduler: Any) -> bool:
    """Tell whether steps verify drafts."""
    return bool(getattr(scheduler, "num_spec_tokens", 0))


def speculative_config_of(scheduler: Any) -> dict[str, Any]:
    """Return the settings of an engine's `speculative_config` that decide about drafts, by vLLM's names."""
    config = scheduler.vllm_config.speculative_config
    settings = {name: getattr(config, name, None) for name in _KEYS}
    ranges = settings["num_speculative_tokens_per_batch_size"]
    settings["num_speculative_tokens_per_batch_size"] = [list(entry) for entry in ranges] if ranges else None
    model = Path(str(config.model)).name if config.model else None
    document = {"method": config.method, "model": model} | settings
    return {name: value for name, value in document.items() if value not in (None, False)}


def num_draft_modules(scheduler: Any) -> int:
    """Return the number of modules that draft one after the other; above 1 only with multi-token prediction."""
    return max(int(getattr(scheduler, "num_prefill_lookahead", 1)), 1)


def draft_settings(scheduler: Any) -> dict[str, int]:
    """Return `num_draft_modules` and, if above 0, `num_hash_lookahead_tokens`: tokens after a block in its hash."""
    ahead = int(getattr(scheduler, "num_hash_lookahead_tokens", 0))
    return {"num_draft_modules": num_draft_modules(scheduler)} | ({"num_hash_lookahead_tokens": ahead} if ahead else {})


def check_drafts(scheduler: Any, layout: KVCacheLayout, release: str) -> None:
    """Check that kvsim can simulate the speculative decoding of an engine.

    Raises:
        RecordingError: it cannot; the message says why.
    """
    if getattr(scheduler, "connector", None) is not None and not rules_of(release).caches_processed:
        raise RecordingError(
            f"the engine speculates and exchanges KV with other servers, and kvsim follows both together in vLLM 0.33, "
            f"not in {release}."
        )
    try:
        config = SpeculativeConfig.of(speculative_config_of(scheduler))
        config.check_known_to(release)
        nothing = DraftCounts.from_rows([])
        drafts = Drafts.of(
            replace(config, num_modules=num_draft_modules(scheduler)),
            release,
            caches_prefixes=bool(scheduler.cache_config.enable_prefix_caching),
            has_connector=getattr(scheduler, "connector", None) is not None,
            accepted=nothing,
            proposed=nothing,
        )
        if scheduler.cache_config.enable_prefix_caching:
            drafts.check_groups(layout)
    except UsageError as error:
        raise RecordingError(f"the engine speculates: {str(error).rstrip('.')}.") from error
    drops = next((bool(getattr(scheduler, name)) for name in _DROPS if hasattr(scheduler, name)), False)
    caches = bool(scheduler.cache_config.enable_prefix_caching)
    found = (scheduler.num_lookahead_tokens, getattr(scheduler, "num_hash_lookahead_tokens", 0), drops and caches)
    known = (drafts.lookahead_tokens, drafts.ahead_tokens, drafts.drops_last_hit and caches)
    if found != known:
        raise RecordingError(
            f"the engine speculates with (lookahead slots, tokens ahead of a hash, drop of the last hit) {found}, and "
            f"kvsim expects {known} of vLLM {release}."
        )


class DraftWatch:
    """Counter of the tokens that each request gets from the output of a step."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[Any, int]] = {}

    def updating(self, scheduler: Any, output: Any) -> None:
        """Store each request's number of output tokens. Call this before the step's output is processed."""
        present = (scheduler.requests.get(name) for name in output.num_scheduled_tokens)
        self._before = {each.request_id: (each, each.num_output_tokens) for each in present if each is not None}

    def gained(self, rows: dict[str, int]) -> list[tuple[int, int]]:
        """Return the row, and the number of new output tokens, of each request that got any since `updating`.

        `rows` has the rows of requests by name.
        """
        gained = {name: each.num_output_tokens - before for name, (each, before) in self._before.items()}
        return [(rows[name], tokens) for name, tokens in gained.items() if tokens and name in rows]


def proposed(scheduler: Any, names: list[str], rows: dict[str, int]) -> list[tuple[int, int]]:
    """Return the row, and the number of proposed drafts, of each request in `names` that has drafts.

    `rows` has the rows of requests by name.
    """
    waiting = {name: len(scheduler.requests[name].spec_token_ids) for name in names if name in scheduler.requests}
    return [(rows[name], drafts) for name, drafts in waiting.items() if drafts and name in rows]
