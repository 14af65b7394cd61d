"""How far cards are from the steps of models with several KV-cache groups: benchmarks/step_logs.py

`steps/` has one row per step of vLLM 0.25.1 as its scheduler saw it (`rows`: place of the decision among calls, its
time, sequences, tokens, prompt tokens, context, context within the window, pairs of query and key, the same within the
window, sequences that joined, preemptions, running, waiting, place and time of the output, end of scheduling), because
recordings of such models could not be made. Random weights of Gemma 3 4B, Granite 4.0 H Micro, and the shape of
DeepSeek-V2-Lite without experts; ShareGPT lengths at 12 requests/s (light), 48 at a time (closed), prompts of 500 to
7,000 tokens (long).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from kvsim.calibration.observed import Observed
from kvsim.calibration.predict import step_durations, step_errors
from kvsim.hardware import find_gpu
from kvsim.machines import card_of
from kvsim.models import Model, find_model
from kvsim.steptime import StepShape, reduce


def dense_latent() -> Model:
    """The shape of DeepSeek-V2-Lite with dense layers of 10,944 in place of experts."""
    model = find_model("DeepSeek-V2-Lite")
    layer = 2048 * (16 * 192 + 576) + 512 * 16 * 256 + 16 * 128 * 2048 + 3 * 2048 * 10944
    parameters = 2 * 102400 * 2048 + 27 * layer
    return replace(
        model,
        name="DeepSeek-V2-Lite without experts",
        num_parameters=parameters,
        num_active_parameters=parameters,
        num_experts=0,
        num_experts_per_token=0,
        num_expert_parameters=0,
    )


MODELS = {
    "gemma3-4b": find_model("gemma-3-4b-it"),
    "granite-h-micro": find_model("granite-4.0-h-micro"),
    "mla-dense": dense_latent(),
}


def observed(file: Path) -> Observed:
    """The steps of a log as the calibration sees them."""
    log = np.load(file)
    rows = log["rows"][log["rows"][:, 13] > 0]
    begun, start, seqs, tokens, prompt, context, _, pairs, _, joined, *_, ended, end, _ = rows.T
    none = np.zeros(len(rows))
    launched = np.searchsorted(begun, ended) - 1
    return Observed(
        name=file.stem,
        machine=file.stem,
        eager=False,
        shape=StepShape(seqs, tokens, prompt, context, pairs, none, none, none, joined),
        start_s=start - log["t0"],
        end_s=end - log["t0"],
        last_launched_before_output=launched,
        next_step=np.full(len(rows), -1),
        offload_s=none,
        launch_s=np.full(len(rows), np.nan),
        entry_gap_s=np.zeros(0),
        entry_prompt_tokens=np.zeros(0, int),
    )


def main() -> None:
    print("| steps of | all | decoding | captured with prompt tokens | larger |")
    print("|---|---:|---:|---:|---:|")
    for file in sorted((Path(__file__).parent / "steps").glob("*.npz")):
        _, gpu, rest = file.stem.split("-", 2)
        log = observed(file)
        times = reduce(card_of(find_gpu(gpu)), MODELS[rest.rpartition("-")[0]], in_process=True)
        error, duration = step_errors(times, log), step_durations(log)
        tokens, prompt = np.asarray(log.shape.num_tokens), np.asarray(log.shape.num_prefill_tokens) > 0
        captured = tokens <= times.max_captured_tokens
        kinds = (captured | ~captured, captured & ~prompt, captured & prompt, ~captured)
        cells = [f"{100 * error[kind].sum() / duration[kind].sum():+.1f} %" if kind.any() else "–" for kind in kinds]
        print(f"| {gpu.upper()} {rest} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
