"""Models shared by two H100s, told before they are recorded: benchmarks/two_gpus.py

predict            the figures of every load by the card that ships and by kernel tables, as JSON
record NAME -o DIR   serve the loads in vLLM, with random weights, on a machine with two H100s

Loads, warm-up and engine are those of `experts.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from experts import ENGINE, LOADS, MIXTRAL_16, WARM_UP_TOKENS

from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.metrics import summarize
from kvsim.models import Model
from kvsim.models.huggingface import from_fields
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import Machine, simulate
from kvsim.workload import Workload

GPU, NUM_GPUS = "H100 SXM", 2
KV_BYTES = 20 << 30
"""Plenty: no load is short of memory."""
CODELLAMA_34B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "max_position_embeddings": 16384,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 48,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
SHAPES = {"codellama-34b": CODELLAMA_34B, "mixtral-8x7b-16-layers": MIXTRAL_16}


def predict(model: Model, source: str | None) -> dict[str, dict[str, float]]:
    """Simulate every load with the step times of `source`."""
    gpu = find_gpu(GPU)
    times = step_times(gpu, model, "vllm", source=source, max_num_seqs=ENGINE["max_num_seqs"], in_process=True)
    machine = Machine(gpu=gpu, model=model, kv_bytes=KV_BYTES, step_time=times)
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
        }
    return told


def record(name: str, output: Path) -> None:
    """One engine start and all its recordings."""
    from kvsim.capture.drive import DrivenEngine  # noqa: PLC0415  asks for vLLM

    count = len(WARM_UP_TOKENS)
    alone = Workload(arrival_s=np.zeros(count), prompt_tokens=WARM_UP_TOKENS, output_tokens=np.full(count, 2))
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "config.json").write_text(json.dumps(SHAPES[name]), encoding="utf-8")
        with DrivenEngine(scratch, tensor_parallel_size=NUM_GPUS, **ENGINE) as engine:
            engine.serve(alone, users=1, seed=7)
            for load, (workload, users) in LOADS.items():
                engine.serve(workload, users=users, seed=8)
                run = output / f"vllm-2xh100-{name}-{load}"
                found = engine.record(workload, run, users=users, command="python benchmarks/two_gpus.py record")
                print(name, load, found.duration_s, summarize(found).tpot_s.mean, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "record"))
    parser.add_argument("name", nargs="?", choices=SHAPES)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "record":
        record(arguments.name, arguments.output)
        return
    told: dict[str, dict[str, dict[str, float]]] = {}
    for name, fields in SHAPES.items():
        model = from_fields(fields, name=name, where="this file").served(tensor_parallel_size=NUM_GPUS)
        for words, source in (("card", None), ("kernels", "kernels")):
            loads = predict(model, source)
            told.setdefault(words, {}).update({f"2x{GPU} {name} {load}": figures for load, figures in loads.items()})
    json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
