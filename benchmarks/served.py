"""One vLLM server on an H100 as its clients see it, told before it is measured: benchmarks/served.py

predict          mean TTFT, TPOT and end to end of every load behind `--front-end http`, as JSON
measure -o DIR   start `vllm serve` with the shape of Llama-3-8B and random weights, send every load, and write what
                 the client saw (`client.json`) beside the recording of the engine, on a machine with an H100

Prompts are words of a vocabulary made for this, one token each; they are sent as text and come back as text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import mean

import numpy as np

from kvsim.capture.random_weights import write_config
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import Machine, measure
from kvsim.simulation.front_end import behind, http
from kvsim.workload import LogNormal, Poisson, Workload, generate

GPU, MODEL, PORT = "H100 SXM", "Meta-Llama-3-8B", 8123
ENGINE = {"max_model_len": 4096, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
CHAT = {"prompt": LogNormal(400, 0.6), "output": LogNormal(150, 0.5)}
LOADS: dict[str, Workload] = {
    f"{rate}/s": generate(count, arrivals=Poisson(rate_per_s=rate), seed=700 + rate, **CHAT)
    for rate, count in ((2, 40), (6, 100), (15, 250))
}
WARM_UP = generate(60, arrivals=Poisson(rate_per_s=12), seed=699, **CHAT)


def predict() -> dict[str, dict[str, float]]:
    """Simulate every load on the shipped card, behind a front end on a host that was not measured."""
    gpu, model = find_gpu(GPU), find_model(MODEL)
    machine = Machine(
        gpu=gpu,
        model=model,
        kv_bytes=40 << 30,
        step_time=step_times(gpu, model, "vllm", max_num_seqs=ENGINE["max_num_seqs"]),
    )
    told = {}
    for name, workload in LOADS.items():
        inside = measure(workload, Paged(scheduler=ContinuousSettings(**ENGINE)), machine).summary
        [seen], _ = behind(http(), [inside], float(workload.prompt_tokens.mean()))
        told[name] = {
            "engine_ttft_ms": round(1e3 * inside.ttft_s.mean, 3),
            "ttft_ms": round(1e3 * seen.ttft_s.mean, 3),
            "ttft_p50_ms": round(1e3 * seen.ttft_s.p50, 3),
            "tpot_ms": round(1e3 * seen.tpot_s.mean, 4),
            "e2e_s": round(seen.e2e_s.mean, 4),
        }
    return told


def _write_model(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415  comes with transformers
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    model = find_model(MODEL)
    write_config(model, folder)
    words = {f"w{number}": number for number in range(model.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1", eos_token="w2").save_pretrained(folder)


async def _send(session: object, at_s: float, begin: float, prompt: str, tokens: int) -> dict[str, float]:
    await asyncio.sleep(max(begin + at_s - time.perf_counter(), 0.0))
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    sent = time.perf_counter()
    first = last = 0.0
    async with session.post(f"http://127.0.0.1:{PORT}/v1/completions", json=body) as answer:  # type: ignore[attr-defined]
        async for line in answer.content:
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
    return {"ttft_s": first - sent, "e2e_s": last - sent, "tpot_s": (last - first) / max(tokens - 1, 1)}


async def _serve(workload: Workload, seed: int) -> list[dict[str, float]]:
    import aiohttp  # noqa: PLC0415  not needed to predict

    numbers = np.random.default_rng(seed)
    rows = zip(workload.arrival_s, workload.prompt_tokens, workload.output_tokens, strict=True)
    prompts = [" ".join(f"w{word}" for word in numbers.integers(10, 100_000, size)) for size in workload.prompt_tokens]
    timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        begin = time.perf_counter() + 0.1
        sending = [
            _send(session, float(at_s), begin, prompt, int(tokens))
            for (at_s, _, tokens), prompt in zip(rows, prompts, strict=True)
        ]
        return await asyncio.gather(*sending)


def measure_server(output: Path) -> None:
    """Start the server, send all loads, and end it."""
    folder = output / "model"
    _write_model(folder)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(PORT)),
        *("--served-model-name", "m", "--load-format", "dummy", "--dtype", "bfloat16"),
        *("--scheduler-cls", "kvsim.capture.vllm.RecordingScheduler", *flags),
    ]
    environment = os.environ | {"KVSIM_RECORD": str(output / "engine"), "HF_HUB_OFFLINE": "1"}
    with (
        (output / "server.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            _wait(server)
            asyncio.run(_serve(WARM_UP, 1))
            seen = {name: asyncio.run(_serve(load, 2 + place)) for place, (name, load) in enumerate(LOADS.items())}
        finally:
            server.terminate()
    (output / "client.json").write_text(json.dumps(seen), encoding="utf-8")
    for name, rows in seen.items():
        print(name, {key: mean(row[key] for row in rows) for key in rows[0]}, flush=True)


def _wait(server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit("the server ended; see server.log")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
        except OSError:
            time.sleep(1)
        else:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "measure"))
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "measure":
        arguments.output.mkdir(parents=True, exist_ok=True)
        measure_server(arguments.output)
    else:
        json.dump(predict(), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
