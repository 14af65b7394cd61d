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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.cases import HANG_S, Outcome, run_case, run_flag
from tests.fuzz.flags import every
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
    outcomes: Counter[str] = Counter()
    wrong, began_s, number = 0, time.monotonic(), options.first
    end = options.first + options.cases
    while number < end and time.monotonic() - began_s < 60 * options.minutes:
        for outcome in _run_chunk(number, min(_AT_ONCE, end - number), scratch, flags=options.flags):
            number = outcome["number"] + 1
            what = "wrong" if outcome["problem"] else f"exit {outcome['code']}"
            outcomes[f"{outcome['kind']}: {what}"] += 1
            if outcome["problem"]:
                wrong += 1
                command = " ".join(outcome["arguments"])
                print(f"case {number - 1}: {outcome['kind']}: kvsim {command}: {outcome['problem']}", flush=True)
    for name, count in sorted(outcomes.items()):
        print(f"{count:8,}  {name}")
    print(f"{outcomes.total():,} cases, {wrong:,} wrong, {time.monotonic() - began_s:,.0f} s")
    return wrong


def _run_chunk(first: int, num_cases: int, scratch: Path, *, flags: bool) -> list[dict[str, Any]]:
    """The outcomes of some cases in a process of their own, up to the first that ends it."""
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
            said = json.loads(line)
            if "begins" in said:
                begun = said["begins"]
            else:
                found.append(said)
        worker.kill()
    if len(found) < num_cases:
        problem = f"hangs, or ends the process: {worker.returncode}"
        found.append({"number": begun, "kind": "?", "arguments": [], "code": None, "problem": problem})
    return found


if __name__ == "__main__":
    main()
