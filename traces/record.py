"""Make every trace in this folder again: python traces/record.py GROUP... --lengths DIR -o DIR, on a machine with a
GPU.

The groups share engine starts, which take a minute each. `--lengths` is a folder with two CSV files of real lengths
that are not part of this project: `gsm8k_lengths.csv` (prompt_tokens,answer_tokens) and `sharegpt.csv.gz`
(TIMESTAMP,prompt,output). Weights are random: only shapes matter to memory and speed.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from kvsim.workload import AllAtOnce, Arrivals, Gamma, Poisson, Workload

PRESSURE_BLOCKS = 1600
"""3.1 GiB for a Llama-3-8B: a pool that 40 ShareGPT requests per second overrun."""


def gsm8k(folder: Path, count: int, output_tokens: int = 128, *, skip: int = 0) -> Workload:
    """`count` GSM8K questions after the first `skip`, all at once."""
    with (folder / "gsm8k_lengths.csv").open() as file:
        prompts = [int(row["prompt_tokens"]) for row in csv.DictReader(file)][skip : skip + count]
    return Workload(
        arrival_s=np.zeros(count),
        prompt_tokens=prompts,
        output_tokens=np.full(count, output_tokens),
        name="gsm8k",
        description=f"{count} GSM8K questions at once, {output_tokens} new tokens each",
    )


def sharegpt(
    folder: Path,
    count: int,
    arrivals: Arrivals,
    seed: int,
    *,
    prefixes: int = 0,
    prefix_tokens: int = 0,
    longest: int = 2048,
) -> Workload:
    """`count` ShareGPT first turns drawn with `seed`, optionally behind one of several shared prefixes."""
    with gzip.open(folder / "sharegpt.csv.gz", "rt") as file:
        rows = [(int(row[1]), int(row[2])) for row in csv.reader(file) if row[1].isdigit()]
    usable = np.array([row for row in rows if 4 <= row[0] <= 1024 and row[1] >= 4 and sum(row) <= longest])
    rng = np.random.default_rng(seed)
    prompt, output = usable[rng.choice(len(usable), count, replace=False)].T
    shared = f" behind {prefixes} shared prefixes of {prefix_tokens} tokens" if prefixes else ""
    return Workload(
        arrival_s=arrivals.sample(count, rng),
        prompt_tokens=prompt + (prefix_tokens if prefixes else 0),
        output_tokens=output,
        prefix_group=rng.integers(prefixes, size=count) if prefixes else None,
        prefix_tokens=np.full(count, prefix_tokens) if prefixes else None,
        prefix_names=[f"prefix {number}" for number in range(prefixes)],
        name="sharegpt",
        description=f"{count} ShareGPT requests{shared}, {arrivals}, seed {seed}",
    )


def long_prompts(count: int, arrivals: Arrivals, seed: int) -> Workload:
    """Prompts of 500 to 7,000 tokens with short answers: what prefill costs."""
    rng = np.random.default_rng(seed)
    return Workload(
        arrival_s=arrivals.sample(count, rng),
        prompt_tokens=rng.integers(500, 7000, count),
        output_tokens=rng.integers(16, 160, count),
        name="long-prompts",
        description=f"{count} prompts of 500 to 7,000 tokens with answers of 16 to 160, {arrivals}, seed {seed}",
    )


Run = tuple[str, Workload, int | None]
"""A trace's name, its requests, and how many run at a time (None: open loop)."""


def vllm_runs(group: str, data: Path) -> tuple[str, dict[str, object], list[Run]]:
    """The model, the engine's arguments and the traces of one engine start."""
    poisson = lambda rate: Poisson(rate_per_s=rate)  # noqa: E731
    pressure = {"num_gpu_blocks_override": PRESSURE_BLOCKS, "gpu_memory_utilization": 0.5}
    llama = {"max_model_len": 8192}
    return {
        "granite": (
            "granite-4.0-350m",
            {"max_model_len": 4096, "gpu_memory_utilization": 0.3},
            [
                ("vllm-h200-granite-350m-gsm8k", gsm8k(data, 500), None),
                ("vllm-h200-granite-350m-sharegpt-60", sharegpt(data, 600, poisson(60), 61), None),
                ("vllm-h200-granite-350m-closed-32", sharegpt(data, 200, AllAtOnce(), 62), 32),
            ],
        ),
        "large": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.9},
            [
                ("vllm-h200-llama-3-8b-sharegpt-20", sharegpt(data, 400, poisson(20), 11), None),
                ("vllm-h200-llama-3-8b-sharegpt-5", sharegpt(data, 80, poisson(5), 12), None),
                ("vllm-h200-llama-3-8b-sharegpt-closed-128", sharegpt(data, 400, AllAtOnce(), 13), 128),
                ("vllm-h200-llama-3-8b-long-prompts", long_prompts(120, poisson(6), 14), None),
                ("vllm-h200-llama-3-8b-sharegpt-at-once", sharegpt(data, 500, AllAtOnce(), 15), None),
            ],
        ),
        "pressure": (
            "Meta-Llama-3-8B",
            {**llama, **pressure},
            [
                ("vllm-h200-llama-3-8b-pressure", sharegpt(data, 400, poisson(40), 21), None),
                (
                    "vllm-h200-llama-3-8b-pressure-prefixes",
                    sharegpt(data, 400, poisson(30), 22, prefixes=8, prefix_tokens=512),
                    None,
                ),
            ],
        ),
        "eager": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.5, "enforce_eager": True},
            [("vllm-h200-llama-3-8b-eager", sharegpt(data, 200, poisson(10), 31), None)],
        ),
        "block32": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 1200, "block_size": 32,
             "max_num_batched_tokens": 2048},
            [("vllm-h200-llama-3-8b-block32-chunk2048", sharegpt(data, 400, poisson(40), 41), None)],
        ),
        "sync": (
            "Meta-Llama-3-8B",
            {**llama, **pressure, "async_scheduling": False},
            [("vllm-h200-llama-3-8b-sync", sharegpt(data, 300, poisson(30), 51), None)],
        ),
        "heldout-pressure": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 1200, "watermark": 0.05},
            [
                ("vllm-h200-llama-3-8b-heldout-bursty", sharegpt(data, 300, Gamma(rate_per_s=25, cv=2), 91), None),
                (
                    "vllm-h200-llama-3-8b-heldout-prefixes",
                    sharegpt(data, 300, poisson(25), 92, prefixes=4, prefix_tokens=256),
                    None,
                ),
            ],
        ),
        "heldout-large": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.9, "max_num_batched_tokens": 8192},
            [
                ("vllm-h200-llama-3-8b-heldout-35", sharegpt(data, 400, poisson(35), 93), None),
                ("vllm-h200-llama-3-8b-heldout-long", long_prompts(80, poisson(4), 94), None),
                ("vllm-h200-llama-3-8b-heldout-closed-64", sharegpt(data, 250, AllAtOnce(), 95), 64),
            ],
        ),
        "heldout-granite": (
            "granite-4.0-350m",
            {"max_model_len": 4096, "gpu_memory_utilization": 0.3},
            [
                ("vllm-h200-granite-350m-heldout-35", sharegpt(data, 300, poisson(35), 191), None),
                ("vllm-h200-granite-350m-heldout-closed-96", sharegpt(data, 250, AllAtOnce(), 192), 96),
            ],
        ),
        "heldout-llama2": (
            "Llama-2-7b-hf",
            {"max_model_len": 4096, "gpu_memory_utilization": 0.5},
            [
                ("vllm-h200-llama-2-7b-heldout-12", sharegpt(data, 150, poisson(12), 193), None),
                ("vllm-h200-llama-2-7b-heldout-closed-32", sharegpt(data, 120, AllAtOnce(), 194), 32),
            ],
        ),
        "bursty-again": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.5, "num_gpu_blocks_override": 1200, "watermark": 0.05},
            [
                (f"vllm-h200-llama-3-8b-bursty-again-{turn}", sharegpt(data, 300, Gamma(rate_per_s=25, cv=2), 91), None)
                for turn in (1, 2, 3)
            ],
        ),
        "other-large": (
            "Meta-Llama-3-8B",
            {**llama, "gpu_memory_utilization": 0.9},
            [
                ("vllm-h200-llama-3-8b-other-25", sharegpt(data, 300, poisson(25), 301), None),
                ("vllm-h200-llama-3-8b-other-closed-96", sharegpt(data, 250, AllAtOnce(), 302), 96),
            ],
        ),
        "other-pressure": (
            "Meta-Llama-3-8B",
            {**llama, **pressure},
            [
                ("vllm-h200-llama-3-8b-other-pressure", sharegpt(data, 300, poisson(38), 303), None),
                (
                    "vllm-h200-llama-3-8b-other-prefixes",
                    sharegpt(data, 300, poisson(28), 304, prefixes=6, prefix_tokens=384),
                    None,
                ),
            ],
        ),
        "other-granite": (
            "granite-4.0-350m",
            {"max_model_len": 4096, "gpu_memory_utilization": 0.3},
            [
                ("vllm-h200-granite-350m-other-gsm8k", gsm8k(data, 500, skip=500), None),
                ("vllm-h200-granite-350m-other-closed-64", sharegpt(data, 200, AllAtOnce(), 306), 64),
            ],
        ),
        "llama2": (
            "Llama-2-7b-hf",
            {"max_model_len": 4096, "gpu_memory_utilization": 0.5},
            [
                ("vllm-h200-llama-2-7b-sharegpt-20", sharegpt(data, 300, poisson(20), 71), None),
                ("vllm-h200-llama-2-7b-closed-64", sharegpt(data, 200, AllAtOnce(), 72), 64),
            ],
        ),
        **measured_machines(data),
    }[group]  # fmt: skip


def measured_machines(data: Path) -> dict[str, tuple[str, dict[str, object], list[Run]]]:
    """Engine starts on an H100, an H200 and two H200s whose machine cards ship: an open loop, closed loops, long
    prompts, and on the H100 pressure and prefixes.
    """
    poisson = lambda rate: Poisson(rate_per_s=rate)  # noqa: E731
    runs: dict[str, tuple[Workload, int | None]] = {
        "light": (sharegpt(data, 100, poisson(12), 401, longest=768), None),
        "closed": (sharegpt(data, 160, AllAtOnce(), 402, longest=768), 48),
        "closed128": (sharegpt(data, 300, AllAtOnce(), 406, longest=768), 128),
        "long": (long_prompts(40, poisson(5), 403), None),
        "pressure": (sharegpt(data, 250, poisson(38), 404), None),
        "prefixes": (
            sharegpt(data, 200, poisson(30), 405, prefixes=6, prefix_tokens=384, longest=1024),
            None,
        ),
    }

    def named(prefix: str, *names: str) -> list[Run]:
        return [(f"{prefix}-{name}", *runs[name]) for name in names]

    usual: dict[str, object] = {"max_model_len": 8192, "gpu_memory_utilization": 0.85}
    llama, qwen = "Meta-Llama-3-8B", "Qwen3-8B"
    blocks = {"num_gpu_blocks_override": PRESSURE_BLOCKS}
    cache, split = {"kv_cache_dtype": "fp8"}, {"tensor_parallel_size": 2}
    return {
        "h100-llama": (
            llama,
            usual | blocks,
            named("vllm-h100-llama-3-8b", "light", "closed", "pressure", "prefixes"),
        ),
        "h100-qwen3": (qwen, usual, named("vllm-h100-qwen3-8b", "light", "closed", "long")),
        "qwen3": (qwen, usual, named("vllm-h200-qwen3-8b", "light", "closed", "long")),
        "fp8-cache": (llama, usual | cache, named("vllm-h200-llama-3-8b-fp8", "light", "closed128")),
        "two-gpus": (llama, usual | split, named("vllm-2xh200-llama-3-8b", "light", "closed128", "long")),
    }


def record_vllm(group: str, data: Path, output: Path) -> None:
    """One engine start and all its traces."""
    from kvsim.capture.drive import DrivenEngine

    model, engine_args, runs = vllm_runs(group, data)
    with (
        tempfile.TemporaryDirectory() as scratch,
        DrivenEngine(folder_of(model, Path(scratch)), **engine_args) as engine,
    ):
        if group == "large":
            measure_overhead(engine, sharegpt(data, 256, AllAtOnce(), 99))
        for name, workload, concurrency in runs:
            command = f"python traces/record.py {group}"
            recording = engine.record(workload, output / name, users=concurrency, command=command)
            report(name, recording.duration_s, int(recording.requests.output_tokens.sum()), recording.num_preemptions)


def folder_of(model: str, scratch: Path) -> str:
    """`model` itself, which is built as a Llama of its shape, but for Qwen3, whose layers norm queries and keys."""
    if model != "Qwen3-8B":
        return model
    from kvsim.capture.random_weights import model_folder

    folder = model_folder(model, scratch)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def measure_overhead(engine: object, workload: Workload) -> None:
    """The same requests with and without a recording, in turn."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(6):
        recorded = turn % 2 == 1
        if recorded:
            with tempfile.TemporaryDirectory() as scratch:
                seconds[True].append(engine.record(workload, Path(scratch) / "run").duration_s)  # type: ignore[attr-defined]
        else:
            begin = time.monotonic()
            engine.serve(workload)  # type: ignore[attr-defined]
            seconds[False].append(time.monotonic() - begin)
    print(
        "overhead of recording: without",
        [round(s, 3) for s in seconds[False]],
        "with",
        [round(s, 3) for s in seconds[True]],
    )


HfRun = tuple[str, Workload, int, str, int]
"""A trace's name, its requests, rows of a batch, the kind of cache, and how many allocation events are kept."""


def hf_runs(group: str, data: Path) -> dict[str, list[HfRun]]:
    """The traces of one process of `generate()`, by model."""
    everyone = AllAtOnce()
    return {
        "hf": {
            "granite-4.0-350m": [
                ("hf-h200-granite-350m-one-by-one", gsm8k(data, 20), 1, "dynamic", 0),
                ("hf-h200-granite-350m-batch500", gsm8k(data, 500), 500, "dynamic", 0),
                ("hf-h200-granite-350m-batch64-history", gsm8k(data, 64), 64, "dynamic", 400_000),
                ("hf-h200-granite-350m-batch64-static", gsm8k(data, 192), 64, "static", 0),
                ("hf-h200-granite-350m-sharegpt-batch16", sharegpt(data, 64, everyone, 81), 16, "dynamic", 0),
            ],
            "Meta-Llama-3-8B": [
                ("hf-h200-llama-3-8b-sharegpt-batch16", sharegpt(data, 48, everyone, 82), 16, "dynamic", 0)
            ],
            "Llama-2-7b-hf": [
                ("hf-h200-llama-2-7b-sharegpt-batch16", sharegpt(data, 48, everyone, 83), 16, "dynamic", 0)
            ],
        },
        "hf-sixth-host": {
            "granite-4.0-350m": [
                ("hf-h200-granite-350m-sixth-host-batch32", gsm8k(data, 64, 96, skip=1600), 32, "dynamic", 0)
            ],
            "Meta-Llama-3-8B": [
                ("hf-h200-llama-3-8b-sixth-host-batch32", gsm8k(data, 32, 64, skip=1800), 32, "dynamic", 0)
            ],
        },
        "hf-heldout-granite": {
            "granite-4.0-350m": [
                ("hf-h200-granite-350m-heldout-batch32", gsm8k(data, 64, 96, skip=600), 32, "dynamic", 0),
                (
                    "hf-h200-granite-350m-heldout-sharegpt-batch8",
                    sharegpt(data, 16, everyone, 181, longest=512),
                    8,
                    "dynamic",
                    0,
                ),
                ("hf-h200-granite-350m-heldout-batch32-static", gsm8k(data, 96, 80, skip=700), 32, "static", 0),
            ]
        },
        "hf-heldout-llama-3": {
            "Meta-Llama-3-8B": [
                ("hf-h200-llama-3-8b-heldout-batch32", gsm8k(data, 32, 64, skip=800), 32, "dynamic", 0),
                (
                    "hf-h200-llama-3-8b-heldout-sharegpt-batch8",
                    sharegpt(data, 16, everyone, 182, longest=400),
                    8,
                    "dynamic",
                    0,
                ),
            ]
        },
        "hf-heldout-llama-2": {
            "Llama-2-7b-hf": [
                ("hf-h200-llama-2-7b-heldout-batch32", gsm8k(data, 32, 64, skip=900), 32, "dynamic", 0),
                (
                    "hf-h200-llama-2-7b-heldout-sharegpt-batch8",
                    sharegpt(data, 16, everyone, 183, longest=400),
                    8,
                    "dynamic",
                    0,
                ),
            ]
        },
    }[group]


FIRST_PREFILLS = ((24, 256), (24, 384), (12, 384), (48, 512), (48, 500))
"""Rows and width of the batches that `record_first_prefills` generates three times each."""


def record_first_prefills(model: object, name: str, output: Path, command: str) -> list[dict[str, object]]:
    """What a prefill costs that comes first: in its process, of its shape, and with no memory left from the last.

    Every batch is generated three times, the third time after all cached memory has gone back to the driver. Returns
    the batches.
    """
    from kvsim.capture.hf import GenerateRecorder, generate_workload
    from kvsim.recording import write

    recorder = GenerateRecorder(model, command=command)
    with recorder:
        for rows, width in FIRST_PREFILLS:
            prompts = np.where(np.arange(rows) % 2, width, width // 2)
            workload = Workload(arrival_s=np.zeros(rows), prompt_tokens=prompts, output_tokens=np.full(rows, 4))
            for turn in range(3):
                if turn == 2:
                    recorder.give_back()
                generate_workload(model, workload, batch_size=rows, recorder=recorder)
    recording = recorder.recording(name)
    write(recording, output / name)
    prefill = recording.steps.prefill_tokens > 0
    seconds = (recording.steps.end_s - recording.steps.start_s)[prefill].reshape(-1, 3)
    for (rows, width), turns in zip(FIRST_PREFILLS, seconds.tolist(), strict=True):
        print(f"prefill of {rows} x {width}: first, again, memory given back:", [round(s, 4) for s in turns], "s")
    return recorder.batches


def record_hf(group: str, data: Path, output: Path, device: str) -> None:
    """The Hugging Face traces of one process."""
    import torch

    from kvsim.capture.hf import GenerateRecorder, generate_workload, load_model
    from kvsim.capture.random_weights import model_folder
    from kvsim.recording import write, write_allocator

    command = f"python traces/record.py {group}"
    for model_name, runs in hf_runs(group, data).items():
        with tempfile.TemporaryDirectory() as scratch:
            begin = time.monotonic()
            model = load_model(model_folder(model_name, Path(scratch)), device=device)
            print(f"{model_name} loaded in {time.monotonic() - begin:.1f} s", flush=True)
            if group == "hf":
                with GenerateRecorder(model) as warm_up:  # a process's first batch is seconds slower
                    generate_workload(model, gsm8k(data, 8, 16), batch_size=8, recorder=warm_up)
                earlier = warm_up.batches
            else:
                first = f"{runs[0][0].partition('-heldout')[0]}-first-prefills"
                earlier = record_first_prefills(model, first, output, command)
            for name, workload, batch_size, cache, history in runs:
                torch.cuda.empty_cache()
                recorder = GenerateRecorder(model, allocation_history=history, earlier_batches=earlier, command=command)
                with recorder:
                    generate_workload(model, workload, batch_size=batch_size, cache=cache, recorder=recorder)
                earlier = earlier + recorder.batches
                recording = recorder.recording(name)
                write(recording, output / name)
                if recorder.allocator is not None:
                    write_allocator(recorder.allocator, output / name)
                report(name, recording.duration_s, int(recording.requests.output_tokens.sum()), 0)
            del model
            torch.cuda.empty_cache()


def report(name: str, duration_s: float, output_tokens: int, preemptions: int) -> None:
    """A line about a finished trace."""
    rate = output_tokens / duration_s
    print(
        f"{name}: {duration_s:.2f} s, {output_tokens} tokens, {rate:,.1f} tok/s, {preemptions} preemptions", flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups",
        nargs="+",
        help="granite large pressure eager block32 sync llama2 heldout-pressure heldout-large heldout-granite "
        "heldout-llama2 bursty-again other-large other-pressure other-granite h100-llama h100-qwen3 "
        "qwen3 fp8-cache two-gpus hf hf-sixth-host hf-heldout-granite "
        "hf-heldout-llama-3 hf-heldout-llama-2; what is first in a process is measured in those that begin with hf-, "
        "so give each a process of its own",
    )
    parser.add_argument("--lengths", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda", help="of the groups hf and hf-...: cuda, or cpu to try them")
    arguments = parser.parse_args()
    for chosen in arguments.groups:
        if chosen.partition("-")[0] == "hf":
            record_hf(chosen, arguments.lengths, arguments.output, arguments.device)
        else:
            record_vllm(chosen, arguments.lengths, arguments.output)
