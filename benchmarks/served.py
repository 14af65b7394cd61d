"""vLLM servers as their clients see them, predicted before they are measured: benchmarks/served.py

predict [GPU]          mean TTFT, TPOT and end to end of every server and load behind `--front-end http`, as JSON
measure NAME -o DIR    start `vllm serve` with random weights, send every load twice, and write what the client saw of
                       the second pass (`client.json`) beside the recording of the engine
compare NAME DIR       beside what was seen: what ships says, and with --card what a card measured there says, of the
                       prompts that the engine counted

The first pass has the same lengths and times and other words, so every kernel is compiled before the second. Prompts
are words of a vocabulary made for this, one token each; they are sent as text and come back as text.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from kvsim.hardware import find_gpu
from kvsim.machines import from_card, in_batches_of, step_times
from kvsim.models import Model, find_model
from kvsim.models.huggingface import from_fields
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import Recording, read
from kvsim.simulation import Machine, measure
from kvsim.simulation.front_end import http, with_delays
from kvsim.steptime.card import Card, load_card
from kvsim.workload import LogNormal, Poisson, Workload, generate

sys.path.insert(0, str(Path(__file__).parent))
from experts import MIXTRAL_16
from two_gpus import CODELLAMA_34B

GPU, PORT = "H100 SXM", int(os.environ.get("KVSIM_PORT", "8123"))
ENGINE = {"max_model_len": 4096, "max_num_seqs": 128, "max_num_batched_tokens": 2048}
CHAT = {"prompt": LogNormal(400, 0.6), "output": LogNormal(150, 0.5)}
LOADS: dict[str, Workload] = {
    f"{rate}/s": generate(count, arrivals=Poisson(rate_per_s=rate), seed=800 + rate, **CHAT)
    for rate, count in ((2, 30), (6, 90), (15, 200))
}
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


class Server(NamedTuple):
    fields: dict[str, Any]
    """The shape of its model."""
    num_gpus: int
    """GPUs that share the model, by tensor parallelism."""
    flags: tuple[str, ...] = ()
    loads: Mapping[str, Workload] = LOADS
    scheduler: str = "kvsim.capture.vllm.RecordingScheduler"
    is_stamped: bool = False
    """True if front end and engine write when they handle each request (`stamps.py`)."""
    is_profiled: bool = False
    """True if the kernels of some steps are listed after the loads; for schedulers of `watched_ranks.py`."""


SERVERS = {
    "llama-3-8b": Server(LLAMA_3_8B, 1),
    "mixtral-8x7b-16-layers": Server(MIXTRAL_16, 2),
    "codellama-34b": Server(CODELLAMA_34B, 2),
    "llama-3-8b-stamped": Server(LLAMA_3_8B, 1, scheduler="stamps.StampedScheduler", is_stamped=True),
}
KV_BYTES = 20 << 30
"""Plenty: no load is short of memory."""
WORDS = range(10, 30_000)
"""Numbers of the words in prompts, which are those of their tokens."""
_WARM_UP_SEED, _SEED = 1, 101
_PROFILED_REQUESTS, _PROFILED_STEPS = 60, 12


def shape_of(name: str) -> Model:
    """Return a model as it is served."""
    if name.startswith("llama-3-8b"):
        return find_model("Meta-Llama-3-8B")
    server = SERVERS[name]
    return from_fields(server.fields, name=name, where="this file").served(tensor_parallel_size=server.num_gpus)


def predict(
    model: Model, gpu_name: str, card: Card | None = None, loads: Mapping[str, Workload] = LOADS
) -> dict[str, dict[str, float]]:
    """Simulate every load on a card, or on the best that ships behind a front end that was not measured."""
    gpu = find_gpu(gpu_name)
    if card is None:
        times = step_times(gpu, model, "vllm", max_num_seqs=ENGINE["max_num_seqs"])
    else:
        times = in_batches_of(ENGINE["max_num_seqs"], from_card(card, gpu, model, "vllm"))
    machine = Machine(gpu=gpu, model=model, kv_bytes=KV_BYTES, step_time=times)
    told = {}
    for name, workload in loads.items():
        inside = measure(workload, Paged(scheduler=ContinuousSettings(**ENGINE)), machine).summary
        [seen], _ = with_delays(http(card), [inside], float(workload.prompt_tokens.mean()))
        told[name] = {
            "engine_ttft_ms": round(1e3 * inside.ttft_s.mean, 3),
            "ttft_ms": round(1e3 * seen.ttft_s.mean, 3),
            "ttft_p50_ms": round(1e3 * seen.ttft_s.p50, 3),
            "tpot_ms": round(1e3 * seen.tpot_s.mean, 4),
            "e2e_s": round(seen.e2e_s.mean, 4),
        }
    return told


def sent(recording: Recording, seen: Mapping[str, Sequence[object]]) -> dict[str, Workload]:
    """Return the last loads of a recording with the prompts that the engine counted, at the times at which they were
    sent.

    The times of arrival in the recording are no times of sending: an engine takes requests between two steps, so those
    that come during a step are recorded together at its end, and their wait would be lost.

    In the runs of `docs/accuracy.md` they are longer than in `LOADS`: the tokenizer took words that begin with w1 or w2
    for two tokens each.
    """
    requests = recording.requests
    order = np.argsort(requests.arrival_s)
    found = {}
    for name, rows in reversed(seen.items()):
        places, order = order[len(order) - len(rows) :], order[: len(order) - len(rows)]
        found[name] = Workload(
            arrival_s=LOADS[name].arrival_s,
            prompt_tokens=requests.prompt_tokens[places],
            output_tokens=np.maximum(requests.max_tokens[places], 1),
        )
    return {name: found[name] for name in seen}


def _write_model(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write the shape of a model and a tokenizer of words.

    Special tokens are found inside of words, so no word contains one: with "w1" for a special token, "w123" would be
    two tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415  comes with transformers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: PLC0415

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    special = {"<unk>": 0, "<s>": 1, "</s>": 2}
    words = special | {f"w{number}": number for number in range(len(special), fields["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)(" ".join(f"w{word}" for word in WORDS))["input_ids"]
    if tokens != list(WORDS):
        raise SystemExit(f"the tokenizer makes {len(tokens):,} tokens of {len(WORDS):,} words; prompts would be longer")


async def _send(
    session: object, at_s: float, begin: float, prompt: str, tokens: int, request_id: str
) -> dict[str, float]:
    await asyncio.sleep(max(begin + at_s - time.perf_counter(), 0.0))
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    sent = time.perf_counter()
    first = last = 0.0
    address, headers = f"http://127.0.0.1:{PORT}/v1/completions", {"X-Request-Id": request_id}
    async with session.post(address, json=body, headers=headers) as answer:  # type: ignore[attr-defined]
        async for line in answer.content:
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
    return {
        "ttft_s": first - sent,
        "e2e_s": last - sent,
        "tpot_s": (last - first) / max(tokens - 1, 1),
        "sent": sent,  # by the clock that all processes share
    }


async def _serve(workload: Workload, seed: int) -> list[dict[str, float]]:
    import aiohttp  # noqa: PLC0415  not needed to predict

    numbers = np.random.default_rng(seed)
    rows = zip(workload.arrival_s, workload.prompt_tokens, workload.output_tokens, strict=True)
    prompts = [
        " ".join(f"w{word}" for word in numbers.integers(WORDS[0], WORDS[-1] + 1, size))
        for size in workload.prompt_tokens
    ]
    timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        begin = time.perf_counter() + 0.1
        sending = [
            _send(session, float(at_s), begin, prompt, int(tokens), f"{seed}-{number}")
            for number, ((at_s, _, tokens), prompt) in enumerate(zip(rows, prompts, strict=True))
        ]
        return await asyncio.gather(*sending)


def measure_server(name: str, of: Server, output: Path) -> None:
    """Start the server, send all loads twice, and end it."""
    folder = output / name
    _write_model(folder, of.fields)
    flags = [f"--{flag.replace('_', '-')}={value}" for flag, value in ENGINE.items()]
    server_module = "stamps" if of.is_stamped else "vllm.entrypoints.openai.api_server"
    command = [
        *(sys.executable, "-m", server_module, "--model", str(folder), "--port", str(PORT)),
        *("--served-model-name", "m", "--load-format", "dummy", "--dtype", "bfloat16"),
        *("--tensor-parallel-size", str(of.num_gpus)),
        *("--scheduler-cls", of.scheduler, *flags, *of.flags),
    ]
    if of.is_profiled:
        profiler = {
            "profiler": "torch",
            "torch_profiler_dir": str((output / "profile").absolute()),
            "torch_profiler_with_stack": False,
            "ignore_frontend": True,
            "max_iterations": _PROFILED_STEPS,
        }
        command += ["--profiler-config", json.dumps(profiler)]
    environment = os.environ | {"KVSIM_RECORD": str(output / "engine"), "HF_HUB_OFFLINE": "1"}
    (output / "engine").mkdir(exist_ok=True)
    with (
        (output / "server.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            _wait(server)
            for place, load in enumerate(of.loads.values()):
                asyncio.run(_serve(load, _WARM_UP_SEED + place))
            loads = enumerate(of.loads.items())
            seen = {name: asyncio.run(_serve(load, _SEED + place)) for place, (name, load) in loads}
            (output / "client.json").write_text(json.dumps(seen), encoding="utf-8")
            if of.is_profiled:
                (output / "engine" / "unrecorded").touch()
                *_, busiest = of.loads.values()
                _post("start_profile")
                asyncio.run(_serve(busiest.head(_PROFILED_REQUESTS), _WARM_UP_SEED))
                _post("stop_profile")
        finally:
            server.terminate()
    for load_name, rows in seen.items():
        print(load_name, {key: mean(row[key] for row in rows) for key in rows[0]}, flush=True)


def _post(action: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/{action}", method="POST")
    urllib.request.urlopen(request, timeout=90).read()


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


def compare(name: str, folder: Path, card: Card | None) -> None:
    """Print a row per load: seen, and the errors of the default and of a card measured on the machine."""
    recording = read(folder / "engine" if (folder / "engine").is_dir() else folder)
    gpu_name, model = find_gpu(recording.meta.gpu).name, shape_of(name)
    seen = json.loads((folder / "client.json").read_text(encoding="utf-8"))
    loads = sent(recording, seen)
    print(
        "| requests/s | predicted by | TTFT, mean | TTFT, median | TPOT | end to end |\n|---|---|---:|---:|---:|---:|"
    )
    for words, source in (("what ships", None), ("the machine's card", card)):
        if source is None and words != "what ships":
            continue
        told = predict(model, gpu_name, source, loads)
        for load, rows in seen.items():
            ttft_ms = [1e3 * row["ttft_s"] for row in rows]
            real = {
                "ttft_ms": mean(ttft_ms),
                "ttft_p50_ms": median(ttft_ms),
                "tpot_ms": 1e3 * mean(row["tpot_s"] for row in rows),
                "e2e_s": mean(row["e2e_s"] for row in rows),
            }
            cells = [f"{told[load][key]:.1f}, {real[key]:.1f} ms" for key in ("ttft_ms", "ttft_p50_ms")]
            cells += [f"{100 * (told[load][key] / real[key] - 1):+.1f} %" for key in ("tpot_ms", "e2e_s")]
            print(f"| {load} | {words} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "measure", "compare"))
    parser.add_argument("name", nargs="?", default=GPU)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--card", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "measure":
        arguments.output.mkdir(parents=True, exist_ok=True)
        measure_server(arguments.name, SERVERS[arguments.name], arguments.output)
    elif arguments.action == "compare":
        card = load_card(arguments.card) if arguments.card else None
        compare(arguments.name, arguments.folder, card)
    else:
        told = {
            f"{server.num_gpus}x{arguments.name} {name} served {load}": figures
            for name, server in SERVERS.items()
            for load, figures in predict(shape_of(name), arguments.name).items()
        }
        json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
