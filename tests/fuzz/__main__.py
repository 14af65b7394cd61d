"""Run many cases: `python -m tests.fuzz --cases 100000`. Everything that goes wrong is printed with its number."""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.cases import run_case, run_flag
from tests.fuzz.flags import every
from tests.fuzz.judging import HANG_S, Outcome
from tests.fuzz.seeds import Seeds, load_seeds, make_seeds, save_seeds

_AT_ONCE = 400
"""Cases of one process: what a case leaves in memory does not count against those after it for ever."""
_MOST_ADDRESSES = 6 << 30
"""What a process may map; Python, numpy and pyarrow map two gigabytes before they read anything."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no more cases after so many")
    parser.add_argument("--flags", action="store_true", help="every flag with every value, once, and nothing else")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", type=int, help="one case, whose files are kept in ./fuzz-case")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        _work(run_flag if options.flags else run_case, options.first, options.cases, load_seeds(options.worker))
        return
    with tempfile.TemporaryDirectory(prefix="kvsim-fuzz-") as scratch:
        seeds = make_seeds(Path(scratch))
        if options.only is not None:
            run = run_flag if options.flags else run_case
            print(run(options.only, seeds, Path("fuzz-case").absolute()))
            return
        save_seeds(seeds, Path(scratch))
        if options.flags:
            options.cases = min(options.cases, len(every(seeds)) - options.first)
        wrong = _run_many(options, Path(scratch))
    sys.exit(bool(wrong))


def _work(run: Callable[[int, Seeds, Path], Outcome], first: int, num_cases: int, seeds: Seeds) -> None:
    """Run cases one after the other, and say before and after each what is going on."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    say = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    with tempfile.TemporaryDirectory(prefix="kvsim-case-") as folder:
        for number in range(first, first + num_cases):
            say.write(json.dumps({"begins": number}) + "\n")
            say.write(json.dumps({"number": number, **asdict(run(number, seeds, Path(folder, "case")))}) + "\n")


def _run_many(options: argparse.Namespace, scratch: Path) -> int:
    outcomes, wrong, began_s = Counter[str](), 0, time.monotonic()
    end, until_s = options.first + options.cases, began_s + 60 * options.minutes
    parts = [(first, min(first + _AT_ONCE, end)) for first in range(options.first, end, _AT_ONCE)]
    with ThreadPoolExecutor(options.jobs) as pool:
        under_way = [pool.submit(_run_part, *part, scratch, until_s, flags=options.flags) for part in parts]
        for outcome in (outcome for done in as_completed(under_way) for outcome in done.result()):
            what = "wrong" if outcome["problem"] else f"exit {outcome['code']}"
            outcomes[f"{outcome['kind']}: {what}"] += 1
            if outcome["problem"]:
                wrong += 1
                command = ascii(" ".join(outcome["arguments"]))
                print(f"case {outcome['number']}: {outcome['kind']}: {command}: {outcome['problem']!a}", flush=True)
    for name, count in sorted(outcomes.items()):
        print(f"{count:8,}  {name}")
    print(f"{outcomes.total():,} cases, {wrong:,} wrong, {time.monotonic() - began_s:,.0f} s")
    return wrong


def _run_part(first: int, end: int, scratch: Path, until_s: float, *, flags: bool) -> list[dict[str, Any]]:
    """The outcomes of the cases from `first` to below `end`; those that end their process are gone on behind."""
    found: list[dict[str, Any]] = []
    while first < end and time.monotonic() < until_s:
        found += _run_chunk(first, end - first, scratch, until_s, flags=flags)
        first = found[-1]["number"] + 1 if found else end
    return found


def _run_chunk(first: int, num_cases: int, scratch: Path, until_s: float, *, flags: bool) -> list[dict[str, Any]]:
    """The outcomes of some cases in a process of their own, up to the first that ends it, or to a moment."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--worker",
        str(scratch),
        "--first",
        str(first),
        "--cases",
        str(num_cases),
        *(["--flags"] if flags else []),
    ]
    found: list[dict[str, Any]] = []
    begun = first
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        assert worker.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(worker.stdout, selectors.EVENT_READ)
        while selector.select(timeout=10 * HANG_S):
            line = worker.stdout.readline()
            if not line:
                break
            try:
                said = json.loads(line)
            except ValueError:  # another library's words, or half a line of a process that has ended
                continue
            if "begins" in said:
                begun = said["begins"]
            else:
                found.append(said)
            if time.monotonic() > until_s:
                worker.kill()
                return found
        worker.kill()
    if len(found) < num_cases:
        problem = f"hangs, or ends the process: {worker.returncode}"
        found.append({"number": begun, "kind": "?", "arguments": [], "code": None, "problem": problem})
    return found


if __name__ == "__main__":
    main()
