"""Tables of simulations on the pages of policies and of conformance: benchmarks/page_tables.py [--write]

Each row is `kvsim run` with the flags beside it; step times decide all of them. Prints the tables, and puts them into
docs with --write.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pages import with_rows

DOCS = Path(__file__).parents[1] / "docs"
Run = Mapping[str, Any]


def pool(run: Run, state: str) -> str:
    return f"{run['waste']['pool_percent'][state]:.1f}"


def states(run: Run) -> list[str]:
    names = ("token", "reserved", "internal", "padding", "external", "cached", "free")
    return [*(pool(run, name) for name in names), f"{run['mean_batch']:.1f}"]


def extents(run: Run) -> list[str]:
    shares = [pool(run, name) for name in ("token", "reserved", "internal", "external")]
    counts = (f"{run['num_preemptions']:,}", f"{run['num_fragmented_requests']:,}")
    return [*shares, f"{run['mean_batch']:.1f}", *counts]


def swapped(run: Run) -> list[str]:
    copied = run["swapped_out_bytes"] / (1 << 30)
    return [
        f"{run['num_preemptions']:,}",
        f"{run['vain_tokens']:,}",
        f"{copied:.2f}" if copied else "0",
        f"{run['duration_s']:.2f}",
        f"{run['output_tokens_per_s']:,.0f}",
        f"{run['ttft_s']['mean']:.2f}",
    ]


def drafted(run: Run) -> list[str]:
    return [
        f"{run['num_steps']:,}",
        f"{run['num_preemptions']:,}",
        f"{run['duration_s']:.2f}",
        f"{run['output_tokens_per_s']:,.0f}",
        f"{run['waste']['pool_percent']['reserved']:.2f}",
    ]


class Table(NamedTuple):
    """A table of a page."""

    page: str
    head: str
    """The beginning of its first line."""
    cells: Callable[[Run], list[str]]
    rows: Mapping[str, str]
    """The first cells of each row, and the flags of its run."""


_CONTIGUOUS = (
    "--reserve max",
    "--reserve limit",
    "--reserve pow2",
    "--reserve oracle",
    "--reserve oracle --fit buddy",
    "--reserve oracle --compaction",
    "--reserve oracle --request-level",
    "--reserve doubling",
    "--reserve doubling --growth fail",
)
_EAGLE = '{"method": "eagle", "model": "a draft model", "num_speculative_tokens": %s}'
_DRAFTED = (("0", ""), ("3", "0"), ("3", "0.5"), ("3", "0.7"), ("3", "0.9"), ("5", "0"), ("5", "0.7"))
TABLES = (
    Table(
        "policies/README.md",
        "| | tokens | reserved |",
        states,
        {
            "`paged`": "--policy paged",
            "`contiguous --reserve oracle`": "--policy contiguous --reserve oracle",
            "`contiguous --reserve max`": "--policy contiguous --reserve max",
            "`static`": "--policy static",
        },
    ),
    Table(
        "policies/contiguous.md",
        "| 400 requests, see",
        extents,
        {f"`{flags}`": f"--policy contiguous {flags}" for flags in _CONTIGUOUS},
    ),
    Table(
        "conformance.md",
        "| preempted requests are |",
        swapped,
        {
            "recomputed": "--no-prefix-caching",
            "swapped, 0.25 GiB of host memory": "--no-prefix-caching --swap-gib 0.25",
            "swapped, 1 GiB or more": "--no-prefix-caching --swap-gib 1",
            "swapped, 25 GB/s": "--no-prefix-caching --swap-gib 1 --swap-gb-per-s 25",
            "swapped, 10 GB/s": "--no-prefix-caching --swap-gib 1 --swap-gb-per-s 10",
            "swapped, 2 GB/s": "--no-prefix-caching --swap-gib 1 --swap-gb-per-s 2",
        },
    ),
    Table(
        "drafts.md",
        "| drafted | acceptance |",
        drafted,
        {
            f"{drafts} | {rate}": "--no-prefix-caching"
            + (f" --speculative-config '{_EAGLE % drafts}' --acceptance {rate}" if rate else "")
            for drafts, rate in _DRAFTED
        },
    ),
)
STATED = {
    "swapping with the prefix cache (conformance.md)": ("", "--swap-gib 1"),
}
"""Runs whose figures stand in a sentence."""


def run(flags: str) -> Run:
    command = [sys.executable, "-m", "kvsim", "run", *shlex.split(flags), "--no-band", "--json"]
    found: Run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    for table in TABLES:
        rows = [f"| {label} | {' | '.join(table.cells(run(flags)))} |" for label, flags in table.rows.items()]
        print("", table.head, *rows, sep="\n", flush=True)
        if "--write" in sys.argv:
            file = DOCS / table.page
            file.write_text(with_rows(file.read_text(encoding="utf-8"), table.head, rows), encoding="utf-8")
    for label, several in STATED.items():
        print(f"\n{label}:", *(" | ".join(swapped(run(flags))) for flags in several), sep="\n")


if __name__ == "__main__":
    main()
