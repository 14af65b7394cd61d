"""Break every rule of the paged policy once and see which tests notice.

    python -m tests.conformance.mutate            a table in Markdown; exit code 1 if any mutation survives
    python -m tests.conformance.mutate --keep DIR leave the copies of the survivors in DIR: fuzz there for a workload

The ordinary conformance suite is run on a copy of the package in which one piece of source text was replaced.
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

from .mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_RUN_S = 60
"""A mutated engine may wait for ever; that is noticed too."""


def run(mutation: Mutation, copy: Path) -> Counter[str]:
    """Failed tests by test file, with `mutation` applied in the folder `copy`."""
    file = copy / "kvsim" / mutation.file
    file.write_text(mutation.apply(file.read_text(encoding="utf-8")), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVSIM_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance"]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Counter({"does not end": 1})
    failed = Counter(re.findall(r"^(?:FAILED|ERROR) \S*?test_(\w+)\.py", done.stdout, re.MULTILINE))
    if bool(failed) != (done.returncode == 1):
        raise RuntimeError(f"the suite could not be run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="where to leave the copies of mutations that nothing noticed")
    keep: Path | None = parser.parse_args().keep
    survivors = 0
    rows = ["| the engine ... | noticed by |", "|---|---|"]
    for number, mutation in enumerate(MUTATIONS):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            for name in ("kvsim", "tests"):
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", copy)
            failed = run(mutation, copy)
            if not failed:
                survivors += 1
                if keep is not None:
                    shutil.copytree(copy, keep / f"{number:02}", dirs_exist_ok=True)
        noticed = ", ".join(f"{count} {name}" for name, count in sorted(failed.items())) or "**nothing**"
        rows.append(f"| {mutation.rule} | {noticed} |")
        sys.stderr.write(rows[-1] + "\n")
    sys.stdout.write("\n".join([*rows, "", f"{len(MUTATIONS)} mutations, {survivors} survive.", ""]))
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
