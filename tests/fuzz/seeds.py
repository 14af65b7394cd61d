"""Small files of every kind that kvsim reads, good and whole: what the fuzzer begins with."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from kvsim.calibration.prior import vllm_prior
from kvsim.capture.random_weights import write_config
from kvsim.experiments.sweeps import Point, sweep
from kvsim.hardware import find_gpu
from kvsim.importers import write_workload
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, Reserve, StaticSettings
from kvsim.recording import Recording, find, read, write
from kvsim.recording.eventlog import line
from kvsim.simulation import Machine, simulate
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate
from tests.cli.test_doctor import SGLANG, VLLM

_INDEX = "seeds.pickle"
ROOT = Path(__file__).parents[2]
RECORDINGS = ("paged", "plain", "contiguous", "pow2", "static", "preallocated", "generate")
SHIPPED_GENERATE = "hf-h200-granite-350m-batch64-static"

_SERVER_LINES = {
    "serve.sh": "vllm serve Qwen/Qwen3-8B --max-model-len 4096 \\\n  --gpu-memory-utilization 0.85 --max-num-seqs 64\n",
    "compose.yaml": """services:
  vllm:
    image: vllm/vllm-openai:v0.25.1
    command: --model Qwen/Qwen3-8B --max-model-len 4096 --enable-prefix-caching
""",
    "pod.yaml": """spec:
  containers:
    - image: lmsysorg/sglang:v0.5.3
      command: [python3, -m, sglang.launch_server]
      args: [--model-path, Qwen/Qwen3-8B, --mem-fraction-static, "0.85"]
""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """Where the good files are, by kind."""

    recordings: tuple[Path, ...]
    logs: tuple[Path, ...]
    server_logs: tuple[Path, ...]
    server_lines: tuple[Path, ...]
    workloads: tuple[Path, ...]
    profiles: tuple[Path, ...]
    lessons: tuple[Path, ...]
    oracles: tuple[tuple[Path, Path], ...]
    tables: tuple[Path, ...]
    tiny: Path
    """A model that runs on any machine: a folder with its shape."""


def make_seeds(folder: Path) -> Seeds:
    """Write one good file of every kind into `folder`."""
    workload = generate(
        10,
        arrivals=Poisson(rate_per_s=300),
        prompt=Uniform(low=3, high=24),
        output=Uniform(low=2, high=20),
        prefixes=SharedPrefixes(num_groups=2, tokens=8),
        seed=5,
    )
    recordings = []
    for name, policy in _policies().items():
        recordings.append(write(simulate(workload, policy, machine(96)), folder / name))
    shutil.copytree(find(SHIPPED_GENERATE), folder / "generate")
    recordings.append(folder / "generate")
    return Seeds(
        recordings=tuple(recordings),
        logs=(_log(folder / "log"), *(_log_of(read(path), folder / f"log-{path.name}") for path in recordings[:1])),
        server_logs=(_text_file(folder / "vllm.log", VLLM), _text_file(folder / "sglang.log", SGLANG)),
        server_lines=tuple(_text_file(folder / name, text) for name, text in _SERVER_LINES.items()),
        workloads=_workloads(folder, workload),
        profiles=(_copied(ROOT / "kvsim" / "profiles" / "calibrated" / "vllm-h200-llama-3-8b.toml", folder),),
        lessons=(_copied(ROOT / "tui" / "lessons" / "1-room-for-the-longest-answer.toml", folder),
                 _copied(ROOT / "tui" / "lessons" / "3-a-page-at-a-time.toml", folder)),
        oracles=(_oracle(folder),),
        tables=(_table(folder, workload),),
        tiny=_tiny(folder / "tiny"),
    )  # fmt: skip


def save_seeds(seeds: Seeds, folder: Path) -> None:
    """Write down where they are, for other processes."""
    (folder / _INDEX).write_bytes(pickle.dumps(seeds))


def load_seeds(folder: Path) -> Seeds:
    """What `save_seeds` wrote."""
    seeds: Seeds = pickle.loads((folder / _INDEX).read_bytes())
    return seeds


def machine(capacity_tokens: int) -> Machine:
    """A small machine with room for so many tokens."""
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    kv_bytes = capacity_tokens * model.kv_bytes_per_token
    return Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=vllm_prior(gpu, model))


def _policies() -> dict[str, Policy]:
    scheduler = ContinuousSettings(max_model_len=64)
    return {
        "paged": Paged(cache=PagedSettings(block_size=4), scheduler=scheduler),
        "plain": Paged(cache=PagedSettings(block_size=4, enable_prefix_caching=False), scheduler=scheduler),
        "contiguous": Contiguous(scheduler=scheduler),
        "pow2": Contiguous(cache=ContiguousSettings(fit="buddy", reserve=Reserve.POW2), scheduler=scheduler),
        "static": Static(scheduler=StaticSettings(batch_size=3, max_model_len=64)),
        "preallocated": Static(scheduler=StaticSettings(batch_size=2, max_model_len=64, preallocated=True)),
    }


def _text_file(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def _copied(file: Path, folder: Path) -> Path:
    return Path(shutil.copy(file, folder / file.name))


def _log(folder: Path) -> Path:
    """The log of an engine that was killed in a step."""
    step = {"prefill_tokens": 4, "decode_tokens": 0, "num_scheduled": 1, "running": 1, "waiting": 0, "preempted": 0}
    events: list[list[object]] = [["meta", _meta()]]
    for row in range(4):
        events += [
            ["arrive", f"r{row}", 0.1 * row, 4, 3, 0, [row]],
            ["seq"],
            ["append", row, 0, [2 * row + 1, 2 * row + 2]],
            ["tokens", 0.1 * row, [[row, 0, 4]]],
            ["step", step | {"start_s": 0.1 * row, "free_units": 38}],
            ["seq"],
            ["output", 2 * row, 0.1 * row + 0.01],
            ["emit", row, 0.1 * row + 0.01, 1],
            ["seq"],
            ["again", 0.1 * row + 0.02],
            ["step", step | {"prefill_tokens": 0, "decode_tokens": 1, "start_s": 0.1 * row + 0.02, "free_units": 38}],
            ["seq"],
            ["output", 2 * row + 1, 0.1 * row + 0.03],
            ["emit", row, 0.1 * row + 0.03, 1],
            ["end", row, "finished", 0.1 * row + 0.03],
            ["release", row, 2, 1],
        ]
    return _written(events, folder)


def _log_of(recording: Recording, folder: Path) -> Path:
    """The first requests of a recording as a log: they have arrived, and nothing has been scheduled."""
    requests = recording.requests
    arrivals: list[list[object]] = [
        ["arrive", str(requests.id[row]), float(requests.arrival_s[row]), int(requests.prompt_tokens[row]),
         int(requests.max_tokens[row]), 0, requests.prompt_hashes[row].tolist()]
        for row in range(len(requests))
    ]  # fmt: skip
    return _written([["meta", _meta()], *arrivals], folder)


def _meta() -> dict[str, object]:
    pool = {"unit_tokens": 4, "num_units": 40, "first_unit": 1, "bytes_per_unit": 64}
    policy = {"name": "paged", "block_size": 4}
    return {
        "format": "kvsim-recording", "version": 1, "source": "vllm", "gpu": "CPU", "engine": {"name": "vllm"},
        "model": {"name": "tiny"}, "policy": policy, "pool": pool,
    }  # fmt: skip


def _written(events: list[list[object]], folder: Path) -> Path:
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(b"".join(line(*event) for event in events))
    return folder


def _workloads(folder: Path, workload: Workload) -> tuple[Path, ...]:
    lines = {
        "azure.csv": ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44",
                      "2023-11-16 18:15:50.9951690,396,109"],
        "burstgpt.csv": ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
                         "5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,1087,230,1317,API log"],
        "plain.csv": ["arrival_s,prompt_tokens,output_tokens", "0.0,12,3", "1.5,20,8"],
        "vidur.csv": ["arrived_at,num_prefill_tokens,num_decode_tokens", "0.1,12,3", "0.5,20,8"],
        "mooncake.jsonl": [json.dumps({"timestamp": 3000 * row, "input_length": 600, "output_length": 5,
                                       "hash_ids": [0, row + 1]}) for row in range(3)],
        "agents.jsonl": [json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1],
                                     "request_id": str(row), "session_id": "s", "delay": 10.0, "tool_wait_ms": 500,
                                     "wait_for": ["0"] if row else []}) for row in range(3)],
        "talk.jsonl": [json.dumps({"id": "a", "session": "s", "arrival_s": 0.5, "prompt_tokens": 40, "output_tokens": 9,
                                   "prefix_group": "p", "prefix_tokens": 20}),
                       json.dumps({"id": "b", "session": "s", "pause_s": 1.5, "new_tokens": 5, "output_tokens": 3}),
                       json.dumps({"id": "c", "after": "a", "history_tokens": 30, "prompt_tokens": 50,
                                   "output_tokens": 2, "max_tokens": 4, "priority": 1})],
        "vllm-bench.json": [json.dumps({"input_lens": [10, 20], "output_lens": [3, 4], "ttfts": [0.1, 0.2],
                                        "itls": [[0.1], [0.1]], "start_times": [0.0, 1.0], "num_prompts": 2,
                                        "date": "20260101-000000", "backend": "vllm"})],
        "sharegpt.json": [json.dumps([{"id": "a", "conversations": [{"from": "human", "value": "why is it so"},
                                                                  {"from": "gpt", "value": "because"}]}] * 3)],
    }  # fmt: skip
    files = []
    for name, content in lines.items():
        (folder / name).write_text("\n".join(content) + "\n")
        files.append(folder / name)
    release = folder / "ragpulse"
    release.mkdir()
    for stem in ("1_sys_prompt", "2_passages", "3_history", "4_user_input", "5_web_search"):
        (release / f"{stem}.jsonl").write_text(json.dumps({"hash_id": int(stem[0]), "token_length": 40}) + "\n")
    chunks = {"sys_prompt": [1], "passages_ids": [2], "history": [], "web_search": [5], "user_input": [4]}
    rows = [{"timestamp": row, "input_length": 160, "output_length": 9, "hash_ids": chunks} for row in range(3)]
    (release / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (*files, release / "trace.jsonl", write_workload(workload, folder / "workload.parquet"))


def _tiny(folder: Path) -> Path:
    folder.mkdir()
    shape = replace(
        find_model("Meta-Llama-3-8B"), num_layers=1, hidden_size=16, num_attention_heads=2, num_kv_heads=1, head_dim=8,
        intermediate_size=16, vocab_size=64, max_position_embeddings=256,
    )  # fmt: skip
    write_config(shape, folder)
    return folder


def _oracle(folder: Path) -> tuple[Path, Path]:
    golden = ROOT / "tests" / "conformance" / "golden"
    return _copied(golden / "000.json", folder), _copied(golden / "000.jsonl.gz", folder)


def _table(folder: Path, workload: Workload) -> Path:
    points = [
        Point(settings={"num_blocks": num_blocks, "block_size": 4}, workload=workload.head(3),
              policy=Paged(cache=PagedSettings(block_size=4), scheduler=ContinuousSettings(max_model_len=64)),
              machine=machine(num_blocks * 4))
        for num_blocks in (20, 40)
    ]  # fmt: skip
    return sweep(points, folder / "sweep.parquet", num_jobs=2).table


NASTY_NUMBERS = (
    0, -1, 1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0,
    1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
"""Numbers at which something usually breaks."""
NASTY_TEXTS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "9" * 5000, "x" * 3000, "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m", "[bold]x[/bold]", "$x^$", "=1+1", "../../etc/passwd", "é", "\u202e", "null", "true",
    "{}", "\x00", "NaN", "1_000",
)  # fmt: skip
"""Texts, likewise."""
NASTY: tuple[object, ...] = (*NASTY_NUMBERS, *NASTY_TEXTS, None, True, False, [], {}, [[]], [None], {"a": 1}, [1, "a"])
