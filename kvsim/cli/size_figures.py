"""Figures of `kvsim size`: the sequences that fit, also with other layouts of the memory; and all figures as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cli.size_sleep import asleep_of
from kvsim.display.text import plural
from kvsim.errors import UsageError
from kvsim.policies.releases import DEFAULT_RELEASE, rules_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.kv_groups import CachePlan
    from kvsim.sizing.budget import Budget


_OF_MODEL = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "decode_context_parallel_size", "kv_cache_dtype", "kv_bytes_per_token",
)  # fmt: skip
"""Attributes of the model that the JSON output states."""


def release_of(flags: Mapping[str, Any]) -> str:
    """Return the release of vLLM that --vllm names, or the default."""
    release: str = flags["vllm"] or DEFAULT_RELEASE
    return release


def sequences_at_once(budget: Budget, policy: str, tokens: int) -> tuple[int, str]:
    """Return how many sequences of `tokens` tokens fit under `policy`, and words to print after this number, such as
    "fit at once, 4 blocks each".
    """
    from kvsim.memory.packing import largest_batch

    if policy == "paged":
        held = budget.plan.layout.held_blocks(tokens)
        return budget.max_sequences(tokens), f"fit at once, {plural(held, 'block')} each"
    if not budget.plan.layout.is_uniform:
        raise UsageError(
            f"--policy {policy} is for models whose layers are all alike; {budget.model.name} has several kinds."
        )
    num_slots = slots_of(budget)
    if policy == "static":
        return largest_batch(num_slots, tokens), "fit into the largest padded batch that runs to its end"
    return num_slots // tokens, "fit at once, each reserving as much in one piece"


def slots_of(budget: Budget) -> int:
    """Return the number of tokens for which the pool has memory, however it is divided."""
    return budget.kv_bytes // budget.model.kv_bytes_per_token


def other_layouts(budget: Budget, policy: str) -> dict[str, tuple[CachePlan, str]]:
    """Return plans of the same memory with other layouts, by their keys in the JSON output.

    A value is a plan and words such as "if windows were full layers". The result is empty for policies other than
    paged, and for models to which no other layout applies.
    """
    if policy != "paged":
        return {}
    full, divided, number = budget.with_full_layers(), budget.with_divided_latents(), budget.model.tensor_parallel_size
    plans = {}
    if full is not None:
        plans["windows_as_full_layers"] = (full, "if windows were full layers")
    if divided is not None:
        plans["latents_divided"] = (divided, f"if the {number} GPUs shared each latent, which vLLM keeps whole on all")
    return plans


def unmeasured_notes(flags: Mapping[str, Any], budget: Budget) -> list[str]:
    """Return a note for each term of the budget that was not measured for its model or release."""
    release, model = release_of(flags), budget.model
    is_computed = any(term.label == "activations" for term in budget.terms)
    sentences = []
    if is_computed and model.divides_experts_among_ranks:
        sentences.append(
            "of data-parallel ranks one start was measured (Qwen3-30B-A3B, two H100s): 1.2 % fewer blocks than these "
            "estimates of activations, buffers and graphs leave"
        )
    if is_computed and model.image_class and not budget.encoder_cache_tokens:
        sentences.append(
            f"what vLLM keeps for images of {model.image_class} is left out: its largest image is not known"
        )
    if is_computed and model.decode_context_parallel_size > 1:
        sentences.append("the memory with which GPUs exchange results of divided contexts was not measured")
    if is_computed and rules_of(release).profiles_free_memory:  # from vLLM 0.27 on
        sentences.append(
            f"activations, captured graphs and memory outside PyTorch were measured in vLLM 0.25.1; {release} takes "
            "one difference of free memory instead, which was not measured"
        )
    return sentences


def document(
    flags: Mapping[str, Any], budget: Budget, policy: str, tokens: int, costs: dict[str, Any] | None, *, sleeps: bool
) -> dict[str, Any]:
    """Return all figures for JSON. `costs` are those of an image, or None. `sleeps` adds the sizes in sleep mode."""
    plan = budget.plan
    num_sequences, _ = sequences_at_once(budget, policy, tokens)
    # The log of vLLM has a token capacity of its own, which later releases compute from sequences of max_model_len.
    logs_longest = rules_of(release_of(flags)).logs_longest
    document = {
        "gpu": budget.gpu.name,
        "model": budget.model.name,
        "policy": policy,
        **{name: getattr(budget.model, name) for name in _OF_MODEL},
        "bytes_per_block": budget.bytes_per_block,
        "kv_bytes": budget.kv_bytes,
        "num_blocks": budget.num_blocks,
        "capacity_tokens": budget.capacity_tokens,
        "gpu_kv_cache_size_tokens": plan.num_tokens if logs_longest else plan.divided_tokens,
        "max_concurrency": plan.concurrency,
        "max_model_len": plan.settings.max_model_len,
        "kv_cache_groups": [group.as_meta() for group in plan.layout.groups],
        "max_sequences": {str(tokens): num_sequences},
        "max_sequences_otherwise": {
            name: {str(tokens): other.max_sequences(tokens)}
            for name, (other, _) in other_layouts(budget, policy).items()
        },
        "terms": [{"label": term.label, "bytes": term.size_bytes, "why": term.why} for term in budget.terms],
    }
    document |= {"image": costs} if costs else {}
    document |= {"asleep": asleep_of(budget)} if sleeps else {}
    return document | {"unmeasured": unmeasured_notes(flags, budget)}
