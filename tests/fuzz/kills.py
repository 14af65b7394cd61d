"""Kill every command that writes, at random moments: `python -m tests.fuzz.kills --kills 200`.

Afterwards what it writes is as it was before, or whole; and when the command has run once more, to its end, nothing
hidden stands beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.seeds import make_seeds

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "--workload", "paged", "-o", "out"),
    "compare": ("compare", "--workload", "paged", "--max-model-len", "64", "-o", "out"),
    "import": ("import", "paged", "-o", "out"),
    "export": ("export", "paged", "-o", "out", "--overwrite"),
    "export csv": ("export", "paged", "--to", "csv", "-o", "out", "--overwrite"),
    "plot": ("plot", "queue", "paged", "-o", "out.png"),
    "animate": ("animate", "paged", "-o", "out.html"),
    "report": ("report", "paged", "-o", "out"),
    "screenshot": ("tui", "paged", "--screenshot", "out.svg", "--size", "80x24"),
    "sweep": ("sweep", "--workload", "paged", "--vary", "num-blocks=30,40", "-o", "out"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="of each command")
    parser.add_argument("--command", choices=COMMANDS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    began_s, num_killed, wrong = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="kvsim-kills-") as scratch:
        folder = Path(scratch)
        make_seeds(folder)
        for name in options.command or COMMANDS:
            problems, killed = kill_many(COMMANDS[name], folder / name.replace(" ", "-"), folder, options.kills, rng)
            num_killed += killed
            wrong += len(problems)
            print(f"{name}: {killed} kills, {len(problems)} wrong", *problems[:5], sep="\n  ", flush=True)
            if time.monotonic() - began_s > 60 * options.minutes:
                break
    print(f"{num_killed:,} kills, {wrong} wrong, {time.monotonic() - began_s:,.0f} s")
    sys.exit(bool(wrong))


def kill_many(
    arguments: Sequence[str], folder: Path, seeds: Path, num_kills: int, rng: random.Random
) -> tuple[list[str], int]:
    """Kill a command so often, each time with an earlier result in place or without; return what is wrong."""
    folder.mkdir()
    (folder / "paged").symlink_to(seeds / "paged")
    target = folder / arguments[arguments.index("--screenshot" if "--screenshot" in arguments else "-o") + 1]
    took_s = -time.monotonic()
    if _run(arguments, folder) != 0:
        return [f"kvsim {' '.join(arguments)} fails by itself"], 0
    took_s += time.monotonic()
    whole = digest(target)
    beside = _others(folder)
    problems = []
    for nth in range(num_kills):
        is_there = nth % 2 == 0
        if not is_there:
            _remove(target)
        # Most of a run reads and computes; what is dangerous comes at its end.
        _run(arguments, folder, kill_after_s=took_s * rng.triangular(0.2, 1.1, 0.95))
        found = digest(target)
        if found not in ((whole,) if is_there else (whole, "")):
            problems.append(f"kill {nth}: {target.name} is neither what it was nor whole")
        if _run(arguments, folder) != 0 or digest(target) != whole:
            problems.append(f"kill {nth}: the next run does not put it right")
        if _others(folder) != beside:
            problems.append(f"kill {nth}: left {sorted(_others(folder) - beside)}")
    return problems, num_kills


def _run(arguments: Sequence[str], folder: Path, kill_after_s: float | None = None) -> int:
    command = [sys.executable, "-m", "kvsim", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return process.wait(timeout=kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def digest(target: Path) -> str:
    """What stands at `target`, with all of its files; empty where nothing does."""
    if not target.exists():
        return ""
    files = sorted(file for file in target.rglob("*") if file.is_file()) if target.is_dir() else [target]
    parts = [f"{file.relative_to(target)}\0".encode() + file.read_bytes() for file in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _others(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def _remove(target: Path) -> None:
    for entry in sorted(target.rglob("*"), reverse=True) if target.is_dir() else []:
        entry.rmdir() if entry.is_dir() else entry.unlink()
    target.rmdir() if target.is_dir() else target.unlink()


if __name__ == "__main__":
    main()
