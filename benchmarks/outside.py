"""Predict runs that others recorded: benchmarks/outside.py FOLDER [--profile PROFILE]

FOLDER holds what was read off their publications, which is not part of this repository: `h100_http_stages.csv` of
inference-sim/training and `rtx*_llama31_8b.csv` of casys-kaist/LLMServingSim. Prints one row per run, in errors.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import kvsim
from kvsim.machines import step_times
from kvsim.machines.choice import KERNELS
from kvsim.machines.kernel_tables import has_tables
from kvsim.metrics import Summary
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import Machine, measure
from kvsim.simulation.front_end import http, with_delays
from kvsim.workload import Workload

BLOCK = 16
SECONDS = 120
"""Of the 600 that a stage lasted; it is in its steady state after the first round of its prompts."""
MODELS = {
    "llama-2-7b": "Llama-2-7b",
    "llama-2-70b": "Llama-2-70b",
    "mixtral-8x7b": "Mixtral-8x7B-v0.1",
    "codellama-34b": "CodeLlama-34b",
}
RTX = {
    "rtx4090_llama31_8b.csv": ("RTX 4090", {"max_num_seqs": 256, "max_model_len": 32768}, 2588),
    "rtxpro6000_llama31_8b.csv": ("RTX PRO 6000", {"max_num_seqs": 128}, None),
}


class Run(NamedTuple):
    """A published run beside its prediction; times in seconds."""

    name: str
    label: str
    measured: tuple[float, float, float, float]
    """Means of end to end, TPOT and TTFT, and the median of TTFT."""
    predicted: tuple[float, float, float, float]


def http_stages(folder: Path, profile: str | None) -> Iterator[Run]:
    """Predict every stage, whose prompts come in turn, round after round."""
    with (folder / "h100_http_stages.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            size = int(row["tensor_parallel"])
            model = next(name for key, name in MODELS.items() if row["experiment"].startswith(key))
            machine = kvsim.machine("H100 SXM", model, tensor_parallel_size=size, max_num_seqs=128,
                                    max_num_batched_tokens=2048, gpu_memory_utilization=0.9)  # fmt: skip
            found = _predict(machine, profile, _stage(row), max_num_seqs=128, max_model_len=4096)
            server, _ = with_delays(http(), [found[0]], float(row["prompt_tokens_mean"]))
            measured = tuple(float(row[key]) for key in ("e2e_mean_s", "tpot_mean_s", "ttft_mean_s", "ttft_p50_s"))
            yield Run(f"{row['experiment']} {row['rate_per_s']}/s", found[1], measured, _figures(server[0]))  # type: ignore[arg-type]


def _stage(row: dict[str, str]) -> Workload:
    rate, groups, prompt = (
        float(row["rate_per_s"]),
        int(row["distinct_prompts"]),
        round(float(row["prompt_tokens_mean"])),
    )
    count = int(rate * SECONDS)
    return Workload(
        arrival_s=np.arange(count) / rate,
        prompt_tokens=np.full(count, prompt),
        output_tokens=np.full(count, int(row["output_tokens_asked"])),
        prefix_group=np.arange(count) % groups,
        prefix_tokens=np.full(count, (prompt - 1) // BLOCK * BLOCK),
        prefix_names=[f"prompt {number}" for number in range(groups)],
    )


def rtx_runs(folder: Path, profile: str | None) -> Iterator[Run]:
    """Predict the runs of one RTX card each."""
    for name, (gpu, limits, num_blocks) in RTX.items():
        with (folder / name).open(encoding="utf-8") as file:
            rows = {key: np.array(values, float) for key, *values in zip(*csv.reader(file), strict=True)}
        machine = kvsim.machine(gpu, "Llama-3.1-8B", max_num_seqs=limits["max_num_seqs"], max_num_batched_tokens=2048,
                                gpu_memory_utilization=0.9, num_blocks=num_blocks)  # fmt: skip
        workload = Workload(
            arrival_s=rows["arrival_s"],
            prompt_tokens=rows["prompt_tokens"].astype(int),
            output_tokens=rows["output_tokens"].astype(int),
        )
        if profile == KERNELS and not has_tables(machine.gpu):
            continue
        found, label = _predict(machine, profile, workload, **limits)
        first_s, last_s = rows["first_token_s"], rows["last_token_s"]
        tpot_s = (last_s - first_s) / np.maximum(rows["output_tokens"] - 1, 1)
        times = (last_s - rows["arrival_s"], tpot_s[rows["output_tokens"] > 1], first_s - rows["arrival_s"])
        measured = (*(float(np.mean(each)) for each in times), float(np.median(times[2])))
        yield Run(f"{gpu} Llama-3.1-8B", label, measured, _figures(found))  # type: ignore[arg-type]


def _predict(machine: Machine, profile: str | None, workload: Workload, **limits: int) -> tuple[Summary, str]:
    times = step_times(machine.gpu, machine.model, "vllm", source=profile, max_num_seqs=limits["max_num_seqs"])
    policy = Paged(scheduler=ContinuousSettings(max_num_batched_tokens=2048, **limits))
    served = Machine(gpu=machine.gpu, model=machine.model, kv_bytes=machine.kv_bytes, step_time=times)
    return measure(workload, policy, served).summary, times.label


def _figures(summary: Summary) -> tuple[float, float, float, float]:
    return summary.e2e_s.mean, summary.tpot_s.mean, summary.ttft_s.mean, summary.ttft_s.p50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile")
    arguments = parser.parse_args()
    print("| run | end to end | TPOT | TTFT, mean | TTFT, median |\n|---|---:|---:|---:|---:|")
    for runs in (http_stages, rtx_runs):
        for run in runs(arguments.folder, arguments.profile):
            pairs = list(zip(run.measured, run.predicted, strict=True))
            errors = [f"{100 * (told / real - 1):+.1f} %" for real, told in pairs[:2]]
            errors += [f"{1e3 * (told - real):+.1f} ms" for real, told in pairs[2:]]
            print(f"| {run.name} | {' | '.join(errors)} |", flush=True)


if __name__ == "__main__":
    main()
