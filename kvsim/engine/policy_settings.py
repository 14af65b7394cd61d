"""Settings of an engine that follow from the policy, the release that it follows, and the features of the run."""

from __future__ import annotations

from typing import Any

from kvsim.engine.engine_settings import Settings
from kvsim.engine.host.host_initialization import has_offload
from kvsim.engine.reserved import reservations
from kvsim.engine.state import BEST_FIT, BUDDY, FIRST_FIT, NEXT_FIT
from kvsim.errors import BudgetError
from kvsim.hardware import GIB
from kvsim.policies import Paged, Pipeline, Policy, Radix, Static
from kvsim.policies.connectors import Connector
from kvsim.policies.drafts import Drafts
from kvsim.policies.encoding import Encoding
from kvsim.policies.releases import rules_of
from kvsim.policies.settings import ContiguousSettings, Growth, Order, PagedSettings, Reserve

_PLACEMENTS = {"first": FIRST_FIT, "best": BEST_FIT, "next": NEXT_FIT, "buddy": BUDDY}
_RULES = (
    "running_keep_adapters", "late_outputs_block", "skipped_keep_places", "keeps_turns", "preempted_self_stops",
    "lone_prompt_is_limited",
)  # fmt: skip
"""Rules of a release that are settings of the engine with the same names."""


def settings_of_policy(policy: Policy, num_units: int) -> dict[str, Any]:
    """Return settings of scheduling and memory by their names in `Settings`, for a pool of `num_units` units.

    The other functions of this module return further settings in the same form.
    """
    settings: dict[str, Any] = {"max_model_len": policy.max_model_len, "num_units": num_units, "prefill_interval": 1}
    if isinstance(policy, Static):
        names = ("batch_size", "preallocated", "timeout_s", "sort_by_length", "memory_guard")
        return settings | {name: getattr(policy.scheduler, name) for name in names}
    if isinstance(policy, Radix):
        return settings
    chosen, rules = policy.scheduler, rules_of(policy.scheduler.vllm)
    settings |= {
        "max_num_batched_tokens": chosen.max_num_batched_tokens,
        "max_num_active_seqs": chosen.max_num_active_seqs or chosen.max_num_seqs,
        "long_prefill_token_threshold": chosen.long_prefill_token_threshold,
        "threshold_is_adaptive": chosen.long_prefill_token_threshold > 0
        and chosen.long_prefill_token_threshold_adaptive,
        "prefill_interval": chosen.prefill_schedule_interval,
        "max_adapters": chosen.max_loras if chosen.enable_lora else 0,
        "most_chunk_tokens": min(
            chosen.max_num_batched_tokens, chosen.long_prefill_token_threshold or chosen.max_num_batched_tokens
        ),
        "by_priority": chosen.order is Order.PRIORITY,
        "chunked_prefill": chosen.enable_chunked_prefill,
        "reserve_full_prompt": chosen.reserve_full_prompt and rules.knows_reserve,
    }
    settings |= {name: getattr(rules, name) for name in _RULES}
    return settings | (
        _paged_settings(policy, num_units) if isinstance(policy, Paged) else _contiguous_settings(policy.cache)
    )


def _paged_settings(policy: Paged, num_units: int) -> dict[str, Any]:
    rules, offloads = rules_of(policy.scheduler.vllm), has_offload(policy)
    return {
        "prefix_caching": policy.cache.enable_prefix_caching,
        # As in vLLM, a share of all blocks, the null block included.
        "watermark_blocks": int(policy.cache.watermark * (num_units + 1)) if rules.knows_watermark else 0,
        "offloads": offloads,
        "frees_late": offloads,
    }


def _contiguous_settings(cache: ContiguousSettings) -> dict[str, Any]:
    return {
        "fit": _PLACEMENTS[cache.fit],
        "reserve": reservations.DOUBLING if cache.reserve is Reserve.DOUBLING else reservations.FIXED,
        "moves": cache.growth is Growth.MOVE,
        "compaction": cache.compaction,
        "request_level": cache.request_level,
    }


def settings_of_loop(policy: Policy, pipeline: Pipeline) -> dict[str, Any]:
    """Return the settings of the engine loop, such as the largest number of steps in flight."""
    if isinstance(policy, Static):
        return {"most_in_flight": 1}
    if isinstance(policy, Radix):
        return {"most_in_flight": 1 if policy.scheduler.disable_overlap_schedule else 2}
    ahead = policy.scheduler.async_scheduling
    return {
        "ahead": ahead,
        "most_in_flight": pipeline.most_in_flight(async_scheduling=ahead),
        "decode_interval": pipeline.decode_interval(async_scheduling=ahead),
        "feedback": pipeline.feedback(async_scheduling=ahead),
        "fills_pipeline": rules_of(policy.scheduler.vllm).fills_pipeline,
        "records_every_step": has_offload(policy) or pipeline.pipeline_parallel_size > 1,
    }


def settings_of_drafts(drafts: Drafts, policy: Paged) -> dict[str, Any]:
    """Return the settings of speculative decoding. They replace two settings of `settings_of_policy`,
    `max_num_batched_tokens` and `max_num_active_seqs`.
    """
    chosen, rules = policy.scheduler, rules_of(policy.scheduler.vllm)
    most_running = chosen.max_num_active_seqs or chosen.max_num_seqs
    if drafts.limits_running:
        most_running = min(most_running, chosen.max_num_batched_tokens // drafts.lookahead_tokens)
    # Drafting takes tokens of a step: for each request in the step or, in older releases, always for `max_num_seqs`.
    by_request = rules.drafting_takes_tokens
    return {
        "num_drafts": drafts.num_tokens,
        "lookahead_tokens": drafts.lookahead_tokens,
        "draft_budget_tokens": drafts.step_tokens if by_request else 0,
        "max_num_batched_tokens": chosen.max_num_batched_tokens
        - (0 if by_request else drafts.step_tokens * chosen.max_num_seqs),
        "ahead_tokens": drafts.ahead_tokens,
        "prompt_ahead_tokens": drafts.prompt_ahead_tokens,
        "drops_last_hit": drafts.drops_last_hit,
        "drops_after_prompt": drafts.drops_last_hit and rules.drops_after_prompt,
        "keeps_below_drop": drafts.drops_last_hit and rules.keeps_below_drop,
        "pads_admission": not drafts.by_batch,
        "pads_alone": rules.pads_alone,
        "caches_processed": rules.caches_processed,
        # The token that a step samples, the drafts that it verifies, and the slots for the next drafts.
        "reserved_draft_tokens": 1 + drafts.num_tokens + drafts.lookahead_tokens if rules.reserves_drafts else 0,
        "max_num_active_seqs": most_running,
    }


def settings_of_images(encoding: Encoding, policy: Paged) -> dict[str, Any]:
    """Return the settings of the encoder and its cache."""
    rules = rules_of(policy.scheduler.vllm)
    return {
        "encoder_tokens": encoding.compute_embeddings,
        "encoder_cache_tokens": encoding.cache_embeddings,
        "keeps_images_whole": encoding.is_whole,
        "aligns_before_images": rules.aligns_before_images,
        "images_wait": rules.images_wait,
        "cuts_before_images": rules.cuts_before_images,
        "keeps_cached_whole": rules.keeps_cached_whole,
        "keeps_repeated_images": rules.keeps_repeated_images,
        "counts_repeated_images": rules.counts_repeated_images,
        "any_place_frees": rules.any_place_frees,
    }


def settings_of_connector(connector: Connector, policy: Paged, most_in_flight: int) -> dict[str, Any]:
    """Return the settings that depend on a KV connector, with at most `most_in_flight` steps in flight.

    They replace `frees_late` of `settings_of_policy` and `records_every_step` of `settings_of_loop`.
    """
    rules = rules_of(policy.scheduler.vllm)
    return {
        "frees_late": connector.consumes and most_in_flight > 1,
        "drops_late": connector.produces and rules.delivers_kept,
        "caches_processed": rules.caches_processed,
        "records_every_step": True,
    }


def settings_of_swap(cache: PagedSettings, block_bytes: int) -> dict[str, Any]:
    """Return the settings of the swap to host memory, where a block takes `block_bytes` bytes.

    Raises:
        BudgetError: the host memory does not hold a single block.
    """
    num_blocks = int(cache.swap_gib * GIB) // block_bytes
    if not num_blocks:
        raise BudgetError(
            f"{cache.swap_gib} GiB of host memory hold no block of {block_bytes} bytes; give swap more, or none."
        )
    return {"host_blocks": num_blocks, "host_block_s": block_bytes / (cache.swap_gb_per_s * 1e9)}


def may_skip_decodes(settings: Settings) -> bool:
    """Tell whether the scheduler may skip sequences that only decode: no setting requires a visit in every step."""
    visits_sequences = (
        settings.lookahead_tokens
        or settings.num_drafts
        or settings.encoder_tokens
        or settings.compaction
        or settings.by_priority
        or settings.records_every_step
    )
    return not visits_sequences and settings.prefill_interval == 1
