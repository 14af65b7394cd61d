"""Models with gated delta nets on one H100, predicted before they are recorded: benchmarks/hybrids.py

predict            the figures of every load by the card that ships, as JSON
record NAME -o DIR serve the loads of `experts.py` in vLLM with random weights, then list the kernels of some steps

Prompts go through vLLM's Triton kernels (`gdn_prefill_backend`). Its default on Hopper is a kernel of FlashInfer.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.hardware import find_gpu
from kvsim.machines import card_of, from_card, in_batches_of
from kvsim.metrics import summarize
from kvsim.models import Model
from kvsim.models.huggingface import from_fields
from kvsim.simulation import Machine
from kvsim.workload import Workload

sys.path.insert(0, str(Path(__file__).parent))
from experts import ENGINE, KV_BYTES, LOADS, WARM_UP_TOKENS, predict

GPU = "H100 SXM"
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
"""Qwen3-Next-80B-A3B with a quarter of its layers, which fit on one GPU."""
MODELS = {"qwen3-next-12-layers": QWEN3_NEXT}
PROFILED = ((1, 128), (1, 2048), (16, 128), (64, 128), (128, 128), (64, 1024))
"""Numbers of sequences and of prompt tokens, of which the first steps are profiled."""


def shape(name: str) -> Model:
    return from_fields(MODELS[name], name=name, where="this file")


def by_card(model: Model) -> Machine:
    """Return one GPU with the card that ships."""
    gpu = find_gpu(GPU)
    times = from_card(card_of(gpu, 1), gpu, model, "vllm", in_process=True)
    return Machine(gpu=gpu, model=model, kv_bytes=KV_BYTES, step_time=in_batches_of(ENGINE["max_num_seqs"], times))


def record(name: str, output: Path) -> None:
    """One engine start and all its recordings."""
    from kvsim.capture.drive import DrivenEngine  # noqa: PLC0415  asks for vLLM

    folder = output / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name]), encoding="utf-8")
    count = len(WARM_UP_TOKENS)
    alone = Workload(arrival_s=np.zeros(count), prompt_tokens=WARM_UP_TOKENS, output_tokens=np.full(count, 2))
    more = {"additional_config": {"gdn_prefill_backend": "triton"}, "enable_prefix_caching": False}
    with DrivenEngine(str(folder), **ENGINE, **more) as engine:
        engine.serve(alone, users=1, seed=7)
        for load, (workload, users) in LOADS.items():
            engine.serve(workload, users=users, seed=8)
            run = output / f"vllm-h100-{name}-{load}"
            found = engine.record(workload, run, users=users, command=f"python {' '.join(sys.argv[:2])}")
            print(name, load, found.duration_s, summarize(found).tpot_s.mean, flush=True)
        kernels = {f"{seqs} x {tokens}": profiled(engine, seqs, tokens) for seqs, tokens in PROFILED}
    (output / "kernels.json").write_text(json.dumps(kernels, indent=1), encoding="utf-8")


def profiled(engine: Any, num_seqs: int, prompt_tokens: int) -> dict[str, Any]:
    """Serve equal prompts at once; return calls and microseconds of every kernel, of all steps together.

    Each prompt has an answer of nine tokens, so that eight steps are decodes.
    """
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415  needs a GPU

    full = np.full(num_seqs, prompt_tokens)
    workload = Workload(arrival_s=np.zeros(num_seqs), prompt_tokens=full, output_tokens=np.full(num_seqs, 9))
    engine.serve(workload, users=num_seqs, seed=9)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        engine.serve(workload, users=num_seqs, seed=10)
    rows = [row for row in found.key_averages() if row.self_device_time_total > 0]
    return {row.key[:160]: [row.count, round(row.self_device_time_total, 1)] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "record"))
    parser.add_argument("name", nargs="?", choices=MODELS)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "record":
        record(arguments.name, arguments.output)
        return
    told = {
        f"{GPU} {name} {load}": figures for name in MODELS for load, figures in predict(by_card(shape(name))).items()
    }
    json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
