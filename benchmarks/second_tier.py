"""What host memory is worth with two public traces: benchmarks/second_tier.py MOONCAKE RAGPULSE [--write]

For docs/second-tier.md: MOONCAKE is the conversation trace of Mooncake (FAST'25), RAGPULSE the first file of RAGPulse.
Prints the tables of simulations and the figures that the text states; --write puts the tables and figures there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pages import with_rows

PAGE = Path(__file__).parents[1] / "docs" / "second-tier.md"
MOONCAKE = (
    *("--model", "Llama-3.1-8B", "--gpu", "H200"),  # Llama-3-8B, with the context that these prompts need
    *("--num-requests", "1500", "--rate", "1.5", "--kv-gib", "100"),
    *("--max-num-batched-tokens", "8192", "--max-num-seqs", "256", "--max-model-len", "131072"),
)
RAGPULSE = ("--num-requests", "3000", "--rate", "20", "--kv-gib", "20")
ROOMY = ("--num-requests", "3000", "--rate", "5", "--kv-gib", "100")
WAYS = {
    "asynchronous, as by default": (),
    "`--watermark 0.01`": ("--watermark", "0.01"),
    "`--watermark 0.02`": ("--watermark", "0.02"),
    "`--watermark 0.05`": ("--watermark", "0.05"),
    "`--no-async-scheduling`": ("--no-async-scheduling",),
    "`--max-num-seqs 48`": ("--max-num-seqs", "48"),
}
"""Rows of the table of what avoids preemptions, and the flags of each."""

Point = Mapping[str, Any]


def sweep(workload: str, settings: Sequence[str], sizes: Sequence[int], figure: Path | None = None) -> list[Point]:
    """What `kvsim sweep` says of one load with each of so many GiB of host memory."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = () if figure is None else ("--figure", str(figure), "--overwrite")
        vary = f"kv-offloading-size={','.join(map(str, sizes))}"
        kvsim = [sys.executable, "-m", "kvsim", "sweep", "--vllm", "0.25.1"]
        command = [*kvsim, "--workload", workload, *settings, "--vary", vary]
        done = subprocess.run(
            [*command, "-o", f"{folder}/points.parquet", *drawn, "--json"], check=True, capture_output=True, text=True
        )
    points = json.loads(done.stdout)["points"]
    return sorted(points, key=lambda point: float(point["kv_offloading_size"]))


def size_words(point: Point) -> str:
    gib = point["kv_offloading_size"]
    return f"{gib:,.0f}" if gib else "none"


def mooncake_row(point: Point) -> str:
    return (
        f"| {size_words(point)} | {point['hit_percent']:.1f} % | {point['ttft_s.mean']:.1f} | "
        f"{point['ttft_s.p99']:.1f} | {point['num_preemptions']:,} |"
    )


def ragpulse_row(point: Point) -> str:
    return (
        f"| {size_words(point)} | {point['hit_percent']:.1f} % | {point['ttft_s.mean']:.1f} | "
        f"{point['output_tokens_per_s']:,.0f} | {point['num_preemptions']:,} |"
    )


def way_row(name: str, point: Point) -> str:
    return (
        f"| {name} | {point['num_preemptions']:,} | {point['output_tokens_per_s']:,.0f} | "
        f"{point['ttft_s.mean']:.1f} | {1e3 * point['tpot_s.mean']:.1f} |"
    )


def figure_file(name: str, *, write: bool) -> Path | None:
    return PAGE.parent / "images" / f"second-tier-{name}.svg" if write else None


def main() -> None:
    mooncake, ragpulse = sys.argv[1:3]
    write = "--write" in sys.argv
    tables = {
        "| host memory, GiB | prompt tokens hit | mean TTFT, s | 99th": [
            mooncake_row(point)
            for point in sweep(
                mooncake, MOONCAKE, (0, 16, 64, 128, 256, 512, 1024), figure_file("mooncake", write=write)
            )
        ]
    }
    without, *others = sweep(ragpulse, RAGPULSE, (0, 1, 4, 16, 64), figure_file("ragpulse", write=write))
    tables["| host memory, GiB | prompt tokens hit | mean TTFT, s | output"] = [
        ragpulse_row(point) for point in (without, *others)
    ]
    ways = {name: sweep(ragpulse, (*RAGPULSE, *flags), (16,))[0] for name, flags in WAYS.items()}
    tables["| | preemptions | output tokens/s | mean TTFT, s | mean TPOT"] = [
        way_row(name, point) for name, point in (*ways.items(), ("no second tier", without))
    ]
    page = PAGE.read_text(encoding="utf-8")
    for head, rows in tables.items():
        print("", head, *rows, sep="\n", flush=True)
        page = with_rows(page, head, rows)
    if write:
        PAGE.write_text(page, encoding="utf-8")
    for name, flags in {
        "16 GB/s": ("--kv-offloading-gb-per-s", "16"),
        "ARC": ("--kv-offloading-eviction", "arc"),
        "answers": ("--kv-offloading-outputs",),
        "watermark 0.01": ("--watermark", "0.01"),
    }.items():
        for point in sweep(mooncake, (*MOONCAKE, *flags), (256, 512)):
            print(f"Mooncake, {name}: {mooncake_row(point)}", flush=True)
    for point in sweep(ragpulse, ROOMY, (0, 16, 64)):
        print(f"RAGPulse with room: TTFT {1e3 * point['ttft_s.mean']:.1f} ms, {size_words(point)} GiB", flush=True)


if __name__ == "__main__":
    main()
