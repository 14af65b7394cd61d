"""Every shipped recording with a profile against its simulation: benchmarks/accuracy.py [--write]

Prints the tables of the second part of docs/accuracy.md, and puts them there with --write.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from statistics import geometric_mean

from pages import with_rows

from kvsim.calibration import calibrate_host
from kvsim.calibration.machines import pace_of
from kvsim.calibration.observed import observe, observe_on
from kvsim.calibration.predict import scaled_errors
from kvsim.errors import UsageError
from kvsim.experiments.validation import Validation, matching_profile, times_of, validate
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, is_in_process
from kvsim.profiles import Profile
from kvsim.recording import find, read, shipped_names

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
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


def table(rows: list[tuple[str, str, Validation]], first: str, second: str) -> list[str]:
    """One line of errors for each of `rows`, below the head."""
    lines = [
        f"| {first} | {second} | " + " | ".join(COLUMNS.values()) + " | preemptions |",
        "|---|---|" + "---:|" * (len(COLUMNS) + 1),
    ]
    for name, note, result in rows:
        found = {row.name: row for row in result.rows}
        cells = [f"{found[key].error:+.1f}{' %' if found[key].relative else ' pt'}" for key in COLUMNS]
        preemptions = found["preemptions"]
        counts = f"{preemptions.measured:.0f} → {preemptions.simulated:.0f}"
        lines.append(f"| {short(name)} | {short(note)} | " + " | ".join(cells) + f" | {counts} |")
    return lines


def short(name: str) -> str:
    """All of them are of an H200."""
    return name.replace("-h200-", "-…-")


def profile_of(name: str) -> Profile | None:
    """The shipped profile for a recording, if there is one."""
    try:
        return matching_profile(read(find(name)))
    except UsageError:
        return None


def machines(profiles: dict[str, Profile]) -> list[str]:
    """How fast every machine's host and GPU are beside the profile's; prints the hosts as `kvsim.machines.hosts` has
    them, the mean over a machine's models and engines.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, profile in profiles.items():
        how = "in process" if is_in_process(read(find(name)).meta) else "served"
        of = (profile.model, observe(read(find(name))).machine, f"{profile.engine}, {how}")
        groups.setdefault(of, []).append(name)
    lines = ["| model | machine | runs | recordings | host | GPU |", "|---|---|---|---:|---:|---:|"]
    hosts: dict[str, list[float]] = {}
    for (model, machine, how), names in sorted(groups.items()):
        times = profiles[names[0]].times
        recordings = [read(find(name)) for name in names]
        observed = [observe_on(card_of(find_gpu(item.meta.gpu)), item) for item in recordings]
        pace = pace_of(observed, partial(scaled_errors, times))
        hosts.setdefault(machine, []).append(pace.host)
        lines.append(
            f"| {model.rpartition('/')[2]} | {machine} | {how} | {len(names)} | {pace.host:.2f} | {pace.gpu:.3f} |"
        )
    for machine, found in sorted(hosts.items(), key=lambda item: geometric_mean(item[1])):
        print(f'"{machine}": {geometric_mean(found):.2f},')
    return lines


def main() -> None:
    profiles = {name: profile for name in shipped_names() if (profile := profile_of(name)) is not None}
    rows = []
    for name in profiles:
        try:
            recording = read(find(name))
            result = validate(times_of(recording), recording)
        except UsageError as error:
            print(f"left out: {error}")
            continue
        rows.append((name, "**held out**" if result.held_out else "fitted", result))
    tables = [table(sorted(rows, key=lambda row: (not row[2].held_out, row[0])), "recording", "")]
    rows = [
        (name, host, validate(calibrate_host(profiles[name], [read(find(host))]), read(find(name))))
        for name, host in OTHER_HOSTS.items()
    ]
    tables += [table(rows, "recording", "host by"), machines(profiles)]
    page = PAGE.read_text(encoding="utf-8")
    for lines in tables:
        print("", *lines, sep="\n")
        page = with_rows(page, lines[0], lines[2:])
    if "--write" in sys.argv:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
