"""Time of drafting and of adapters in vLLM, on a machine with a GPU: benchmarks/drafts.py ACTION ...

predict SERVER ...         the median time of a decode step of each load, by the card that ships of `--gpu`
record SERVER ... -o DIR   start each server with random weights, and record its loads
compare -o DIR             the median time of a decode step of every recording, beside the prediction

Every load decodes a fixed number of sequences, so that the time of a step is read off at one size. It is the time
between the outputs of two steps. Drafts of random weights are nearly always wrong, and n-grams nearly always right,
because greedy outputs repeat. `--model`, `--drafts`, `--rank` and `--sizes` change the model, the number of drafts, the
rank of adapters and the loads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.calibration.observed import observe
from kvsim.capture.random_weights import write_config
from kvsim.experiments.recorded_run import policy_of
from kvsim.hardware import Gpu, find_gpu
from kvsim.importers import workload_of
from kvsim.machines import card_of, from_card, served_model
from kvsim.models import Model, find_model
from kvsim.policies import Paged, Policy
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import Recording, read
from kvsim.simulation import Machine, simulate
from kvsim.workload import Workload

ENGINE = {"max_model_len": 8192, "max_num_seqs": 128, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.85}
HEAD = {"num_hidden_layers": 1, "draft_vocab_size": None}
EAGLE3_HEAD = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
"""Fields of the configuration of a head: one layer, and the output projection of all or of the most frequent tokens."""
DRAFT_MODEL = "Llama-3.2-1B"
SERVERS = ("plain", "synchronous", "waiting", "eagle3", "eagle", "draft_model", "ngram", "ngram_gpu", "adapters")
"""Servers by name.

`synchronous` and `waiting` schedule a step after the output of the last one. `waiting` has the model runner of n-grams.
"""
SLOTS = 4
OUTPUT_TOKENS = 120
SIZES = "1x200,16x200,64x200,128x200,16x4000"
"""Numbers of sequences, and prompt tokens of each."""
WARM_STEPS = 6
"""Number of decode steps of each size that are left out, because kernels are loaded and compiled in them."""
KV_BYTES = 40 << 30
"""KV memory of a prediction. No load needs more, and step times do not depend on it."""


def sizes_of(text: str) -> list[tuple[int, int]]:
    """Return the numbers of sequences and of prompt tokens that `text` lists, such as "16x200,16x4000"."""
    pairs = (item.split("x") for item in text.split(","))
    return [(int(num_seqs), int(prompt_tokens)) for num_seqs, prompt_tokens in pairs]


def loads_of(server: str, arguments: argparse.Namespace) -> list[tuple[str, Workload]]:
    """Return the loads of a server, with a name for the recording of each."""
    drafts = arguments.drafts if server not in ("plain", "synchronous", "waiting", "adapters") else 0
    return [
        (
            f"vllm-{arguments.model}-{server}-k{drafts}-{adapters}-{num_seqs}x{prompt_tokens}",
            batch(num_seqs, prompt_tokens, adapters),
        )
        for adapters in ((0, 1, SLOTS) if server == "adapters" else (0,))
        for num_seqs, prompt_tokens in sizes_of(arguments.sizes)
        if adapters <= num_seqs
    ]


def batch(num_seqs: int, prompt_tokens: int, adapters: int) -> Workload:
    """Return `num_seqs` equal requests that arrive at once; each names one of `adapters` adapters in turn, if any."""
    numbers = np.arange(num_seqs) % adapters + 1 if adapters else np.zeros(num_seqs, int)
    return Workload(
        arrival_s=np.zeros(num_seqs),
        prompt_tokens=np.full(num_seqs, prompt_tokens),
        output_tokens=np.full(num_seqs, OUTPUT_TOKENS),
        adapter=numbers,
    )


def settings_of(server: str, arguments: argparse.Namespace, drafter: str) -> dict[str, Any]:
    """Return vLLM's settings of a server; `drafter` is the model that drafts, or its folder."""
    if server == "plain":
        return {}
    if server in ("synchronous", "waiting"):
        return {"async_scheduling": False}
    if server == "adapters":
        return {"enable_lora": True, "max_loras": SLOTS, "max_lora_rank": arguments.rank}
    config: dict[str, Any] = {"method": server, "num_speculative_tokens": arguments.drafts}
    if server.startswith("ngram"):
        return {"speculative_config": config | {"prompt_lookup_max": 4}, "async_scheduling": server == "ngram_gpu"}
    return {"speculative_config": config | {"model": drafter}}


def write_drafter(server: str, arguments: argparse.Namespace) -> str:
    """Write the configuration of the server's drafter into the folder of the output, and return its folder."""
    name = DRAFT_MODEL if server == "draft_model" else arguments.model
    folder = write_config(find_model(name), arguments.output / "drafters" / server / name)
    if server != "draft_model":
        file = folder / "config.json"
        head = EAGLE3_HEAD if server == "eagle3" else HEAD
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | head), encoding="utf-8")
    return str(folder)


def record(server: str, arguments: argparse.Namespace) -> None:
    """Start one engine and record all its loads."""
    from kvsim.capture.drive import DrivenEngine  # noqa: PLC0415  asks for vLLM

    if server == "waiting":
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    drafts = server in ("eagle", "eagle3", "draft_model")
    settings = settings_of(server, arguments, write_drafter(server, arguments) if drafts else "")
    with DrivenEngine(arguments.model, **ENGINE, **settings) as engine:
        for name, load in loads_of(server, arguments):
            engine.serve(load, seed=8)
            found = engine.record(load, arguments.output / name, command=f"python {' '.join(sys.argv)}")
            print(name, round(found.duration_s, 4), flush=True)


def decode_step_s(recording: Recording) -> float:
    """Return the median time between the outputs of two steps that decode all sequences, in seconds."""
    seen = observe(recording)
    num_seqs, num_tokens = np.asarray(seen.shape.num_seqs), np.asarray(seen.shape.num_tokens)
    is_full = num_seqs == len(recording.requests)
    usual = np.median(num_tokens[is_full][is_full.sum() // 4 :])  # n-grams begin with few drafts
    chosen = np.flatnonzero(is_full & (num_tokens == usual))[WARM_STEPS:]
    if not len(chosen):
        raise SystemExit(f"{recording.name} has too few steps that decode all its sequences; choose fewer or longer.")
    return float(np.median(np.diff(seen.end_s, prepend=np.nan)[chosen]))


def predicted_s(gpu: Gpu, model: Model, policy: Policy, kv_bytes: int, load: Workload) -> float:
    """Return `decode_step_s` of a simulation of `load` by the card of `gpu` that ships, in seconds."""
    assert isinstance(policy, Paged)
    drafting = policy.scheduler.drafting
    if drafting is not None:
        policy = replace(policy, scheduler=replace(policy.scheduler, acceptance="1" if drafting.looks_up else "0"))
    times = from_card(card_of(gpu, 1), gpu, model, "vllm", in_process=True)
    return decode_step_s(simulate(load, policy, Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=times)))


def predict(server: str, arguments: argparse.Namespace) -> None:
    """Print the predicted time of a decode step of each load of a server."""
    settings = ENGINE | settings_of(server, arguments, DRAFT_MODEL if server == "draft_model" else "a head")
    settings.pop("gpu_memory_utilization")
    config = settings.pop("speculative_config", None)
    scheduler = ContinuousSettings(**settings, speculative_config="" if config is None else json.dumps(config))
    gpu, model = find_gpu(arguments.gpu), find_model(arguments.model)
    for name, load in loads_of(server, arguments):
        step_s = predicted_s(gpu, model, Paged(scheduler=scheduler), KV_BYTES, load)
        print(f"{name} | {len(load)} | {1e3 * step_s:.2f}", flush=True)


def compare(folder: Path) -> None:
    """Print the measured and the predicted time of a decode step of every recording in `folder`."""
    print("recording | sequences | measured, ms | predicted, ms | error")
    for path in sorted(folder.glob("vllm-*")):
        recording = read(path)
        policy, kv_bytes = policy_of(recording)
        gpu, model = find_gpu(recording.meta.gpu), served_model(recording.meta)
        measured_s = decode_step_s(recording)
        step_s = predicted_s(gpu, model, policy, kv_bytes, workload_of(recording))
        times = f"{1e3 * measured_s:.2f} | {1e3 * step_s:.2f} | {100 * (step_s / measured_s - 1):+.1f} %"
        print(f"{path.name} | {len(recording.requests)} | {times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "record", "compare"))
    parser.add_argument("servers", nargs="*", metavar="server", help=", ".join(SERVERS))
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--model", default="Meta-Llama-3-8B")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--sizes", default=SIZES)
    arguments = parser.parse_args()
    if arguments.action != "predict" and arguments.output is None:
        parser.error(f"{arguments.action} needs -o DIR")
    if arguments.action == "compare":
        compare(arguments.output)
    elif arguments.action == "predict":
        for server in arguments.servers:
            predict(server, arguments)
    elif len(arguments.servers) == 1:
        record(arguments.servers[0], arguments)
    else:
        flags = [f"--{name}={getattr(arguments, name)}" for name in ("output", "model", "drafts", "rank", "sizes")]
        for server in arguments.servers:  # one process per engine: each frees the GPU's memory when it ends
            subprocess.run([sys.executable, __file__, "record", server, *flags], check=False)


if __name__ == "__main__":
    main()
