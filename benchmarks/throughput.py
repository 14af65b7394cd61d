"""What the simulator gets through in a second of CPU time, by policy and workload.

    python benchmarks/throughput.py FOLDER [--policy paged] [--workload conv_5000] [--engine interpreted] [--record]

FOLDER holds workloads as `NAME.csv.gz` with the columns `arrived_at` (seconds), `num_prefill_tokens` and
`num_decode_tokens`. Every run is a process of its own, so that its peak of memory is its own; the CPU time is that of
the simulation alone, per-request times included, without imports, without reading the file, and without loading or
compiling machine code, for which the workload's first requests are simulated beforehand.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import (
    EVERY_POLICY,
    Contiguous,
    Paged,
    Policy,
    Radix,
    RadixSettings,
    SGLangSettings,
    Static,
)
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, Reserve, StaticSettings
from kvsim.profiles import find
from kvsim.recording import Recording
from kvsim.simulation import EngineName, Machine, measure, simulate
from kvsim.workload import Workload

MODEL = "Meta-Llama-3-8B"
BLOCK_SIZE = 16
NUM_BLOCKS = 30_208
"""The KV cache of Llama-3-8B on an A100 with 80 GB."""
MAX_MODEL_LEN = 8_192


def limits(workload: str) -> tuple[int, int]:
    """Sequences in a batch, and tokens in a step."""
    return (128, 4_096) if workload.startswith("conv") else (256, 2_048)


def policy_of(name: str, workload: str, *, sync: bool = False, caching: bool = False) -> Policy:
    max_num_seqs, max_num_batched_tokens = limits(workload)
    if name == Static.name:
        return Static(scheduler=StaticSettings(batch_size=max_num_seqs, max_model_len=MAX_MODEL_LEN))
    if name == Radix.name:
        return Radix(
            scheduler=SGLangSettings(
                max_running_requests=max_num_seqs,
                context_length=MAX_MODEL_LEN,
                chunked_prefill_size=max_num_batched_tokens,
                disable_overlap_schedule=sync,
            ),
            cache=RadixSettings(disable_radix_cache=not caching),
        )
    scheduler = ContinuousSettings(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        async_scheduling=not sync,
    )
    if name == Contiguous.name:
        return Contiguous(scheduler=scheduler, cache=ContiguousSettings(reserve=Reserve.LIMIT))
    return Paged(scheduler=scheduler, cache=PagedSettings(block_size=BLOCK_SIZE, enable_prefix_caching=caching))


def read(file: Path, repeat: int = 1) -> Workload:
    """The workload of a file, `repeat` times one after the other."""
    arrival_s, prompt, output = np.loadtxt(file, delimiter=",", skiprows=1, unpack=True)
    gap_s = arrival_s[-1] / max(len(arrival_s) - 1, 1)
    starts = np.repeat(np.arange(repeat) * (arrival_s[-1] + gap_s), len(arrival_s))
    return Workload(
        arrival_s=np.tile(arrival_s, repeat) + starts,
        prompt_tokens=np.tile(prompt.astype(int), repeat),
        output_tokens=np.tile(output.astype(int), repeat),
        name=file.name.partition(".")[0],
    )


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """One simulation, measured."""
    file = arguments.folder / f"{arguments.workload[0]}.csv.gz"
    workload = read(file, arguments.repeat)
    model = find_model(arguments.model[0])
    policy = policy_of(
        arguments.policy[0], arguments.workload[0], sync=arguments.sync, caching=arguments.prefix_caching
    )
    machine = Machine(
        gpu=find_gpu("H200"),
        model=model,
        kv_bytes=arguments.num_blocks * BLOCK_SIZE * model.kv_bytes_per_token,
        step_time=find("hf-dynamic-h200-llama-3-8b" if isinstance(policy, Static) else "vllm-h200-llama-3-8b"),
    )
    work = simulate if arguments.record else measure
    engine: EngineName = arguments.engine
    work(workload.head(10), policy, machine, engine=engine, refuse_misfits=True)
    gc.collect()
    begin = time.process_time()
    result = work(workload, policy, machine, engine=engine, refuse_misfits=True)
    cpu_s = time.process_time() - begin
    requests = result.requests
    return {
        "requests": len(requests) / cpu_s,
        "output tokens": int(requests.output_tokens.sum()) / cpu_s,
        "simulated seconds": result.duration_s / cpu_s,
        "steps": (len(result.steps) if isinstance(result, Recording) else result.num_steps) / cpu_s,
        "CPU s": cpu_s,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "preemptions": float(requests.preemptions.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--policy", action="append", choices=EVERY_POLICY)
    parser.add_argument("--workload", action="append")
    parser.add_argument(
        "--model", action="append", help=f"[{MODEL}] its memory is that of the blocks if all its layers were full"
    )
    parser.add_argument("--num-blocks", type=int, default=NUM_BLOCKS)
    parser.add_argument("--repeat", type=int, default=1, help="the workload so many times, one after the other")
    parser.add_argument("--record", action="store_true", help="make a recording, in memory")
    parser.add_argument("--engine", choices=["compiled", "interpreted", "auto"], default="compiled")
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--sync", action="store_true", help="synchronous scheduling")
    parser.add_argument("--runs", type=int, default=3, help="the median of so many")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run(arguments)))
        return
    names = sorted(file.name.partition(".")[0] for file in arguments.folder.glob("*.csv.gz"))
    flags = [flag for flag in sys.argv[2:] if flag in ("--record", "--prefix-caching", "--sync")]
    header = None
    models = arguments.model or [MODEL]
    for policy in arguments.policy or EVERY_POLICY:
        for workload in arguments.workload or names:
            command = [sys.executable, __file__, str(arguments.folder), "--policy", policy, "--workload", workload]
            command += ["--num-blocks", str(arguments.num_blocks), "--repeat", str(arguments.repeat), "--child", *flags]
            command += ["--engine", arguments.engine]
            # Models take turns, so that what else the machine does falls on all of them.
            runs = [
                (
                    model,
                    json.loads(subprocess.run([*command, "--model", model], check=True, stdout=subprocess.PIPE).stdout),
                )
                for _ in range(arguments.runs)
                for model in models
            ]
            if header is None:
                header = list(runs[0][1])
                print(f"{'policy':12}{'workload':18}" + "".join(f"{name:>19}" for name in header), flush=True)
            for model in models:
                medians = [statistics.median(each[name] for of, each in runs if of == model) for name in header]
                figures = "".join(f"{value:>19,.2f}" for value in medians)
                print(f"{policy:12}{workload:18}{figures}" + (f"  {model}" if len(models) > 1 else ""), flush=True)


if __name__ == "__main__":
    main()
