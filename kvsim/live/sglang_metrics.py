"""Translation of SGLang's metrics to vLLM's names.

SGLang's retractions are vLLM's preemptions. If several ranks share one pool, only the first rank is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.live.exposition import Sample, samples

PREFIX = "sglang:"
_NAMES = {
    "token_usage": "kv_cache_usage_perc",
    "num_running_reqs": "num_requests_running",
    "num_queue_reqs": "num_requests_waiting",
    "num_retracted_requests_total": "num_preemptions_total",
    "num_requests_total": "request_success_total",
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total",
}
_TIMES = {
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "queue_time_seconds": "request_queue_time_seconds",
}
_RENAMED = {f"{PREFIX}{own}": f"vllm:{other}" for own, other in _NAMES.items()} | {
    f"{PREFIX}{own}{part}": f"vllm:{other}{part}"
    for own, other in _TIMES.items()
    for part in ("_bucket", "_sum", "_count")
}
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


def as_vllm(page: str) -> Iterator[Sample]:
    """Yield the samples of a page of SGLang that kvsim reads, under vLLM's names."""
    found: dict[str, float] = {}
    for sample in samples(page, PREFIX):
        if any(sample.labels.get(rank, "0") not in ("0", "") for rank in _RANKS):
            continue
        name = sample.name.removeprefix(PREFIX)
        found[name] = found.get(name, 0.0) + sample.value
        if sample.name in _RENAMED:
            yield Sample(_RENAMED[sample.name], sample.labels, sample.value)
    yield from _totals(found)


def _totals(found: dict[str, float]) -> Iterator[Sample]:
    page, tokens = found.get("page_size", 1.0), found.get("max_total_num_tokens", 0.0)
    if page >= 1 and tokens >= page:
        labels = {"num_gpu_blocks": f"{tokens // page:.0f}", "block_size": f"{page:.0f}"}
        yield Sample("vllm:cache_config_info", labels, 1.0)
    prompts, cached = found.get("prompt_tokens_total", 0.0), found.get("cached_tokens_total")
    if cached is not None and cached <= prompts:
        yield Sample("vllm:prefix_cache_queries_total", {}, prompts)
        yield Sample("vllm:prefix_cache_hits_total", {}, cached)
