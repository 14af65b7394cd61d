"""Time of drafting and of adapters in vLLM, on a machine with an H100: benchmarks/drafts.py ACTION ... -o DIR

record SERVER ...   start each server with random weights, and record its loads
compare             the median time of a decode step of every recording, beside the prediction of the card that ships

Every load decodes a fixed number of sequences, so that the time of a step is read off at one size. Drafts of random
weights are nearly always wrong; each step checks them all the same. `--model`, `--drafts` and `--rank` change the
model, the number of drafts and the rank of adapters.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.calibration.observed import observe
from kvsim.calibration.predict import step_durations
from kvsim.capture.random_weights import write_config
from kvsim.experiments.recorded_run import policy_of
from kvsim.hardware import find_gpu
from kvsim.importers import workload_of
from kvsim.machines import card_of, from_card, served_model
from kvsim.models import find_model
from kvsim.recording import read
from kvsim.simulation import Machine
from kvsim.simulation.feature_times import feature_times
from kvsim.steptime import StepShape
from kvsim.workload import Workload

ENGINE = {"max_model_len": 8192, "max_num_seqs": 128, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.85}
HEAD = {"num_hidden_layers": 1, "draft_vocab_size": None}
EAGLE3_HEAD = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
"""Fields of the configuration of a head: one layer, and the output projection of all or of the most frequent tokens."""
DRAFT_MODEL = "Llama-3.2-1B"
SERVERS = ("plain", "eagle3", "eagle", "draft_model", "ngram", "ngram_gpu", "adapters")
SLOTS = 4
OUTPUT_TOKENS = 120
SIZES = ((1, 200), (16, 200), (64, 200), (128, 200), (16, 4000))
"""Numbers of sequences, and prompt tokens of each."""
WARM_STEPS = 6
"""Number of decode steps of each size that are left out, because kernels are loaded and compiled in them."""


def batch(num_seqs: int, prompt_tokens: int, adapters: int) -> Workload:
    """Return `num_seqs` equal requests that arrive at once; each names one of `adapters` adapters in turn, if any."""
    numbers = np.arange(num_seqs) % adapters + 1 if adapters else np.zeros(num_seqs, int)
    return Workload(
        arrival_s=np.zeros(num_seqs),
        prompt_tokens=np.full(num_seqs, prompt_tokens),
        output_tokens=np.full(num_seqs, OUTPUT_TOKENS),
        adapter=numbers,
    )


def settings_of(server: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return vLLM's settings of a server. Configurations of drafters are written into the folder of the output."""
    if server == "plain":
        return {}
    if server == "adapters":
        return {"enable_lora": True, "max_loras": SLOTS, "max_lora_rank": arguments.rank}
    config: dict[str, Any] = {"method": server, "num_speculative_tokens": arguments.drafts}
    if server.startswith("ngram"):
        return {"speculative_config": config | {"prompt_lookup_max": 4}, "async_scheduling": server == "ngram_gpu"}
    name = DRAFT_MODEL if server == "draft_model" else arguments.model
    drafter = write_config(find_model(name), arguments.output / server / name)
    if server != "draft_model":
        file = drafter / "config.json"
        head = EAGLE3_HEAD if server == "eagle3" else HEAD
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | head), encoding="utf-8")
    return {"speculative_config": config | {"model": str(drafter)}}


def record(server: str, arguments: argparse.Namespace) -> None:
    """Start one engine and record all its loads."""
    from kvsim.capture.drive import DrivenEngine  # noqa: PLC0415  asks for vLLM

    with DrivenEngine(arguments.model, **ENGINE, **settings_of(server, arguments)) as engine:
        for adapters in (0, 1, SLOTS) if server == "adapters" else (0,):
            for num_seqs, prompt_tokens in SIZES:
                load = batch(num_seqs, prompt_tokens, adapters)
                engine.serve(load, seed=8)
                name = f"vllm-{server}-k{arguments.drafts}-{adapters}-{num_seqs}x{prompt_tokens}"
                found = engine.record(load, arguments.output / name, command=f"python {' '.join(sys.argv)}")
                print(name, round(found.duration_s, 4), flush=True)


def compare(folder: Path) -> None:
    """Print the measured and the predicted time of a decode step of every recording in `folder`."""
    print("recording | sequences | measured, ms | predicted, ms | error")
    for path in sorted(folder.glob("vllm-*")):
        recording = read(path)
        policy, kv_bytes = policy_of(recording)
        model = served_model(recording.meta)
        gpu = find_gpu("H100")
        times = from_card(card_of(gpu, 1), gpu, model, "vllm", in_process=True)
        machine = Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=times)
        seen = observe(recording)
        num_seqs, num_tokens = len(recording.requests), int(np.median(seen.shape.num_tokens))
        chosen = np.flatnonzero((seen.shape.num_seqs == num_seqs) & (seen.shape.num_tokens == num_tokens))[WARM_STEPS:]
        measured_s = float(np.median(step_durations(seen)[chosen]))
        context = int(np.median(np.asarray(seen.shape.context_tokens)[chosen]))
        made = feature_times(machine, policy, workload_of(recording)).step_time
        cost = made.step_time(StepShape(num_seqs, num_tokens, 0, context, 0))
        predicted_s = max(cost.gpu_s, cost.launch_s)
        error = 100 * (predicted_s / measured_s - 1)
        print(f"{path.name} | {num_seqs} | {1e3 * measured_s:.2f} | {1e3 * predicted_s:.2f} | {error:+.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("servers", nargs="*", metavar="server", help=", ".join(SERVERS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", default="Meta-Llama-3-8B")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.action == "compare":
        compare(arguments.output)
    elif len(arguments.servers) == 1:
        record(arguments.servers[0], arguments)
    else:
        flags = [f"--model={arguments.model}", f"--drafts={arguments.drafts}", f"--rank={arguments.rank}"]
        for server in arguments.servers:  # one process per engine: each frees the GPU's memory when it ends
            subprocess.run(
                [sys.executable, __file__, "record", server, "-o", str(arguments.output), *flags], check=False
            )


if __name__ == "__main__":
    main()
