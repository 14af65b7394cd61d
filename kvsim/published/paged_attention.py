"""Figures of Kwon et al., Efficient Memory Management for Large Language Model Serving (PagedAttention), SOSP 2023."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics import PAPER_CLASSES
from kvsim.models import find_model
from kvsim.policies.settings import Reserve
from kvsim.published.length_tables import paper_lengths
from kvsim.published.servers import SERVERS, machine, mean_running, orca, saturated_shares, vllm
from kvsim.simulation import simulate
from kvsim.workload import AllAtOnce, LogNormal, Poisson, SharedPrefixes, generate

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback

RATES_PER_S = {"sharegpt": 2.0, "alpaca": 30.0}
"""Request rates of Figure 13 in requests per second, by data set."""
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Block sizes of Figure 18b, in tokens."""
_WORTH_NOTICING = 1.1
"""A block size counts as good if its latency is at most this many times the best latency."""

_KV_POOLS = {"facebook/opt-13b": 12, "facebook/opt-66b": 21, "facebook/opt-175b": 264}
_NUM_SATURATING = 1200
_NUM_ARRIVING = {"sharegpt": 2400, "alpaca": 12_000}
_NUM_DRAWS = 4
"""Number of random arrival sequences over which the mean batch of vLLM in Figure 13 is averaged.

Close to overload, the mean batches of two such sequences differ by a tenth. Other servers' figures come from one.
"""


def _table1(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    return [(gib << 30) // find_model(name).kv_bytes_per_token for name, gib in _KV_POOLS.items()]


@cache
def _saturated_percent(server: str) -> dict[str, float]:
    """Return the mean percent of the pool of each of `PAPER_CLASSES`, over the time in which requests wait."""
    workload = paper_lengths("sharegpt").workload(_NUM_SATURATING, arrivals=AllAtOnce())
    policy = SERVERS[server]
    return saturated_shares(simulate(workload, policy, machine(policy))).paper_percent


def _figure2(progress: ProgressCallback) -> list[float]:
    ours = []
    for done, server in enumerate(SERVERS):
        progress(done, len(SERVERS))
        percent = _saturated_percent(server)
        ours += [percent[name] for name in (("token",) if server == "vLLM" else PAPER_CLASSES)]
    return ours


def _waste(progress: ProgressCallback) -> list[float]:
    progress(0, 1)
    return [100 - _saturated_percent(server)["token"] for server in ("Orca (Oracle)", "Orca (Max)")]


def _figure13(progress: ProgressCallback) -> list[float]:
    batches: list[float] = []
    for name in RATES_PER_S:
        for server in SERVERS:
            progress(len(batches), len(RATES_PER_S) * len(SERVERS))
            seeds = range(_NUM_DRAWS if server == "vLLM" else 1)
            batches.append(float(np.mean([_mean_batch(name, server, seed) for seed in seeds])))
    return batches


def _mean_batch(name: str, server: str, seed: int) -> float:
    arrivals = Poisson(rate_per_s=RATES_PER_S[name])
    workload = paper_lengths(name).workload(_NUM_ARRIVING[name], arrivals=arrivals, seed=seed)
    recording = simulate(workload, SERVERS[server], machine(SERVERS[server]))
    return mean_running(recording, until_s=float(workload.arrival_s[-1]))


def _mean_lengths(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    rng = np.random.default_rng(0)
    samples = [paper_lengths(name).sample(10_000, rng) for name in RATES_PER_S]
    return [float(tokens.mean()) for sample in samples for tokens in sample]


def _prefix_throughput_ratios(progress: ProgressCallback) -> list[float]:
    """Return two ratios, for shared prefixes of 80 and of 341 tokens.

    Each is vLLM's throughput divided by that of Orca (Oracle), when all requests arrive at once.
    """
    llama = find_model("huggyllama/llama-13b")
    ratios = []
    for done, prefix_tokens in enumerate((80, 341)):
        progress(done, 2)
        workload = generate(
            1000,
            arrivals=AllAtOnce(),
            prompt=LogNormal(mean_tokens=30, sigma=0.5, maximum=200),
            output=LogNormal(mean_tokens=35, sigma=0.5, maximum=200),
            prefixes=SharedPrefixes(num_groups=1, tokens=prefix_tokens),
            seed=0,
        )
        shared, oracle = (
            simulate(workload, policy, machine(policy, llama)).duration_s
            for policy in (vllm(prefix_caching=True), orca(Reserve.ORACLE))
        )
        ratios.append(oracle / shared)
    return ratios


def _block_size_latencies(name: str, progress: ProgressCallback) -> list[float]:
    """Return the mean end-to-end latency in seconds by `BLOCK_SIZES`, for data set `name` at the rate of Figure 13."""
    workload = paper_lengths(name).workload(_NUM_ARRIVING[name] // 4, arrivals=Poisson(rate_per_s=RATES_PER_S[name]))
    latencies = []
    for done, block_size in enumerate(BLOCK_SIZES):
        progress(done, len(BLOCK_SIZES))
        policy = vllm(block_size)
        requests = simulate(workload, policy, machine(policy)).requests
        latencies.append(float((requests.finished_s - requests.arrival_s).mean()))
    return latencies


def _largest_good_block(progress: ProgressCallback) -> list[float]:
    largest: list[float] = []
    for name in RATES_PER_S:
        latencies = np.array(_block_size_latencies(name, progress))
        largest.append(max(np.array(BLOCK_SIZES)[latencies <= _WORTH_NOTICING * latencies.min()].tolist()))
    return largest


REPRODUCE = {
    "table1": _table1,
    "fig2": _figure2,
    "fig13": _figure13,
    "lengths": _mean_lengths,
    "shared-prefix": _prefix_throughput_ratios,
    "block-size": _largest_good_block,
    "waste": _waste,
}
"""Functions that simulate figures of this paper and of the launch post, by the name of the row."""
