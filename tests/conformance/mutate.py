"""Break every rule of the engine once and see which tests notice, interpreted and compiled.

    python -m tests.conformance.mutate                      a table in Markdown; exit code 1 if any mutation survives
    python -m tests.conformance.mutate --engine interpreted only in this way; compiled, each is compiled first
    python -m tests.conformance.mutate --first              only the first test that notices
    python -m tests.conformance.mutate --keep DIR           leave the copies of the survivors in DIR: fuzz there

The suites of conformance, of the engine and of simulation are run on a copy of the package in which one rule is broken:
their tests that run with every change, so that no mutation is noticed by slow tests alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .modes import NAMES
from .mutations import MUTATIONS, Mutation, parse_rooms

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_RUN_S = {"interpreted": 900, "compiled": 1_200}
LONGEST_TEST_S = 100
"""A mutated engine may wait for ever: the first test that does ends the suite, and that is noticed too."""
SUITES = ("tests/conformance", "tests/engine", "tests/simulation")
AIM = "tests/conformance/test_mutations.py"
"""Tests that mutations apply to the source, which the one that was applied does not any more."""
LIVE = "as_vllm_does or a_recorded_vllm"
"""Tests that wait for vLLM's own engine, which takes longer to start than the golden workloads take."""
IN_GOLDEN = (
    *("block_pool", "prefix_cache", "kv_cache", "scheduler", "waiting_queue", "clock", "prefix_keys", "oracle"),
    *("running", "groups", "prefix_hits", "tiered", "offload", "host_pool"),
)
"""Modules whose rules the golden workloads show: that suite goes first."""


def run(mutation: Mutation, copy: Path, engine: str, *, first: bool) -> Counter[str]:
    """Failed tests by test file, with `mutation` applied in the folder `copy` and the engine run in this way."""
    package = copy / "kvsim"
    mutated = mutation.apply(parse_rooms(package))
    for path, text in mutated.items():
        (package / path).write_text(text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVSIM_")}
    suites = SUITES if any(Path(path).stem in IN_GOLDEN for path in mutated) else SUITES[::-1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *("-o", f"faulthandler_timeout={LONGEST_TEST_S}", "-o", "faulthandler_exit_on_timeout=true"),
        f"--ignore={AIM}",
        *("-k", f"not ({LIVE})"),
        *("-m", "not slow"),
        *suites,
        *["-x"] * first,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1", "KVSIM_TEST_ENGINE": engine},
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S[engine],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Counter({"does not end": 1})
    failed = Counter(re.findall(r"^(?:FAILED|ERROR) \S*?test_(\w+)\.py", done.stdout, re.MULTILINE))
    if "Timeout (" in done.stderr:
        return failed + Counter({"does not end": 1})
    if done.returncode < 0:  # compiled code writes where it should not
        return failed + Counter({f"signal {-done.returncode}": 1})
    if bool(failed) != (done.returncode == 1) or "ERROR collecting" in done.stdout:
        raise RuntimeError(f"the suite could not be run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="where to leave the copies of mutations that nothing noticed")
    parser.add_argument("--engine", action="append", choices=NAMES, help="only in this way")
    parser.add_argument("--first", action="store_true", help="stop at the first test that notices")
    parser.add_argument("--only", default="", help="mutations whose rule has this in it")
    arguments = parser.parse_args()
    engines = arguments.engine or NAMES
    survivors = 0
    rows = [f"| the engine ... | {' | '.join(engines)} |", "|---|" + "---|" * len(engines)]
    chosen = [(number, mutation) for number, mutation in enumerate(MUTATIONS) if arguments.only in mutation.rule]
    for number, mutation in chosen:
        noticed = []
        for engine in engines:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder)
                for name in ("kvsim", "tests"):
                    shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                shutil.copy(ROOT / "pyproject.toml", copy)
                for name in ("traces", "examples"):
                    (copy / name).symlink_to(ROOT / name)
                failed = run(mutation, copy, engine, first=arguments.first)
                if not failed:
                    survivors += 1
                    if arguments.keep is not None:
                        shutil.copytree(copy, arguments.keep / f"{number:02}-{engine}", dirs_exist_ok=True)
            noticed.append(", ".join(f"{count} {name}" for name, count in sorted(failed.items())) or "**nothing**")
        rows.append(f"| {mutation.rule} | {' | '.join(noticed)} |")
        sys.stderr.write(rows[-1] + "\n")
    sys.stdout.write("\n".join([*rows, "", f"{len(chosen)} mutations, {survivors} survive.", ""]))
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
