"""Print the table of docs/accuracy.md, every shipped recording against its simulation: python benchmarks/accuracy.py"""

from __future__ import annotations

from kvsim.errors import UsageError
from kvsim.recording import find, read, shipped_names
from kvsim.validation import matching_profile, validate

COLUMNS = {
    "throughput": "throughput",
    "TTFT, mean": "TTFT",
    "TPOT, mean": "TPOT",
    "end to end, mean": "end to end",
    "end to end, p99": "e2e p99",
    "KV occupancy, mean absolute error over time": "occupancy",
}


def main() -> None:
    print("| recording | | " + " | ".join(COLUMNS.values()) + " | preemptions |")
    print("|---|---|" + "---:|" * (len(COLUMNS) + 1))
    for name in sorted(shipped_names(), key=lambda name: ("heldout" not in name, name)):
        recording = read(find(name))
        try:
            result = validate(matching_profile(recording), recording)
        except UsageError:
            continue
        rows = {row.name: row for row in result.rows}
        cells = [f"{rows[key].error:+.1f}{' %' if rows[key].relative else ' pt'}" for key in COLUMNS]
        preemptions = rows["preemptions"]
        counts = f"{preemptions.measured:.0f} → {preemptions.simulated:.0f}"
        kind = "**held out**" if result.held_out else "fitted"
        print(f"| {name} | {kind} | " + " | ".join(cells) + f" | {counts} |", flush=True)


if __name__ == "__main__":
    main()
