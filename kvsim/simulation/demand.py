"""Turn a workload into a `Demand`: the engine's input, with lengths cut to the limits, and the keys of prefixes.

This module also tells which requests could never be served, and which prompt hashes a recording has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvsim.engine.known_requests import BEGIN_TOKENS, Demand
from kvsim.engine.paged.prefix_keys import all_prompt_keys, knows_prefixes, prompt_keys, with_answers
from kvsim.errors import BudgetError, UsageError, WorkloadError
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies import Paged, Policy, Radix
from kvsim.recording.model import HASH_TOKENS
from kvsim.workload import Ragged, Workload


def demand_of(
    workload: Workload, policy: Policy, layout: KVCacheLayout | None, num_slots: int, *, recording: bool
) -> Demand:
    """Return the requests of `workload` as an engine with a pool of `num_slots` slots gets them.

    `layout` is None for policies without blocks. Prompts get prefix keys if two conditions hold: the workload tells
    which prefixes are equal, and either the policy has a prefix cache or the run is recorded (`recording`).
    """
    prompt = workload.prompt_tokens.astype(np.int64)
    # Answers, and the limits on them, end at the longest sequence that the policy allows.
    longest = np.maximum(policy.max_model_len - prompt, 1)
    caching = False
    if isinstance(policy, Radix):
        longest, caching = policy.most_new_tokens(prompt, num_slots), not policy.cache.disable_radix_cache
    elif isinstance(policy, Paged):
        caching = policy.cache.enable_prefix_caching or policy.cache.kv_offloading_size > 0
    keys, begins = Ragged.empty(len(workload), np.int64), None
    if (caching or recording) and knows_prefixes(workload):
        keys = _prefix_keys(workload, hash_tokens(workload, policy, layout), _tokens_ahead(policy))
        begins = _begins(workload) if isinstance(policy, Radix) else None
    return Demand(
        prompt=prompt,
        output=np.maximum(np.minimum(workload.output_tokens, longest), 1),
        limit=np.minimum(workload.max_tokens, longest),
        priority=workload.priority.astype(np.int64),
        adapter=_adapters(workload, policy),
        arrival_s=workload.arrival_s,
        keys=keys,
        begins=begins,
    )


def _begins(workload: Workload) -> npt.NDArray[np.int64] | None:
    """Return, for each request, the key of its first `BEGIN_TOKENS` tokens, which SGLang compares between waiting
    requests. The key is -1 if these tokens are not all known.

    The result is None if the units of the workload's hashes neither divide `BEGIN_TOKENS` nor are multiples of it.
    """
    tokens = workload.hash_unit_tokens
    if len(workload.prompt_hashes.values) and tokens % BEGIN_TOKENS and BEGIN_TOKENS % tokens:
        return None
    keys = _prefix_keys(workload, BEGIN_TOKENS, 0)
    begins = np.full(len(workload), -1, np.int64)
    is_known = keys.lengths > 0
    begins[is_known] = keys.values[keys.offsets[:-1][is_known]]
    return begins


def _prefix_keys(workload: Workload, unit: int, ahead: int) -> Ragged[np.int64]:
    """Return the keys of the blocks of each prompt, and of the blocks of answers that later turns repeat.

    A block has `unit` tokens. Its key also covers `ahead` tokens after the block. Equal prompts with different adapters
    have different keys.
    """
    keys = with_answers(workload.turns, prompt_keys(workload, unit, ahead), unit, ahead)
    if not workload.adapter.any():
        return keys
    distinct = keys.values * (int(workload.adapter.max()) + 1) + np.repeat(workload.adapter, keys.lengths)
    return Ragged(distinct, keys.offsets, np.int64)


def _adapters(workload: Workload, policy: Policy) -> npt.NDArray[np.int64]:
    """Return the number of each request's adapter, 0 for none. Refuse adapters if the policy does not serve them."""
    if workload.adapter.any() and isinstance(policy, Paged) and not policy.scheduler.enable_lora:
        raise UsageError("the requests name adapters, which vLLM refuses without --enable-lora; give it, with "
                         "--max-loras and --max-lora-rank.")  # fmt: skip
    return workload.adapter.astype(np.int64)


def _tokens_ahead(policy: Policy) -> int:
    """Return how many tokens after a block its key also covers, because drafting reads them; 0 without drafts."""
    if not isinstance(policy, Paged) or policy.scheduler.drafting is None:
        return 0
    return policy.scheduler.drafting.tokens_ahead(policy.scheduler.vllm) if policy.cache.enable_prefix_caching else 0


def refused(
    workload: Workload,
    demand: Demand,
    policy: Policy,
    layout: KVCacheLayout | None,
    num_units: int,
    *,
    refuse_misfits: bool,
) -> npt.NDArray[np.bool_]:
    """Return bool[requests]: True for requests that could never be served. `layout` is None without blocks.

    Raises:
        WorkloadError: a prompt leaves no room for an answer within the maximum length, and `refuse_misfits` is False.
        BudgetError: a request needs more than the whole pool, and `refuse_misfits` is False.
    """
    too_long = demand.prompt >= policy.max_model_len
    misfits = np.asarray(too_long | demand.misfits(policy, num_units, layout))
    if refuse_misfits or not misfits.any():
        return misfits
    row = int(np.argmax(misfits))
    name, prompt = f"request {workload.ids[row]!r} (row {row})", demand.prompt[row]
    if too_long[row]:
        raise WorkloadError(
            f"{name} has a prompt of {prompt} tokens, and with a maximum length of {policy.max_model_len} it may have "
            f"{policy.max_model_len - 1}; raise --max-model-len, or refuse such requests with --refuse-misfits."
        )
    raise BudgetError(
        f"{name} with {prompt} prompt tokens, {demand.output[row]} of output and a limit of {demand.limit[row]} does "
        "not fit into the whole pool; give it more memory (--num-blocks, --kv-gib, --gpu-memory-utilization), or "
        "refuse such requests with --refuse-misfits."
    )


def hash_tokens(workload: Workload, policy: Policy, layout: KVCacheLayout | None) -> int:
    """Return the number of tokens that one prompt hash covers in a recording.

    For policies without blocks or pages, which never look prefixes up, it is the workload's own number.
    """
    if isinstance(policy, Radix):
        return policy.unit_tokens
    if not isinstance(policy, Paged):
        return workload.hash_unit_tokens
    if layout is None or layout.is_uniform or not policy.cache.enable_prefix_caching:
        return policy.unit_tokens
    return layout.hash_block_size


def recorded_hashes(
    workload: Workload, policy: Policy, layout: KVCacheLayout | None, demand: Demand, rows: range
) -> Ragged[np.int64]:
    """Return the prompt hashes of one server's recording.

    `rows` are the rows of the server's requests in the fleet's whole workload. `workload` and `demand` have only the
    server's requests. `layout` is None for policies without blocks.
    """
    covered = np.maximum(workload.prompt_tokens - hash_ahead_tokens(workload, policy), 0)
    return all_prompt_keys(demand.keys, covered // hash_tokens(workload, policy, layout), rows)


def hash_ahead_tokens(workload: Workload, policy: Policy) -> int:
    """Return the number of tokens after a block that its recorded prompt hash covers; 0 without drafts."""
    if isinstance(policy, Paged | Radix):
        return _tokens_ahead(policy) if knows_prefixes(workload) else 0
    return workload.hash_ahead_tokens


def provenance_of_hashes(workload: Workload, policy: Policy) -> dict[str, int]:
    """Return the metadata entry that states the number of tokens of one prompt hash.

    It is empty if the recording has no prompt hashes, or if the number follows from the policy.
    """
    tokens = workload.hash_unit_tokens
    is_known = isinstance(policy, Paged | Radix) or tokens == policy.unit_tokens
    return {} if is_known or not knows_prefixes(workload) else {HASH_TOKENS: tokens}
