"""Hit rates of kvsim's fleets beside those of NVIDIA Dynamo's replay 1.4.2, for `docs/fleets.md`.

Run `python benchmarks/dynamo_replay.py PYTHON`, where PYTHON is the interpreter of an environment with
`ai-dynamo==1.4.2`. Both read the same trace in Mooncake's format: prompts behind one of 60 prefixes of 2,048 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NUM_SERVERS, NUM_BLOCKS, BLOCK_SIZE = 4, 4096, 16
TRACE_BLOCK, PREFIX_BLOCKS, NUM_PREFIXES, NUM_REQUESTS = 512, 4, 60, 1000
LIMITS = {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
LOADS = ((8.0, 1.0), (40.0, 1.0), (40.0, 4.0))
"""Requests a second, and how many times as fast Dynamo's replay computes."""
ROUTES = (("round-robin", "round_robin", {}), ("dynamo", "kv_router", {}),
          ("prefix", "kv_router", {"router_track_active_blocks": False}))  # fmt: skip


def write_trace(path: Path, rate_per_s: float) -> None:
    """Write the requests: Poisson arrivals, tails of 100 to 900 tokens, answers of 50 to 250."""
    draw, at_s, fresh = random.Random(1), 0.0, 100_000
    with path.open("w", encoding="utf-8") as file:
        for _ in range(NUM_REQUESTS):
            at_s += draw.expovariate(rate_per_s)
            first = draw.randrange(NUM_PREFIXES) * PREFIX_BLOCKS
            tail, output = draw.randint(100, 900), draw.randint(50, 250)
            num_fresh = -(-tail // TRACE_BLOCK)
            hashes = [*range(first, first + PREFIX_BLOCKS), *range(fresh, fresh + num_fresh)]
            fresh += num_fresh
            line = {"timestamp": round(at_s * 1000), "input_length": PREFIX_BLOCKS * TRACE_BLOCK + tail,
                    "output_length": output, "hash_ids": hashes}  # fmt: skip
            file.write(json.dumps(line) + "\n")


def by_dynamo(python: str, trace: Path, mode: str, router: dict[str, Any], speedup: float) -> dict[str, float]:
    """Return hit rate, mean TTFT and mean TPOT of Dynamo's replay."""
    report = trace.with_suffix(".json")
    engine = {"num_gpu_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "enable_prefix_caching": True,
              "speedup_ratio": speedup, **LIMITS}  # fmt: skip
    command = [python, "-m", "dynamo.replay", str(trace), "--trace-format", "mooncake", "--replay-mode", "offline",
               "--trace-block-size", str(TRACE_BLOCK), "--num-workers", str(NUM_SERVERS), "--router-mode", mode,
               "--extra-engine-args", json.dumps(engine), "--report-json", str(report)]  # fmt: skip
    command += ["--router-config", json.dumps(router)] if router else []
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"DYN_LOG": "error"})
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found = json.loads(report.read_text(encoding="utf-8"))
    return {"hits": found["first_admission_prefix_cache_reused_ratio"], "ttft_s": found["mean_ttft_ms"] / 1e3,
            "tpot_s": found["mean_tpot_ms"] / 1e3}  # fmt: skip


def by_kvsim(trace: Path, route: str) -> dict[str, float]:
    """Return the same figures of `kvsim run`."""
    command = [sys.executable, "-m", "kvsim", "run", "--workload", str(trace), "--replicas", str(NUM_SERVERS),
               "--route", route, "--num-blocks", str(NUM_BLOCKS + 1), "--model", "Llama-3-8B", "--gpu", "H200",
               "--json"]  # fmt: skip
    for name, value in LIMITS.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    fleet = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["fleet"]
    return {"hits": fleet["prefix_hit_rate"], "ttft_s": fleet["ttft_s"]["mean"], "tpot_s": fleet["tpot_s"]["mean"]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="interpreter of an environment with ai-dynamo 1.4.2")
    python = parser.parse_args().python
    print("| requests a second | route | hits: kvsim | Dynamo's replay | TPOT: kvsim | Dynamo's replay |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for rate_per_s, speedup in LOADS:
            trace = Path(folder) / "trace.jsonl"
            write_trace(trace, rate_per_s)
            for route, mode, router in ROUTES:
                ours, theirs = by_kvsim(trace, route), by_dynamo(python, trace, mode, router, speedup)
                faster = f", its steps {speedup:g} times as fast" if speedup > 1 else ""
                cells = [f"{rate_per_s:g}{faster}", f"`{route}`", f"{100 * ours['hits']:.1f} %"]
                cells += [f"{100 * theirs['hits']:.1f} %"]
                cells += [f"{1e3 * each['tpot_s']:.1f} ms" for each in (ours, theirs)]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
