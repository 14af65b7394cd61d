"""Two data-parallel ranks with experts in parallel on two H100s, told before they are measured: benchmarks/ranks.py

predict       blocks, weights, clients' times and steps without a batch of every load, as JSON
measure -o DIR  start one server of two ranks with random weights, and send every load twice, as `served.py` does; the
              folder `engine` has a recording of each rank, and its steps without a batch
compare DIR   what was measured beside what is predicted for the prompts and times of that run
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import kvsim
from kvsim.simulation.front_end import http
from kvsim.workload import Poisson, Workload, generate

sys.path.insert(0, str(Path(__file__).parent))
from served import CHAT, ENGINE, Server, measure_server

VLLM = "0.25.1"
NAME = "qwen3-30b-a3b"
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
LOADS: dict[str, Workload] = {
    f"{rate}/s": generate(count, arrivals=Poisson(rate_per_s=rate), seed=900 + rate, **CHAT)
    for rate, count in ((1, 12), (4, 40), (30, 300))
}
SERVER = Server(
    QWEN3_30B_A3B,
    1,
    ("--data-parallel-size=2", "--enable-expert-parallel"),
    LOADS,
    "watched_ranks.WatchedScheduler",
)


def predict(loads: Mapping[str, Workload] = LOADS, times: str | None = None) -> dict[str, Any]:
    """Simulate every load on two ranks; what a client sees is behind a front end that was not measured."""
    limits = {name: ENGINE[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")}
    more = {"times": times} if times else {}
    machine = kvsim.machine(
        "2xH100/Qwen3-30B-A3B", data_parallel_size=2, enable_expert_parallel=True, vllm=VLLM, **limits, **more
    )
    policy = kvsim.Paged(scheduler=kvsim.ContinuousSettings(**ENGINE, vllm=VLLM))
    told: dict[str, Any] = {"blocks": machine.kv_bytes // (16 * machine.model.kv_bytes_per_token)}
    for name, workload in loads.items():
        fleet = kvsim.simulate(workload, policy, machine)
        total = fleet.summary()
        delay_s = http().delay_s(float(workload.prompt_tokens.mean()), total.output_tokens_per_s)
        told[name] = figures([fleet[rank].requests for rank in range(2)]) | {
            "steps": [len(fleet[rank].steps) for rank in range(2)],
            "idle_steps": list(total.idle_steps),
            "step_ms": [
                round(1e3 * float((run.steps.end_s - run.steps.start_s).mean()), 4) for run in (fleet[0], fleet[1])
            ],
            "front_end_ms": round(1e3 * delay_s, 3),
        }
    return told


def figures(ranks: list[Any]) -> dict[str, Any]:
    """Summarize the requests of all ranks, as the engine sees them."""
    ttft_s, tpot_s, e2e_s = (
        np.concatenate([getattr(each, name) for each in ranks]) for name in ("ttft_s", "tpot_s", "e2e_s")
    )
    return {
        "requests": [len(each) for each in ranks],
        "ttft_ms": round(1e3 * float(np.nanmean(ttft_s)), 3),
        "ttft_p50_ms": round(1e3 * float(np.nanmedian(ttft_s)), 3),
        "tpot_ms": round(1e3 * float(np.nanmean(tpot_s)), 4),
        "e2e_s": round(float(np.nanmean(e2e_s)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "measure"))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--times")
    arguments = parser.parse_args()
    if arguments.action == "measure":
        arguments.output.mkdir(parents=True, exist_ok=True)
        measure_server(NAME, SERVER, arguments.output)
    else:
        json.dump(predict(times=arguments.times), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
