"""Setup for simulating a recorded run again: its policy, its memory, and its requests as they were sent."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvsim.conformance.comparable import host_blocks_of, settings_of
from kvsim.conformance.recorded_drafts import recorded_counts
from kvsim.errors import UsageError
from kvsim.hardware import GIB, find_gpu
from kvsim.hf_memory import batches_of
from kvsim.importers import workload_of
from kvsim.machines import card_of, host_link, served_model
from kvsim.policies import Paged, Policy, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.recording import Meta, Recording
from kvsim.recording.tables import FloatArray
from kvsim.workload import Workload


def policy_of(recording: Recording) -> tuple[Policy, int]:
    """Return the policy of the recorded engine with its settings, and the bytes of its KV memory on one GPU.

    Raises:
        UsageError: the recording is of `generate()` with batches of several sizes.
    """
    pool, settings = recording.meta.pool, {**recording.meta.engine, **recording.meta.policy}
    if recording.meta.policy_name == "static":
        sizes = sorted({batch.rows for batch in batches_of(recording)[:-1]})
        if len(sizes) > 1:
            raise UsageError(
                f"{recording.name} has batches of {', '.join(map(str, sizes))} rows, and a simulation makes them "
                "equally large; validate against a recording of one size, or calibrate a host on this one."
            )
        requests = recording.requests
        longest = int(requests.prompt_tokens.max() + requests.max_tokens.max())
        rows = int(settings.get("batch_size", 1))
        static = StaticSettings(batch_size=rows, preallocated=settings.get("cache") == "static", max_model_len=longest)
        # generate() has no pool: give the simulation enough for the largest batch.
        return Static(scheduler=static), rows * longest * pool.bytes_per_unit
    assert pool.num_units is not None
    scheduler = settings_of(ContinuousSettings, recording)
    # With several KV-cache groups, the pool has the common block size. The settings have the engine's block size.
    block_size = int(settings.get("block_size", pool.unit_tokens)) if pool.groups else pool.unit_tokens
    cache = settings_of(PagedSettings, recording, block_size=block_size, **_host_memory(recording.meta))
    unit_bytes = pool.bytes_per_unit
    if not pool.groups and "kv_cache_groups" not in recording.meta.extra:  # use the simulation's size
        unit_bytes = pool.unit_tokens * served_model(recording.meta).kv_bytes_per_token
    return Paged(scheduler=scheduler, cache=cache), (pool.num_units + pool.first_unit) * unit_bytes


@contextmanager
def with_recorded_drafts(policy: Policy, recording: Recording) -> Iterator[Policy]:
    """Yield `policy` with the recorded numbers of drafts of the requests of `as_sent`; unchanged without drafts.

    The numbers are in a temporary file (`--acceptance`), which is removed afterwards.

    Raises:
        RecordingError: the numbers do not follow from the recording.
    """
    if not isinstance(policy, Paged) or policy.scheduler.drafting is None:
        yield policy
        return
    accepted, proposed = recorded_counts(recording)
    lines = []
    for row in np.flatnonzero(recording.requests.output_tokens > 0).tolist():
        right, drafted = accepted.of_request(row), proposed.of_request(row)
        pairs = [f"{few}/{max(few, many)}" for few, many in zip(right, drafted, strict=False)]
        lines.append(" ".join(pairs or map(str, right)))
    with tempfile.TemporaryDirectory(prefix="kvsim-") as folder:
        file = Path(folder) / "drafts.txt"
        file.write_text("\n".join(lines), encoding="utf-8")
        yield replace(policy, scheduler=replace(policy.scheduler, acceptance=str(file)))


def _host_memory(meta: Meta) -> dict[str, float]:
    """Return the size of the recorded host memory in GiB, and the speed of its link in GB/s, as settings.

    A speed that the recording does not state is that of the GPU's machine card.
    """
    num_blocks, pool = host_blocks_of(meta), meta.pool
    if not num_blocks:
        return {"kv_offloading_size": 0.0}
    block_size = int(meta.policy.get("kv_offloading_block_size") or pool.unit_tokens)
    num_gpus = int(meta.engine.get("tensor_parallel_size", 1))
    block_bytes = block_size // pool.unit_tokens * pool.bytes_per_unit * num_gpus
    stated = {name: meta.policy[name] for name in ("load_gb_per_s", "store_gb_per_s") if name in meta.policy}
    size = {"kv_offloading_size": num_blocks * block_bytes / GIB}
    return size | host_link(card_of(find_gpu(meta.gpu))) | stated


def as_sent(recording: Recording) -> Workload:
    """Return the requests of `recording` that have output, with the times at which they were sent.

    If a real engine's recording lacks these times, they are estimated. An engine polls its queue of new requests once
    per step. Requests that are taken by one poll are assumed to have been sent at even intervals since the poll before.
    (If the time of the later poll were used, a slightly faster simulation would schedule half of a step's new requests
    one step too late.) In a simulated recording, the recorded arrivals are exact.
    """
    workload, requests = workload_of(recording, waiting=False), recording.requests
    if requests.sent_s is not None:
        return workload
    rows = np.flatnonzero(requests.output_tokens > 0)
    if recording.meta.source == "simulation":
        return replace(workload, arrival_s=requests.arrival_s[rows] - requests.arrival_s[rows].min())
    order = rows[np.argsort(requests.arrival_seq[rows])]
    # Requests taken by one poll have consecutive values of `arrival_seq`; -2 makes the first request begin a poll.
    begins = np.diff(requests.arrival_seq[order], prepend=-2) != 1
    poll = np.cumsum(begins) - 1
    num_found, place = np.bincount(poll), np.arange(len(order)) - np.flatnonzero(begins)[poll] + 1
    taken_s = requests.arrival_s[order[begins]]
    since_s = _previous_poll_s(recording, taken_s)
    arrival_s = requests.arrival_s.copy()
    arrival_s[order] = since_s[poll] + (taken_s - since_s)[poll] * place / (num_found[poll] + 1)
    return replace(workload, arrival_s=arrival_s[rows] - arrival_s[rows].min())


def is_stamped_at_entry(recording: Recording) -> bool:
    """Tell whether latencies of `recording` count from the time at which the engine took a request from its queue.

    Otherwise they count from the time at which the request was sent.
    """
    return recording.meta.source != "simulation" and recording.requests.sent_s is None


def _previous_poll_s(recording: Recording, taken_s: FloatArray) -> FloatArray:
    """Return, for each poll of the queue at `taken_s`, the time in seconds of the engine's poll before it.

    A busy vLLM engine polls at the start of each step, so this is the start of the previous step. If the engine was
    idle, is not vLLM, or recorded no steps, the entry of `taken_s` is returned.
    """
    steps, requests = recording.steps, recording.requests
    if recording.meta.policy_name != "paged" or not len(steps):
        return taken_s
    last = np.searchsorted(steps.start_s, taken_s, side="left") - 1
    finished_s = np.where(np.isnan(requests.finished_s), np.inf, requests.finished_s)
    come = np.searchsorted(np.sort(requests.arrival_s), taken_s, side="left")
    gone = np.searchsorted(np.sort(finished_s), taken_s, side="left")
    is_busy = (last >= 0) & (come > gone)
    return np.where(is_busy, steps.start_s[np.maximum(last, 0)], taken_s)


def users_of(recording: Recording) -> int | None:
    """Return the number of users of a recorded closed loop; None for an open loop.

    Calls of `generate()` are a closed loop with as many users as a batch has rows.
    """
    if recording.meta.policy_name == "static":
        return int(recording.meta.policy.get("batch_size", 1))
    workload = recording.meta.extra.get("workload")
    arrivals = str(workload.get("arrivals", "")) if isinstance(workload, dict) else ""
    match = re.fullmatch(r"closed loop, (\d+) at a time", arrivals)
    return int(match[1]) if match else None
