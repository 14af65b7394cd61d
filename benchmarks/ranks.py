"""Data-parallel ranks with experts in parallel on H100s, predicted before they are measured: benchmarks/ranks.py

predict       blocks, clients' times and steps without a batch of every load of each case, as JSON
measure CASE -o DIR  start one server of as many ranks with random weights, and send every load twice, as `served.py`
              does; the folder `engine` has a recording of each rank, its steps without a batch, and lists of the
              kernels of some steps, which were not measured
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kvsim
from kvsim.models import Model, find_model
from kvsim.models.huggingface import from_fields
from kvsim.simulation.front_end import http
from kvsim.workload import Poisson, Workload, generate

sys.path.insert(0, str(Path(__file__).parent))
from experts import MIXTRAL_16
from served import CHAT, ENGINE, Server, measure_server

VLLM = "0.25.1"
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


class Case(NamedTuple):
    fields: dict[str, Any]
    """The shape of the model."""
    num_ranks: int

    @property
    def server(self) -> Server:
        flags = (f"--data-parallel-size={self.num_ranks}", "--enable-expert-parallel")
        return Server(self.fields, 1, flags, LOADS, "watched_ranks.WatchedScheduler", is_profiled=True)

    @property
    def model(self) -> Model:
        if self.fields is QWEN3_30B_A3B:
            return find_model("Qwen3-30B-A3B")
        return from_fields(self.fields, name="mixtral-8x7b-16-layers", where="this file")


CASES = {
    "2xh100-qwen3-30b-a3b": Case(QWEN3_30B_A3B, 2),
    "4xh100-qwen3-30b-a3b": Case(QWEN3_30B_A3B, 4),
    "2xh100-mixtral-8x7b-16-layers": Case(MIXTRAL_16, 2),
}


def predict(case: Case, loads: Mapping[str, Workload] = LOADS, times: str | None = None) -> dict[str, Any]:
    """Simulate every load on the ranks; what a client sees is behind a front end that was not measured."""
    limits = {name: ENGINE[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")}
    more = {"times": times} if times else {}
    ranks = range(case.num_ranks)
    machine = kvsim.machine(
        f"{case.num_ranks}xH100", case.model, data_parallel_size=case.num_ranks, enable_expert_parallel=True,
        vllm=VLLM, **limits, **more,
    )  # fmt: skip
    policy = kvsim.Paged(scheduler=kvsim.ContinuousSettings(**ENGINE, vllm=VLLM))
    told: dict[str, Any] = {"blocks": machine.kv_bytes // (16 * machine.model.kv_bytes_per_token)}
    for name, workload in loads.items():
        fleet = kvsim.simulate(workload, policy, machine)
        total = fleet.summary()
        delay_s = http().delay_s(float(workload.prompt_tokens.mean()), total.output_tokens_per_s)
        steps = [fleet[rank].steps for rank in ranks]
        told[name] = figures([fleet[rank].requests for rank in ranks]) | {
            "steps": [len(each) for each in steps],
            "idle_steps": list(total.idle_steps),
            "step_ms": [round(1e3 * float((each.end_s - each.start_s).mean()), 4) for each in steps],
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
    parser.add_argument("case", nargs="?", choices=CASES)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--times", help="a machine card, or kernels")
    arguments = parser.parse_args()
    if arguments.action == "measure":
        arguments.output.mkdir(parents=True, exist_ok=True)
        measure_server("model", CASES[arguments.case].server, arguments.output)
    else:
        cases = {arguments.case: CASES[arguments.case]} if arguments.case else CASES
        told = {name: predict(case, times=arguments.times) for name, case in cases.items()}
        json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
