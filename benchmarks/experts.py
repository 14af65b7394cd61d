"""Mixtures of experts on one GPU, predicted before they are recorded: benchmarks/experts.py

predict            the figures of every load by the card that ships, as JSON
record FOLDER -o DIR   serve the loads in vLLM with a model folder that needs no weights, on a machine with a GPU

Weights are random: which experts a token reaches is, too. Every kernel of experts is compiled before it is recorded,
by prompts of all sizes that have kernels of their own, because a server that has been up for a minute has them all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from kvsim.hardware import find_gpu
from kvsim.machines import card_of, from_card, in_batches_of
from kvsim.metrics import summarize
from kvsim.models import Model, find_model
from kvsim.models.huggingface import from_fields
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Poisson, Uniform, Workload, generate

GPU = "H200"
ENGINE = {"max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.85}
KV_BYTES = 40 << 30
"""Plenty: no load is short of memory."""
CHAT = {"prompt": LogNormal(330, 0.9), "output": LogNormal(190, 0.7)}
LOADS: dict[str, tuple[Workload, int | None]] = {
    "light": (generate(40, arrivals=Poisson(rate_per_s=4), seed=600, **CHAT), None),
    "middle": (generate(200, arrivals=Poisson(rate_per_s=16), seed=601, **CHAT), None),
    "closed128": (generate(300, seed=602, **CHAT), 128),
    "long": (
        generate(24, arrivals=Poisson(rate_per_s=3), prompt=Uniform(1000, 6000), output=Uniform(40, 120), seed=603),
        None,
    ),
}
"""Requests, and how many are served at a time; None for an open loop."""
MIXTRAL_16 = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
"""Mixtral-8x7B with half of its layers, whose weights fit on one GPU."""
WARM_UP_TOKENS = (*(2**power for power in range(13)), 600, 768, 1280, 1536, 2500, 3000, 3500, 6000, 8000)


def models() -> dict[str, Model]:
    """The shapes that are recorded; the dense one tells the host of the machine."""
    return {
        "qwen3-30b-a3b": find_model("Qwen3-30B-A3B"),
        "mixtral-8x7b-16-layers": from_fields(MIXTRAL_16, name="mixtral-8x7b-16-layers", where="this file"),
        "gpt-oss-20b": find_model("gpt-oss-20b"),
        "deepseek-v2-lite": find_model("DeepSeek-V2-Lite"),
        "llama-3-8b-control": find_model("Meta-Llama-3-8B"),
    }


def predict(machine: Machine) -> dict[str, dict[str, float]]:
    """Simulate every load."""
    limits = {name: ENGINE[name] for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")}
    policy = Paged(scheduler=ContinuousSettings(**limits))
    told = {}
    for name, (workload, users) in LOADS.items():
        found = summarize(simulate(workload, policy, machine, users=users, stamp_at_entry=True))
        told[name] = {
            "throughput": round(found.output_tokens_per_s, 4),
            "ttft_ms": round(1e3 * found.ttft_s.mean, 4),
            "tpot_ms": round(1e3 * found.tpot_s.mean, 4),
            "e2e_s": round(found.e2e_s.mean, 4),
            "preemptions": found.num_preemptions,
        }
    return told


def by_card(model: Model) -> Machine:
    """Return one GPU with the card that ships."""
    gpu = find_gpu(GPU)
    times = from_card(card_of(gpu, 1), gpu, model, "vllm", in_process=True)
    return Machine(gpu=gpu, model=model, kv_bytes=KV_BYTES, step_time=in_batches_of(ENGINE["max_num_seqs"], times))


def record(folder: Path, output: Path, gpus: str = "h200", **engine_args: int) -> None:
    """One engine start and all its recordings."""
    from kvsim.capture.drive import DrivenEngine  # noqa: PLC0415  asks for vLLM

    name = folder.name
    count = len(WARM_UP_TOKENS)
    alone = Workload(arrival_s=np.zeros(count), prompt_tokens=WARM_UP_TOKENS, output_tokens=np.full(count, 2))
    with DrivenEngine(str(folder), **ENGINE, **engine_args) as engine:
        engine.serve(alone, users=1, seed=7)
        for load, (workload, users) in LOADS.items():
            if load != "light":
                engine.serve(workload, users=users, seed=8)
            run = output / f"vllm-{gpus}-{name}-{load}"
            found = engine.record(workload, run, users=users, command=f"python {' '.join(sys.argv[:2])}")
            print(name, load, found.duration_s, summarize(found).tpot_s.mean, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "record"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "predict":
        told = {name: predict(by_card(model)) for name, model in models().items()}
        json.dump(
            {f"{GPU} {name} {load}": figures for name, loads in told.items() for load, figures in loads.items()},
            sys.stdout,
            indent=1,
        )
    else:
        record(arguments.folder, arguments.output)


if __name__ == "__main__":
    main()
