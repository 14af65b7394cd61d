"""Printed answer of `kvsim run`: a verdict, the simulated setup, and the main figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cli.show import echo, number, print_table, quantiles, seconds
from kvsim.cli.turn_tables import print_turns
from kvsim.display.text import size_words
from kvsim.machines import (
    ADAPTERS_BY_CONSTANTS,
    DRAFTS_BY_CONSTANTS,
    IMAGES_BY_CONSTANTS,
    N_GRAMS_BY_CONSTANTS,
    class_in,
    plain_words,
    untimed_in,
)
from kvsim.machines.known_errors import error_words
from kvsim.metrics.run_verdict import verdict_of, wasted_percent
from kvsim.metrics.steady import steady_part
from kvsim.metrics.summary import hit_words
from kvsim.policies import Radix
from kvsim.policies.sglang import host_pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.experiments.bands import Band
    from kvsim.metrics import Summary
    from kvsim.recording import Meta
    from kvsim.simulation import Measured

Row = tuple[str, ...]
_TIMES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("end to end", "e2e_s"))


def print_answer(
    run: Measured, summary: Summary, requests: str, *, band: Band | None = None, notes: Sequence[str] = ()
) -> None:
    """Print a verdict on the run of a single server, its steady part, its setup, its figures, and `notes`.

    If the requests are turns of sessions, print a table of turns at the end.

    `requests` describes the requests in words. `band` has the prediction intervals of some figures; None: no intervals
    are known.
    """
    echo(verdict_of(summary).sentence)
    if summary.duration_s:
        echo(steady_part(run.requests).sentence)
    print_table("", ["", ""], setting_rows(run.meta, requests))
    print_table("", ["", ""], _figures(summary, band), note="\n".join(notes))
    print_turns(run)


def band_notes(band: Band | None) -> list[str]:
    """Return the note that explains the intervals in brackets, or that says why there are none."""
    if band is None:
        return ["no brackets: fewer than three recordings show the error of such times"]
    return [f"in brackets: with {band.words()}"]


_LEFT_SKIPPED = "vllm_left_skipped"
_FAILURES = {
    "vllm_failures": (
        "sequences were preempted and resumed while their tokens were in the pipeline (its pull request 47900); give "
        "it more memory, --no-async-scheduling, or a release from 0.27 on"
    ),
    "vllm_padding_failures": (
        "a request with one token to compute is admitted with all its drafts, and --long-prefill-token-threshold "
        "allows fewer tokens; allow at least one more than num_speculative_tokens"
    ),
    "vllm_adapter_failures": (
        "a running request that a step leaves out does not keep the slot of its adapter, so that too many adapters "
        "are admitted; give it more memory, a larger --max-loras, or release 0.33"
    ),
    _LEFT_SKIPPED: (
        "a preempted request that waited for its adapter ended by a token in flight, and was admitted again; give "
        "it more memory, a larger --max-loras, or a release from 0.31 on"
    ),
}
"""Causes for which vLLM itself ends with an error, with their remedies, by the counter's name in `Meta.engine`."""


def failure_notes(metas: Sequence[Meta]) -> list[str]:
    """Return a warning for each cause for which vLLM itself would have crashed in the runs that `metas` describe."""
    notes = []
    for key, cause in _FAILURES.items():
        if num_failures := sum(int(meta.engine.get(key, 0)) for meta in metas):
            often = "once" if num_failures == 1 else f"{num_failures:,} times"
            release = metas[0].policy["vllm"]
            error = "a RuntimeError" if key == _LEFT_SKIPPED else "an AssertionError"
            notes.append(f"vLLM {release} itself would have ended {often} with {error}: {cause}")
    return notes


def _gpus_in_words(num_stages: int, per_stage: int) -> str:
    """Describe the GPUs of a pool: `num_stages` pipeline stages with `per_stage` GPUs each. Empty for a single GPU."""
    if num_stages > 1:
        return f" on {'the' if per_stage == 1 else 'one GPU of each of'} {num_stages} stages together"
    return " on each GPU" if per_stage > 1 else ""


def setting_rows(meta: Meta, requests: str, servers: str = "") -> list[Row]:
    """Return the rows about the simulated setup: requests, servers, memory, limits and step times.

    `requests` describes the requests in words, and `servers` the number of servers; `servers` is empty for one server.
    """
    model, pool, policy = meta.model, meta.pool, meta.policy
    num_stages, per_stage = int(model.get("pipeline_parallel_size", 1)), int(model.get("tensor_parallel_size", 1))
    num_gpus = num_stages * per_stage
    gpus = f"{num_gpus} x {meta.gpu}" if num_gpus > 1 else meta.gpu
    routed = f", {servers} behind one router" if servers else ""
    cache = model.get("kv_cache_dtype", "auto")
    kept = f" (KV cache in {cache})" if cache != "auto" else ""
    rows = [
        ("requests", requests),
        ("server", f"{model.get('name', 'a model')} on {gpus}, {meta.policy_name}{routed}"),
        ("KV cache", f"{pool_words(meta)}{_gpus_in_words(num_stages, per_stage)}{kept}"),
        *_host_rows(meta),
        ("limits", _limit_words(policy)),
        *times_rows(meta.engine.get("step_time")),
    ]
    return [row for row in rows if row[1]] if pool.num_units else rows


def _host_rows(meta: Meta) -> list[Row]:
    policy, pool = meta.policy, meta.pool
    if policy.get("kv_offloading_size"):
        capacity, how = f"{policy['kv_offloading_size']:g} GiB", ""
    elif policy.get("enable_hierarchical_cache"):
        sizes = {"ratio": policy["hicache_ratio"], "size_gb": policy["hicache_size"]}
        num_pages = host_pages(pool.num_units or 0, pool.unit_tokens, pool.bytes_per_unit, **sizes)
        capacity = f"{size_words(num_pages * pool.bytes_per_unit)}, {num_pages * pool.unit_tokens:,} tokens"
        how = f", {policy['hicache_write_policy']}; the times of copies are a model"
    else:
        return []
    out, back = policy["store_gb_per_s"], policy["load_gb_per_s"]
    return [("host memory", f"{capacity}, {out:.1f} GB/s there and {back:.1f} GB/s back{how}")]


_BY_CONSTANTS = "timed by constants that were read off one H100"


def times_rows(label: Any) -> list[Row]:
    """Return the rows about step times: their source, their measured error, and parts of serving that they omit."""
    text = str(label or "unknown")
    kind = class_in(text)
    rows = [
        ("times", plain_words(text)),
        ("class", "" if kind is None else kind.setting),
        ("error", "not known of such times" if kind is None else error_words(kind).removeprefix("error ")),
        ("encoder", _BY_CONSTANTS if _times_images(text) else ""),
        ("drafting", _BY_CONSTANTS if DRAFTS_BY_CONSTANTS in text else ""),
        ("n-grams", "timed by constants that were read off two H200s" if N_GRAMS_BY_CONSTANTS in text else ""),
        ("adapters", _BY_CONSTANTS if ADAPTERS_BY_CONSTANTS in text else ""),
        ("not in the times", untimed_in(text)),
    ]
    return [row for row in rows if row[1]]


def _times_images(label: str) -> bool:
    kind = class_in(label)
    return kind is not None and "images" in kind.engine and IMAGES_BY_CONSTANTS in label


def pool_words(meta: Meta) -> str:
    """Describe the size of the pool in words: its bytes, and its number of tokens, blocks or pages.

    For a recording of `generate()`, say that there is no pool.
    """
    pool = meta.pool
    if pool.num_units is None:
        return "no pool: the cache grows with the batch"
    num_bytes = size_words(pool.num_bytes)
    if pool.windows is not None:
        return f"{num_bytes}, {pool.num_units:,} {pool.units_in_words}"
    if pool.unit_tokens == 1:
        return f"{num_bytes}, {pool.num_units:,} tokens"
    if pool.groups:
        return f"{num_bytes}, {pool.num_units:,} {pool.units_in_words}"
    tokens = pool.num_units * pool.unit_tokens
    return f"{num_bytes}, {pool.num_units:,} blocks of {pool.unit_tokens} tokens, {tokens:,} tokens"


def _limit_words(policy: Mapping[str, Any]) -> str:
    names = {
        "batch_size": "rows of a batch",
        "max_num_seqs": "sequences",
        "max_num_batched_tokens": "tokens a step",
        "max_model_len": "tokens a sequence",
    }
    return ", ".join(f"{policy[name]:,} {words}" for name, words in names.items() if isinstance(policy.get(name), int))


def _figures(summary: Summary, band: Band | None) -> list[tuple[str, str]]:
    ranges = {} if band is None else band.ranges
    rows = [("output", f"{number(summary.output_tokens_per_s)} tokens/s{_within(ranges, 'output_tokens_per_s')}")]
    rows += [(label, quantiles(getattr(summary, name)) + _within(ranges, name, mean=True)) for label, name in _TIMES]
    minutes = summary.duration_s / 60
    often = f", {summary.num_preemptions / minutes:,.0f} a minute" if summary.num_preemptions and minutes else ""
    rows.append(("preemptions", f"{summary.num_preemptions:,}{often}{_within(ranges, 'num_preemptions')}"))
    share = 100 * summary.vain_tokens / summary.computed_tokens if summary.computed_tokens else 0.0
    rows.append(("computed in vain", f"{summary.vain_tokens:,} tokens, {share:.1f} % of all that were computed"))
    rows.append(("waiting", _waiting(summary)))
    rows.append(("prefix hits", hit_words(summary)))
    rows.append(("batch", f"{number(summary.mean_batch, '.1f')} sequences on average, {summary.peak_batch:,} at most"))
    full = f"{_percent(summary.mean_occupancy)} held on average, {_percent(summary.peak_occupancy)} at most"
    rows.append(("pool", f"{full}; {number(wasted_percent(summary), '.1f')} % wasted"))
    if summary.images_used:
        cached = summary.images_used - summary.images_computed
        rows.append(("images", f"{summary.images_computed:,} computed, {cached:,} found in the encoder cache"))
    if summary.swapped_out_bytes or summary.swapped_in_bytes:
        out, back = size_words(summary.swapped_out_bytes), size_words(summary.swapped_in_bytes)
        there, loaded = summary.swapped_out_units, summary.loaded_tokens
        unit = "pages" if summary.policy == Radix.name else "blocks"
        moved = f"{out} copied there in {there:,} {unit}, {back} back in {summary.swapped_in_units:,}"
        rows.append(("host memory", f"{moved}: {loaded:,} tokens were not computed"))
    unserved = {"refused": summary.num_refused, "aborted": summary.num_aborted, "unfinished": summary.num_unfinished}
    others = "".join(f", {count:,} {name}" for name, count in unserved.items() if count)
    return [*rows, ("served", f"{summary.num_finished:,}{others}")]


def _within(ranges: Mapping[str, tuple[float, float]], name: str, *, mean: bool = False) -> str:
    if name not in ranges:
        return ""
    low, high = ranges[name]
    span = f"{seconds(low)} to {seconds(high)}" if mean else f"{low:,.0f} to {high:,.0f}"
    return f" ({span})"


def _waiting(summary: Summary) -> str:
    waits = summary.waiting_for
    found = {"memory": waits.memory, "a place in the batch": waits.batch, "tokens of a step": waits.tokens}
    found["a slot of their adapter"] = waits.adapters
    causes = ", ".join(f"{value:,.1f} for {name}" for name, value in found.items() if value >= 0.05)
    return f"{number(summary.mean_waiting, ',.1f')} requests on average{f': {causes}' if causes else ''}"


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.0f} %"
