"""Flags with values at which something usually breaks."""

from __future__ import annotations

import random

from tests.fuzz.seeds import NASTY_NUMBERS, Seeds

_NUMBERS = (
    "--num-requests", "--max-model-len", "--block-size", "--kv-gib", "--num-blocks", "--gpu-memory-utilization",
    "--watermark", "--swap-gib", "--swap-gb-per-s", "--speculative-tokens", "--acceptance-rate", "--batch-size",
    "--batch-timeout", "--max-num-seqs", "--max-num-batched-tokens", "--long-prefill-token-threshold", "--rate",
    "--burstiness", "--seed", "--ramp", "--users", "--think-time", "--random-range-ratio",
)  # fmt: skip
_TEXTS = {
    "--prompt-tokens": ("0", "-1", "1e9", "200:", ":", "nan:nan", "200:1e9", "9" * 400, "2147483648", "inf:1", "10:-1"),
    "--output-tokens": ("0", "-1", "1e9", "200:", ":", "nan:nan", "200:1e9", "9" * 400, "2147483648", "inf:1", "10:-1"),
    "--shared-prefix": ("0x0", "-1x5", "4x", "x", "1x99999999999", "99999999999x1", "9" * 400 + "x1", "4x512"),
    "--load": ("2x", "0x", "-1", "nan", "x", "1e9x", "0.5"),
    "--answers": ("2x", "0x", "-1", "nan", "x", "1e6x", "0.5"),
    "--columns": ("", "=", "a=b", "arrival_s=", "prompt_tokens=x,output_tokens=y"),
    "--model": ("", "Llama", "../x", "Meta-Llama-3-8B", "x" * 400, "Mistral-7B-v0.1"),
    "--gpu": ("", "H200", "A100", "T4", "x" * 400),
    "--profile": ("none", "", "x", ".", "x" * 400),
    "--reserve": ("max", "limit", "pow2", "oracle", "doubling", "x"),
    "--fit": ("first", "best", "next", "buddy", "x"),
    "--order": ("fcfs", "priority", ""),
    "--defaults": ("llm", "server"),
    "--arrivals": ("poisson", "gamma", "constant", "at-once"),
}
_SWITCHES = (
    "--no-prefix-caching", "--compaction", "--request-level", "--sort-by-length", "--no-memory-guard",
    "--no-chunked-prefill", "--no-async-scheduling", "--refuse-misfits", "--check", "--no-leap",
)  # fmt: skip


def arguments(rng: random.Random, seeds: Seeds) -> list[str]:
    """A command with one or two values that are hardly right."""
    match rng.randrange(10):
        case 0:
            return ["size", "--model", "Meta-Llama-3-8B", "--gpu", "H200", "--json", *_some(rng, (
                "--gpu-memory-utilization", "--block-size", "--kv-gib", "--max-num-batched-tokens", "--max-num-seqs",
                "--tensor-parallel-size", "--tokens",
            ))]  # fmt: skip
        case 1:
            return ["import", str(seeds.workloads[2]), "--json", *_some(rng, (
                "--num-requests", "--min-tokens", "--max-prompt-tokens", "--max-total-tokens", "--rate", "--burstiness",
                "--seed", "--chars-per-token",
            ))]  # fmt: skip
        case 2:
            return ["pack", "--num-requests", "5", "--json", *_some(rng, ("--row-tokens", "--batch-size", "--rate"))]
        case 3:
            film = _some(rng, ("--until", "--length", "--frames-per-second", "--max-mib"))
            return ["animate", str(seeds.recordings[0]), "-o", "a.html", *film]
        case 4:
            shot = rng.choice((["--at", _number(rng)], ["--size", rng.choice(("0x0", "1x1", "99999x1", "x", "80x"))]))
            return ["tui", str(seeds.recordings[0]), "--screenshot", "s.svg", *shot]
        case _:
            command = ["run", "--policy", rng.choice(("paged", "contiguous", "static")), "--json"]
            command += ["--num-requests", "4"]
            if rng.random() < 0.5:
                command.append("--refuse-misfits")
            for _ in range(rng.choice((1, 1, 2, 3))):
                command += _flag(rng)
            return command


def _flag(rng: random.Random) -> list[str]:
    match rng.randrange(4):
        case 0:
            name = rng.choice(tuple(_TEXTS))
            return [name, rng.choice(_TEXTS[name])]
        case 1:
            return [rng.choice(_SWITCHES)]
        case _:
            return _some(rng, _NUMBERS)


def _some(rng: random.Random, names: tuple[str, ...]) -> list[str]:
    return [rng.choice(names), _number(rng)]


def _number(rng: random.Random) -> str:
    value = rng.choice((*NASTY_NUMBERS, 3, 16, 100, 4096, 0.9, "9" * 300, "", "x"))
    return str(value)
