"""The PagedAttention paper: Kwon et al., Efficient Memory Management for Large Language Model Serving, SOSP 2023."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics import PAPER_CLASSES
from kvsim.models import find_model
from kvsim.policies.settings import Reserve
from kvsim.published.figures import Figure, Row
from kvsim.published.lengths import paper_lengths
from kvsim.published.servers import SERVERS, machine, mean_running, orca, saturated_shares, vllm
from kvsim.simulation import simulate
from kvsim.workload import AllAtOnce, LogNormal, Poisson, SharedPrefixes, generate

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback

PAPER = "Kwon et al., SOSP 2023 (PagedAttention)"
RATES_PER_S = {"sharegpt": 2.0, "alpaca": 30.0}
"""Request rates of Figure 13, per second."""
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Block sizes of Figure 18b, in tokens."""
_WORTH_NOTICING = 1.1
"""Ratio to the best latency up to which a block size counts as good."""

_KV_POOLS = {"facebook/opt-13b": 12, "facebook/opt-66b": 21, "facebook/opt-175b": 264}
_NUM_SATURATING = 1200
_NUM_ARRIVING = {"sharegpt": 2400, "alpaca": 12_000}
_NUM_DRAWS = 4
"""Draws of arrivals for batches limited by time; close to overload, results differ by a tenth between draws."""


def _table1(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    return [(gib << 30) // find_model(name).kv_bytes_per_token for name, gib in _KV_POOLS.items()]


@cache
def _saturated_percent(server: str) -> dict[str, float]:
    """Return the shares of the pool in percent, by the paper's four classes, while requests wait."""
    workload = paper_lengths("sharegpt").workload(_NUM_SATURATING, arrivals=AllAtOnce())
    policy = SERVERS[server]
    return saturated_shares(simulate(workload, policy, machine(policy))).paper_percent


def _figure2(progress: ProgressCallback) -> list[float]:
    ours = []
    for done, (server, published) in enumerate(_FIGURE2.items()):
        progress(done, len(_FIGURE2))
        percent = _saturated_percent(server)
        ours += [percent[name] for name in published]
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


def _prefix_throughput(progress: ProgressCallback) -> list[float]:
    """Return the ratio of vLLM's saturated throughput with a shared prefix to that of Orca (Oracle)."""
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
    """Return the mean end-to-end latency in seconds for each of `BLOCK_SIZES`, at the rate of Figure 13."""
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


_TITLES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
_FIGURE2 = {
    "Orca (Max)": dict(zip(PAPER_CLASSES, (20.4, 13.3, 57.3, 8.9), strict=True)),
    "Orca (Pow2)": dict(zip(PAPER_CLASSES, (26.8, 17.9, 13.6, 41.6), strict=True)),
    "Orca (Oracle)": dict(zip(PAPER_CLASSES, (38.2, 25.2, 0.0, 36.6), strict=True)),
    "vLLM": {"token": 96.3},
}
_FIGURE13 = {"sharegpt": (7.00, 9.81, 13.62, 30.42), "alpaca": (7.00, 43.24, 72.75, 132.44)}

ROWS = (
    Row(
        name="table1",
        title="Slots of the KV pool: OPT-13B, 66B and 175B with 12, 21 and 264 GB",
        source=f"{PAPER}, Table 1",
        band="the memory is printed in whole GB: the slots that half of one holds",
        figures=tuple(
            Figure.within(name.rpartition("/")[2], slots, (1 << 29) // find_model(name).kv_bytes_per_token, "slots")
            for name, slots in zip(_KV_POOLS, (15_700, 9_700, 60_100), strict=True)
        ),
        reproduce=_table1,
    ),
    Row(
        name="fig2",
        title="Where the KV pool goes, OPT-13B and ShareGPT",
        source=f"{PAPER}, Figure 2",
        band="2 points a cell",
        figures=tuple(
            Figure.within(f"{server}, {name}", percent, 2, "%")
            for server, row in _FIGURE2.items()
            for name, percent in row.items()
        ),
        reproduce=_figure2,
        note="Mean over time while the queue is never empty. Buddy allocator, whose rounding counts as external; "
        "nothing depends on how long a step takes. One exponent of the answers' lengths was chosen with this figure in "
        "view.",
    ),
    Row(
        name="fig13",
        title="Requests batched on average: ShareGPT at 2 requests per second, Alpaca at 30",
        source=f"{PAPER}, Figure 13",
        band="5%: those limited by memory move by up to that from seed to seed; the 7 that fit of 2,048 slots each, to "
        "the last digit",
        figures=tuple(
            Figure.within(f"{_TITLES[name]}, {server}", batch, 0.005 if batch == 7 else 0.05 * batch, "requests")
            for name, row in _FIGURE13.items()
            for server, batch in zip(SERVERS, row, strict=True)
        ),
        reproduce=_figure13,
        note="vLLM's two are limited by time, the others by memory; close to overload, they are means of four draws of "
        "the arrivals, which differ by 15%. Two host times were chosen so that vLLM's come out: those two figures "
        "prove nothing, but that Orca (Oracle) is limited by memory at these times does. Alpaca's spread was chosen "
        "by Orca (Oracle), and Orca (Pow2) tests it.",
    ),
    Row(
        name="lengths",
        title="Mean lengths of prompts and answers",
        source=f"{PAPER}, section 6.1",
        band="0.5%: the tables of quantiles hold whole tokens",
        figures=(
            Figure.near("ShareGPT, prompt", 161.31, 0.005, "tokens"),
            Figure.near("ShareGPT, answer", 337.99, 0.005, "tokens"),
            Figure.near("Alpaca, prompt", 19.31, 0.005, "tokens"),
            Figure.near("Alpaca, answer", 58.45, 0.005, "tokens"),
        ),
        reproduce=_mean_lengths,
        note="A check of the distributions that kvsim ships, which were scaled to these means.",
    ),
    Row(
        name="shared-prefix",
        title="Throughput of vLLM with a shared prefix over Orca (Oracle), LLaMA-13B, translation",
        source=f"{PAPER}, section 6.4 and Figure 16",
        band="10%: the paper reads it off where curves of latency turn up",
        figures=(
            Figure.near("one example, 80 tokens", 1.67, 0.1, "x"),
            Figure.near("five examples, 341 tokens", 3.58, 0.1, "x"),
        ),
        reproduce=_prefix_throughput,
        note="Saturated. Sentences of 30 and translations of 35 tokens on average are assumed; the paper does not say.",
    ),
    Row(
        name="block-size",
        title="Largest block that costs no more than a tenth of the latency",
        source=f"{PAPER}, section 7.2 and Figure 18b: best at 16 to 128 for ShareGPT, 16 to 32 for Alpaca",
        band="one of the tested sizes up or down: the paper does not say at which rate it measured",
        figures=(
            Figure(label="ShareGPT", published=128, low=64, high=256, unit="tokens"),
            Figure(label="Alpaca", published=32, low=16, high=64, unit="tokens"),
        ),
        reproduce=_largest_good_block,
        note="Only the upper end is a matter of memory. Blocks below 16 are slow because of how the kernel reads them, "
        "which no step time here knows of.",
    ),
    Row(
        name="waste",
        title="Part of the KV memory that systems before paging waste",
        source="vLLM's launch post, 2023: 60% to 80%",
        band="2 points, as in Figure 2 that it sums up: what does not hold a token, with Orca (Oracle) and Orca (Max)",
        figures=(Figure.within("least", 60, 2, "%"), Figure.within("most", 80, 2, "%")),
        reproduce=_waste,
    ),
)
"""Published figures of this paper and of the launch post."""
