"""Read the workload of a run of SGLang's own scheduler, and expand the records of the scheduler's decisions.

Prompts and answers get the same generated tokens as in the program that runs that scheduler, so that the same prefixes
are equal. Every error names the file, and the request if it is about one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import UsageError, WorkloadError
from kvsim.policies import Radix, RadixSettings, SGLangSettings

_STOP = 3
"""Id of the token that ends an answer."""
STATE = (
    "running", "waiting", "ratio", "free", "evictable", "locked", "full", "free_pages", "free_ends", "free_windows",
    "evictable_windows", "free_pages_windows", "free_ends_windows", "free_host",
)  # fmt: skip
"""Fields that a record leaves out if their values are those of the record before it."""
SGLANG_FIELDS: Mapping[str, tuple[str, ...]] = {
    "engine": ("slots", "page_size", "overlap", "max_running", "max_prefill_tokens", "max_req_input_len", "ratio"),
    "arrivals": ("pass", "arrived", "aborted", "waiting"),
    "copies": ("pass", "written", "loaded"),
    "step": ("pass", "step", "mode", "scheduled"),
    "update": ("pass", "step", "outputs", "finished"),
    "stuck": ("pass", "waiting"),
    "failed": (),
    "end": ("pass", "forwards", "free", "evictable", "locked"),
}
"""Required fields of each kind of record."""
_ENVIRONMENT = {
    "SGLANG_INIT_NEW_TOKEN_RATIO": "init_new_token_ratio",
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": "min_new_token_ratio_factor",
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "new_token_ratio_decay_steps",
    "SGLANG_RETRACT_DECODE_STEPS": "retract_decode_steps",
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "clip_max_new_tokens_estimation",
    "SGLANG_SWA_EVICTION_INTERVAL": "swa_eviction_interval",
    "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP": "disable_consecutive_prefill_overlap",
}
_OF_HICACHE = ("enable_hierarchical_cache", "hicache_ratio", "hicache_write_policy")
_OF_CACHE = ("swa_full_tokens_ratio", "swa_eviction_interval", *_OF_HICACHE)
"""Names of arguments and environment variables about the cache. All others are about scheduling."""
_ARGUMENTS = (
    *_OF_HICACHE,
    "swa_full_tokens_ratio",
    "prefill_max_requests", "prefill_decode_interval", "prefill_decode_interval_min_bs", "disable_priority_preemption",
    "priority_scheduling_preemption_threshold", "schedule_low_priority_values_first", "retraction_policy",
)  # fmt: skip
_WORKLOAD_DEFAULTS: Mapping[str, Any] = {
    "page_size": 1, "max_running_requests": 8, "context_length": 128, "chunked_prefill_size": 32,
    "max_prefill_tokens": 64, "overlap": True, "mixed_chunk": False, "schedule_policy": "fcfs", "conservativeness": 1.0,
    "radix_cache": True, "eviction_policy": "lru", "priority_scheduling": False,
}  # fmt: skip
_IGNORED = (
    "requests", "num_slots", "environment", "server_args", "tell_tree", "tree_core", "attention_backend", "model",
    "window", "copy_passes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangRequest:
    """One request of a workload for SGLang."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """Token ids of the output, up to the stop token or the limit."""
    limit: int
    """Maximum number of output tokens."""
    stop_at: int | None
    """Number of output tokens up to and including the stop token; None if there is none, or it is ignored."""
    ignores_eos: bool
    arrival_pass: int
    abort_pass: int | None
    priority: int | None
    extra_key: str | None
    """SGLang's `extra_key`: requests with different keys never share a prefix. None if the request has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangWorkload:
    """Settings and requests of a run of SGLang's scheduler."""

    num_slots: int
    window_tokens: int
    """Number of earlier tokens that layers with windows read, not counting the new token; 0 without such layers."""
    policy: Radix
    requests: tuple[SGLangRequest, ...]


def parse_sglang_workload(document: Any, where: str) -> SGLangWorkload:
    """Build a workload from parsed JSON.

    Raises:
        WorkloadError: a value is invalid or not simulated; `where` begins the message.
    """
    if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
        raise WorkloadError(f"{where}: a workload is an object with num_slots and a list of requests.")
    given = dict(_WORKLOAD_DEFAULTS) | document
    _refuse_unknown(given, where)
    environment = {_ENVIRONMENT[name]: value for name, value in document.get("environment", {}).items()}
    arguments = document.get("server_args", {}) | environment
    if arguments.get("enable_hierarchical_cache") and document.get("window"):
        raise WorkloadError(f"{where}: kvsim does not follow a host tier beside layers with windows.")
    of_cache = {name: arguments[name] for name in _OF_CACHE if name in arguments}
    try:
        num_slots = int(document["num_slots"]) // given["page_size"] * given["page_size"]
        scheduler = SGLangSettings(
            max_running_requests=max(min(given["max_running_requests"], num_slots // 2), 1),
            context_length=given["context_length"],
            chunked_prefill_size=given["chunked_prefill_size"],
            max_prefill_tokens=given["max_prefill_tokens"],
            disable_overlap_schedule=not given["overlap"],
            enable_mixed_chunk=given["mixed_chunk"],
            schedule_policy=given["schedule_policy"],
            schedule_conservativeness=given["conservativeness"],
            enable_priority_scheduling=given["priority_scheduling"],
            **{name: value for name, value in arguments.items() if name not in _OF_CACHE},
        )
        cache = RadixSettings(
            page_size=given["page_size"],
            radix_eviction_policy=given["eviction_policy"],
            disable_radix_cache=not given["radix_cache"],
            **of_cache,
        )
        window_tokens = max(int(document.get("window", 0)) - 1, 0)
        requests = tuple(_requests(document["requests"]))
    except (UsageError, KeyError, TypeError, ValueError) as error:
        raise WorkloadError(f"{where}: {str(error).rstrip('.')}.") from error
    policy = Radix(scheduler=scheduler, cache=cache)
    return SGLangWorkload(num_slots=num_slots, window_tokens=window_tokens, policy=policy, requests=requests)


def _refuse_unknown(given: Mapping[str, Any], where: str) -> None:
    known = (*_WORKLOAD_DEFAULTS, *_IGNORED)
    unknown = [name for name in given if name not in known]
    unknown += [name for name in given.get("environment", {}) if name not in _ENVIRONMENT]
    unknown += [name for name in given.get("server_args", {}) if name not in _ARGUMENTS]
    if unknown:
        raise WorkloadError(
            f"{where}: kvsim does not follow {', '.join(unknown)} of SGLang; storage tiers and "
            "speculation are not simulated for it yet."
        )


def expanded(records: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record with its line number. Fields that the file leaves out because they are unchanged are added."""
    last: dict[str, Any] = {}
    for line, record in records:
        whole = dict(record)
        if record["kind"] in ("step", "update"):
            whole = last | whole
            last = {name: whole[name] for name in STATE if name in whole}
        yield line, whole


def _requests(documents: Sequence[Mapping[str, Any]]) -> Iterator[SGLangRequest]:
    by_id = {document["id"]: document for document in documents}
    for document in documents:
        stop = None if document.get("ignore_eos") else _stop_of(document)
        yield SGLangRequest(
            name=document["id"],
            prompt=tuple(_prompt_of(document, by_id)),
            answer=tuple(_answer_of(document, index) for index in range(_answer_length(document))),
            limit=document.get("max_tokens") or document["output_len"],
            stop_at=stop,
            ignores_eos=bool(document.get("ignore_eos", False)),
            arrival_pass=document.get("arrival_step", 0),
            abort_pass=document.get("abort_step"),
            priority=document.get("priority"),
            extra_key=document.get("extra_key"),
        )


def _prompt_of(document: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Return the token ids of a prompt.

    If `document` states none, they are generated like in the program that runs SGLang. `by_id` has the documents of all
    requests by name.
    """
    if document.get("prompt_token_ids"):
        return list(document["prompt_token_ids"])
    seed = sum(ord(letter) * 31**place for place, letter in enumerate(str(document.get("prompt_as", document["id"]))))
    own = [10 + (seed * 7919 + index * 104729) % 30000 for index in range(document["prompt_len"])]
    shared: list[int] = []
    if document.get("follows") is not None:
        before = by_id[document["follows"]]
        answer = [_answer_of(before, index) for index in range(_answer_length(before))]
        shared = _prompt_of(before, by_id) + answer
    elif document.get("prefix_group") is not None:
        group = (document["prefix_group"] + 1) * 6151
        shared = [10 + (group + index * 3571) % 30000 for index in range(document["prefix_len"])]
    return shared[: len(own)] + own[len(shared) :]


def _stop_of(document: Mapping[str, Any]) -> int | None:
    if document.get("stop_at") is None and document.get("max_tokens"):
        return int(document["output_len"])
    stop = document.get("stop_at")
    return None if stop is None else max(1, int(stop))


def _answer_length(document: Mapping[str, Any]) -> int:
    limit, stop = int(document.get("max_tokens") or document["output_len"]), _stop_of(document)
    return limit if stop is None or document.get("ignore_eos") else min(limit, stop)


def _answer_of(document: Mapping[str, Any], index: int) -> int:
    stop = _stop_of(document)
    if stop is not None and index + 1 >= stop:
        return _STOP
    seed = sum(
        ord(letter) * 37**place for place, letter in enumerate(str(document.get("answer_group", document["id"])))
    )
    return int(10 + (seed * 5557 + index * 7331) % 30000)
