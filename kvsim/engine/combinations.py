"""Refusal of settings that kvsim does not simulate together, with a sentence that says which to leave out."""

from __future__ import annotations

from kvsim.errors import UsageError
from kvsim.policies import Contiguous, Paged, Pipeline, Policy, Radix, Static
from kvsim.policies.drafts import Drafts
from kvsim.policies.releases import rules_of
from kvsim.policies.settings import PagedSettings


def check_pipeline(policy: Policy, pipeline: Pipeline, drafts: Drafts | None, *, is_custom: bool) -> None:
    """Refuse settings of a policy that kvsim does not simulate with several pipeline stages."""
    if pipeline.pipeline_parallel_size == 1 or isinstance(policy, Static):
        return
    cache = policy.cache if isinstance(policy, Paged) else PagedSettings()
    for what, flag, is_asked in (
        ("a policy of your own", "another --policy", is_custom),
        ("SGLang's scheduler", "another --policy", isinstance(policy, Radix)),
        ("native offload", "--kv-offloading-size 0", cache.kv_offloading_size > 0),
        ("swapping to host memory", "--swap-gib 0", cache.swap_gib > 0),
        ("speculative decoding", "no --speculative-config", drafts is not None),
    ):
        if is_asked:
            raise UsageError(
                f"{what} is modelled where one stage holds all layers; with pipeline_parallel_size "
                f"{pipeline.pipeline_parallel_size}, take {flag}, or --pipeline-parallel-size 1."
            )


def check_loads(policy: Paged, pipeline: Pipeline) -> None:
    """Refuse a server that loads KV through a connector if it could admit a preempted request again before the
    request's blocks are freed. This depends on the number of steps in flight.
    """
    scheduler = policy.scheduler
    depth = pipeline.most_in_flight(async_scheduling=bool(scheduler.async_scheduling))
    if depth > 2 and not rules_of(scheduler.vllm).spares_busy:
        raise UsageError(
            f"kvsim does not follow vLLM {scheduler.vllm} where a server that loads KV has {depth} steps in flight; "
            "take two pipeline stages with --no-async-scheduling, or --vllm 0.33.0."
        )


def check_drafts(policy: Policy, drafts: Drafts | None, *, is_custom: bool) -> None:
    """Refuse settings that kvsim does not simulate together with speculative decoding."""
    if isinstance(policy, Contiguous) and bool(policy.scheduler.speculative_config):
        raise UsageError(
            "speculative decoding is followed in a paged cache; take --policy paged, or no --speculative-config."
        )
    if drafts is None:
        return
    assert isinstance(policy, Paged)
    cache, chosen = policy.cache, policy.scheduler
    if chosen.drafting is not None:
        chosen.drafting.check_starts(chosen.vllm, chosen.max_num_seqs, chosen.max_num_batched_tokens)
    for what, flag, is_asked in (
        ("a policy of your own", "another --policy", is_custom),
        ("native offload", "no --kv-offloading-size", cache.kv_offloading_size > 0),
        ("swapping to host memory", "no --swap-gib", cache.swap_gib > 0),
    ):
        if is_asked:
            raise UsageError(f"kvsim does not follow speculative decoding and {what} together; take {flag}, or no "
                             "--speculative-config.")  # fmt: skip


def check_several_groups(cache: PagedSettings) -> None:
    """Refuse settings that kvsim does not simulate for a model with several KV-cache groups."""
    if cache.swap_gib:
        raise UsageError(
            "swapping to host memory is modelled where every layer keeps every token; this model has several KV-cache "
            "groups, so leave --swap-gib out."
        )


def double_free_error() -> UsageError:
    """Return the error for a run in which SGLang frees slots of a window twice, and goes on with damaged memory."""
    return UsageError(
        "SGLang frees slots of sliding windows twice in this run, and kvsim does not follow it from there on; leave "
        "--disable-radix-cache out."
    )
