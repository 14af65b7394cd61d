"""Command lines of `kvsim run`, drawn at random over all that a run can do.

A draw is refused neither by kvsim nor by the rules of vLLM: no more sequences than tokens in a step, whole prompts that
fit into one. What it cannot promise is that a run comes to its end: a queue may stall, in either engine alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DENSE = ("Meta-Llama-3-8B", "Qwen3-0.6B", "Qwen2.5-7B-Instruct", "DeepSeek-V2-Lite")
GROUPED = ("gemma-3-1b-it", "gpt-oss-20b", "gemma-3-270m", "granite-4.0-h-350m", "granite-4.0-h-tiny")
"""Models with KV-cache groups: windows, and recurrent states."""
WINDOWED = ("gpt-oss-20b", "gemma-3-1b-it")
"""Of these, SGLang has a second pool for the first, and keeps every token of the second in every layer."""
RECURRENT = ("granite-4.0-h-350m", "granite-4.0-h-tiny")
OLDER = ("0.20.2", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.0", "0.28.0", "0.30.0", "0.31.0")
"""Releases before the newest, each with rules of its own."""
RECORDED = ("vllm-h200-llama-3-8b-sharegpt-pressure", "vllm-h100-llama-3-8b-prefixes", "vllm-h200-granite-350m-gsm8k")
"""Requests that stop before their limits, and with prompts that share prefixes."""
DRAWN = ("--prompt-tokens", "--speculative-config")
"""The flags for which something is drawn at random."""


@dataclass(frozen=True, slots=True)
class _Draw:
    """The random numbers of one command line, and the folder for the files that it reads."""

    random: random.Random
    folder: Path

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def one_of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def some(self, share: float, flag: str, *values: Any) -> list[str]:
        """`flag` with one of `values`, if it takes any, in a `share` of all draws."""
        if not self.chance(share):
            return []
        return [flag, *(str(self.one_of(*values)) for _ in values[:1])]


def drawn_settings(seed: int, folder: Path) -> list[str]:
    """Return the arguments of the `seed`-th `kvsim run`, but for its engine and for what it writes and prints.

    Files that it reads are written to `folder`.
    """
    draw = _Draw(random.Random(seed), folder)
    policy = draw.one_of("paged", "paged", "paged", "paged", "contiguous", "contiguous", "static", "radix")
    longest = draw.one_of(256, 512, 1024)
    arguments = ["--policy", policy, "--seed", str(draw.random.randrange(1000))]
    requests = _requests(draw, longest)
    senders = _senders(draw, requests)
    if "--sessions" in requests:  # whose turns wait for answers, which are part of later prompts
        requests = _without("--answers", _without("--load", requests))
        senders = _without("--max-concurrency", senders)
    if "at-once" in senders or ("--max-concurrency" in senders and "--rate" not in senders):
        requests = _without("--load", requests)  # which makes them arrive faster
    arguments += requests + senders
    if policy == "static":
        arguments += _static(draw) + _machine(draw, draw.one_of(*DENSE), longest)
    elif policy == "radix":  # its tree is not looked up by routers
        arguments = ["shortest" if each in ("prefix", "dynamo") else each for each in arguments]
        radix, machine = _radix(draw), _machine(draw, draw.one_of(*DENSE, *WINDOWED), longest)
        if "--disable-radix-cache" in radix and WINDOWED[0] in machine:  # every request's window has slots of its own
            machine = [*_without("--num-blocks", machine), *([] if "--kv-gib" in machine else ["--kv-gib", "16"])]
        if "--disable-radix-cache" not in radix and WINDOWED[0] not in machine and draw.chance(0.3):
            radix += _hicache(draw)
        arguments += radix + machine
    elif policy == "contiguous":
        arguments += _contiguous(draw) + _scheduling(draw, longest) + _machine(draw, draw.one_of(*DENSE), longest)
    else:
        arguments += _paged(draw, longest)
    if not any(flag in arguments for flag in DRAWN):
        arguments = _without("--seed", arguments)  # which is refused where it has no effect
    if {"--max-num-seqs", "--max-num-batched-tokens"} <= {*arguments}:
        arguments = _without("--defaults", arguments)  # for the same reason
    return [*arguments, "--refuse-misfits", *draw.some(0.08, "--check")]


def _without(flag: str, arguments: list[str]) -> list[str]:
    """`arguments` without `flag` and its value."""
    if flag not in arguments:
        return arguments
    at = arguments.index(flag)
    return arguments[:at] + arguments[at + 2 :]


def _requests(draw: _Draw, longest: int) -> list[str]:
    """Requests: generated, of a recording, or of a file."""
    kinds: tuple[Callable[[_Draw, int], list[str]], ...] = (_generated, _generated, _generated, _recorded, _filed)
    return [
        *draw.one_of(*kinds)(draw, longest),
        *draw.some(0.1, "--load", "0.5x", "3x"),
        *draw.some(0.1, "--answers", "0.5x", "2x"),
    ]


def _generated(draw: _Draw, longest: int) -> list[str]:
    arguments = ["--num-requests", str(draw.one_of(2, 3, 8, 25, 60))]
    if draw.chance(0.15):
        arguments = ["--sessions", str(draw.one_of(1, 4, 12)), "--turns", str(draw.one_of(1, 3, "4:0.5"))]
        arguments += draw.some(0.6, "--pause", 0.05, "0.5:1", 3)
    mean_prompt, mean_output = draw.one_of(5, 40, 100, longest // 3), draw.one_of(1, 4, 30, 80)
    if draw.chance(0.2):
        arguments += ["--random-range-ratio", str(draw.one_of(0, 0.5, 0.9))]
        arguments += ["--prompt-tokens", str(mean_prompt), "--output-tokens", str(mean_output)]
    else:
        arguments += ["--prompt-tokens", f"{mean_prompt}{draw.one_of('', ':0.6', ':1')}"]
        arguments += ["--output-tokens", f"{mean_output}{draw.one_of('', ':0.5', ':0.9')}"]
    return arguments + draw.some(0.4, "--shared-prefix", "1x48", "3x100", "2x16")


def _recorded(draw: _Draw, longest: int) -> list[str]:  # noqa: ARG001  those that are longer are refused
    return ["--workload", draw.one_of(*RECORDED), "--num-requests", str(draw.one_of(2, 10, 40))]


def _filed(draw: _Draw, longest: int) -> list[str]:
    """Requests with priorities, limits that they do not reach, and prefixes."""
    rows, arrival_s = ["arrival_s,prompt_tokens,output_tokens,max_tokens,priority,prefix_group,prefix_tokens"], 0.0
    for _ in range(draw.one_of(4, 20, 50)):
        prompt, output = draw.random.randrange(1, longest // 2), draw.random.randrange(1, 60)
        prefix = f"{draw.one_of('a', 'b')},{min(prompt, 64)}" if draw.chance(0.4) else ","
        rows.append(
            f"{arrival_s:.3f},{prompt},{output},{output + draw.one_of(0, 0, 1, 30)},{draw.one_of(0, 1, 2)},{prefix}"
        )
        arrival_s += draw.one_of(0, 0, 0.01, 0.05, 0.3) if arrival_s else 0.01
    file = draw.folder / "requests.csv"
    file.write_text("\n".join(rows) + "\n")
    return ["--workload", str(file)]


def _senders(draw: _Draw, requests: list[str]) -> list[str]:
    """Who sends the requests to how many servers: users, or arrivals, of which at most so many are served at once."""
    servers = ["--replicas", str(draw.one_of(2, 3)), *draw.some(0.5, "--route", "round-robin", "prefix", "dynamo")]
    arguments = servers if draw.chance(0.2) else []
    if draw.chance(0.3):
        arguments += ["--users", str(draw.one_of(1, 2, 5, 20)), *draw.some(0.4, "--think-time", 0.03, 1)]
        return arguments + draw.some(0.3, "--spawn-rate", 2, 50)
    arguments += draw.some(0.3, "--max-concurrency", 1, 2, 8, 30)
    rate = ["--rate", str(draw.one_of(5, 30, 100))]
    if "--prompt-tokens" not in requests:
        return arguments + (rate if draw.chance(0.3) else [])
    profile = draw.folder / "profile.csv"
    profile.write_text("time_s,rate_per_s\n0,5\n1,60\n3,5\n")
    return arguments + draw.one_of(
        *(["--arrivals", kind, *rate] for kind in ("poisson", "gamma", "constant")),
        *([], ["--arrivals", "at-once"], ["--rate-profile", str(profile)]),
        *(["--ramp", "2", *rate], ["--burstiness", "0.25", *rate], ["--burstiness", "1", *rate]),
    )


def _scheduling(draw: _Draw, longest: int) -> list[str]:
    """Limits of a step: whole prompts fit into it where they are not computed in chunks."""
    max_num_seqs = draw.one_of(1, 2, 6, 64, 256)
    is_chunked = draw.chance(0.8)
    tokens = draw.one_of(
        *(most for most in (16, 64, 200, 2048) if most >= max_num_seqs and (is_chunked or most >= longest))
    )
    return [
        *("--max-num-seqs", str(max_num_seqs), "--max-num-batched-tokens", str(tokens)),
        *([] if is_chunked else ["--no-chunked-prefill"]),
        *draw.some(0.3, "--no-async-scheduling"),
        *draw.some(0.3, "--order", "priority"),
        *(draw.some(0.2, "--long-prefill-token-threshold", 10, 100) if is_chunked else []),
        *draw.some(0.1, "--defaults", "server", "llm"),
    ]


def _paged(draw: _Draw, longest: int) -> list[str]:
    """A paged cache in one of the ways in which it is extended; these exclude each other."""
    kind = draw.one_of(
        "plain", "plain", "plain", "offload", "offload", "swap", "drafts", "groups", "groups", "pipeline"
    )
    model, more = draw.one_of(*DENSE), []
    scheduling = _scheduling(draw, longest)
    if kind == "offload":
        more = [
            "--vllm",
            "0.25.1",
            "--kv-offloading-size",
            str(draw.one_of(0.05, 0.2, 2)),
            *draw.some(0.5, "--kv-offloading-outputs"),
        ]
        more += draw.some(0.5, "--kv-offloading-eviction", "lru", "arc")
        more += draw.some(0.3, "--kv-offloading-gb-per-s", 1, 50)
        more += draw.some(0.2, "--kv-offloading-block-size", 128)
        scheduling = _without("--order", scheduling)
    elif kind == "swap":
        more = ["--swap-gib", str(draw.one_of(0.1, 1)), *draw.some(0.5, "--swap-gb-per-s", 1, 50)]
    elif kind == "drafts":
        method, most = draw.one_of("eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dflash"), draw.one_of(1, 3, 5)
        told = f'{{"method": "{method}", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": {most}}}'
        more = ["--speculative-config", told, *draw.some(0.5, "--acceptance", 0, 0.5, 1)]
    elif kind == "groups":
        model = draw.one_of(*GROUPED)
        more = draw.some(0.5, "--prefix-caching") if model in RECURRENT else []
        more += draw.some(0.2, "--disable-hybrid-kv-cache-manager") if model not in RECURRENT else []
    elif kind == "pipeline":
        model, more = draw.one_of(*DENSE[:3]), ["--pipeline-parallel-size", "2"]
    if kind in ("plain", "swap") or model in ("gemma-3-1b-it", "gpt-oss-20b"):
        more += draw.some(0.5, "--vllm", *OLDER)
    if "--prefix-caching" not in more and kind != "offload":
        more += draw.some(0.25, "--no-prefix-caching")
    if kind != "groups":
        more += draw.some(0.3, "--block-size", 16, 32, 64)
        more += draw.some(0.15, "--watermark", 0.01, 0.1) if "--vllm" not in more or kind == "offload" else []
    return [*scheduling, *more, *_machine(draw, model, longest)]


def _contiguous(draw: _Draw) -> list[str]:
    reserve = draw.one_of("max", "limit", "pow2", "oracle", "doubling")
    growth = draw.some(0.5, "--growth", "move", "fail") if reserve == "doubling" else []
    return [
        *("--reserve", reserve, *growth, *draw.some(0.6, "--fit", "first", "best", "next", "buddy")),
        *draw.some(0.3, "--compaction"),
        *draw.some(0.2, "--request-level"),
    ]


def _radix(draw: _Draw) -> list[str]:
    conservativeness = str(draw.one_of(0.05, 0.3, 1, 1.4))
    return [
        *("--max-running-requests", str(draw.one_of(1, 4, 32, 256)), "--schedule-conservativeness", conservativeness),
        *("--chunked-prefill-size", str(draw.one_of(-1, 64, 500)), "--page-size", str(draw.one_of(1, 1, 4, 16))),
        *draw.some(0.3, "--schedule-policy", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first"),
        *draw.some(0.3, "--radix-eviction-policy", "lfu", "fifo", "mru", "slru"),
        *draw.some(0.3, "--disable-overlap-schedule"),
        *draw.some(0.2, "--enable-mixed-chunk"),
        *draw.some(0.2, "--disable-radix-cache"),
        *draw.some(0.2, "--enable-priority-scheduling"),
        *draw.some(0.2, "--prefill-decode-interval", 3),
        *draw.some(0.2, "--swa-full-tokens-ratio", 0.2, 1.0),
    ]


def _hicache(draw: _Draw) -> list[str]:
    return [
        "--enable-hierarchical-cache",
        *draw.some(0.7, "--hicache-ratio", 0.001, 0.3, 1.5),
        *draw.some(0.7, "--hicache-write-policy", "write_through_selective", "write_back"),
        *draw.some(0.5, "--kv-offloading-gb-per-s", 0.5, 20),
    ]


def _static(draw: _Draw) -> list[str]:
    return [
        *("--batch-size", str(draw.one_of(1, 3, 8)), "--cache", draw.one_of("dynamic", "static")),
        *draw.some(0.4, "--batch-timeout", 0.02, 0.5),
        *draw.some(0.3, "--sort-by-length"),
        *draw.some(0.2, "--no-memory-guard"),
    ]


def _machine(draw: _Draw, model: str, longest: int) -> list[str]:
    """A model on a GPU, with memory that is scarce in most draws: what does not fit is refused."""
    memory = ["--num-blocks", str(draw.one_of(longest // 64, longest // 16 + 1, longest // 8, longest // 4, 1000))]
    if draw.chance(0.1):
        memory = ["--kv-gib", "2"]
    return [
        *("--model", model, "--gpu", draw.one_of("H200", "H100 SXM", "B200"), "--max-model-len", str(longest), *memory),
        *draw.some(0.1, "--tensor-parallel-size", 2),
        *draw.some(0.1, "--kv-cache-dtype", "fp8"),
        *draw.some(0.1, "--profile", "none"),
    ]
