"""Print the tables of docs/accuracy.md, every shipped recording against its simulation: benchmarks/accuracy.py"""

from __future__ import annotations

from functools import partial

from kvsim.calibration import calibrate_host
from kvsim.calibration.machines import pace_of
from kvsim.calibration.observed import observe
from kvsim.calibration.predict import counted_errors
from kvsim.errors import UsageError
from kvsim.experiments.validation import Validation, matching_profile, validate
from kvsim.profiles import Profile
from kvsim.recording import find, read, shipped_names

COLUMNS = {
    "throughput": "throughput",
    "TTFT, mean": "TTFT",
    "TPOT, mean": "TPOT",
    "end to end, mean": "end to end",
    "end to end, p99": "e2e p99",
    "KV occupancy, mean absolute error over time": "occupancy",
}
OTHER_HOSTS = {
    "hf-h200-granite-350m-heldout-batch32": "hf-h200-granite-350m-first-prefills",
    "hf-h200-granite-350m-heldout-sharegpt-batch8": "hf-h200-granite-350m-first-prefills",
    "hf-h200-llama-2-7b-heldout-batch32": "hf-h200-llama-2-7b-first-prefills",
    "hf-h200-llama-2-7b-heldout-sharegpt-batch8": "hf-h200-llama-2-7b-first-prefills",
    "hf-h200-llama-3-8b-heldout-batch32": "hf-h200-llama-3-8b-first-prefills",
    "hf-h200-llama-3-8b-heldout-sharegpt-batch8": "hf-h200-llama-3-8b-first-prefills",
    "vllm-h200-granite-350m-heldout-35": "vllm-h200-granite-350m-heldout-closed-96",
    "vllm-h200-granite-350m-heldout-closed-96": "vllm-h200-granite-350m-heldout-35",
    "vllm-h200-llama-2-7b-heldout-12": "vllm-h200-llama-2-7b-heldout-closed-32",
    "vllm-h200-granite-350m-other-gsm8k": "vllm-h200-granite-350m-other-closed-64",
    "vllm-h200-llama-2-7b-heldout-closed-32": "vllm-h200-llama-2-7b-heldout-12",
    "vllm-h200-llama-3-8b-other-closed-96": "vllm-h200-llama-3-8b-other-25",
    "vllm-h200-llama-3-8b-other-pressure": "vllm-h200-llama-3-8b-other-25",
    "vllm-h200-llama-3-8b-other-prefixes": "vllm-h200-llama-3-8b-other-25",
}
"""Recordings of machines that no profile was fitted on, and another one of the same machine."""


def table(rows: list[tuple[str, str, Validation]], first: str, second: str) -> None:
    """Print one line of errors for each of `rows`."""
    print(f"| {first} | {second} | " + " | ".join(COLUMNS.values()) + " | preemptions |")
    print("|---|---|" + "---:|" * (len(COLUMNS) + 1))
    for name, note, result in rows:
        found = {row.name: row for row in result.rows}
        cells = [f"{found[key].error:+.1f}{' %' if found[key].relative else ' pt'}" for key in COLUMNS]
        preemptions = found["preemptions"]
        counts = f"{preemptions.measured:.0f} → {preemptions.simulated:.0f}"
        print(f"| {name} | {note} | " + " | ".join(cells) + f" | {counts} |")


def profile_of(name: str) -> Profile | None:
    """The shipped profile for a recording, if there is one."""
    try:
        return matching_profile(read(find(name)))
    except UsageError:
        return None


def machines(profiles: dict[str, Profile]) -> None:
    """Print how fast every machine's host and GPU are beside the profile's."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, profile in profiles.items():
        if profile.engine == "vllm":
            of = (profile.model, observe(read(find(name))).machine, "served" if "served" in name else "in process")
            groups.setdefault(of, []).append(name)
    print("| model | machine | vLLM runs | recordings | host | GPU |")
    print("|---|---|---|---:|---:|---:|")
    for (model, machine, how), names in sorted(groups.items()):
        times = profiles[names[0]].times
        pace = pace_of([observe(read(find(name))) for name in names], partial(counted_errors, times))
        print(f"| {model} | {machine} | {how} | {len(names)} | {pace.host:.2f} | {pace.gpu:.3f} |")


def main() -> None:
    profiles = {name: profile for name in shipped_names() if (profile := profile_of(name)) is not None}
    rows = []
    for name, profile in profiles.items():
        try:
            result = validate(profile, read(find(name)))
        except UsageError as error:
            print(f"left out: {error}")
            continue
        rows.append((name, "**held out**" if result.held_out else "fitted", result))
    table(sorted(rows, key=lambda row: (not row[2].held_out, row[0])), "recording", "")
    print()
    rows = [
        (name, host, validate(calibrate_host(profiles[name], [read(find(host))]), read(find(name))))
        for name, host in OTHER_HOSTS.items()
    ]
    table(rows, "recording", "host by")
    print()
    machines(profiles)


if __name__ == "__main__":
    main()
