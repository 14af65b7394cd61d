"""Kill every command that writes, at random moments: `python -m tests.fuzz.kills --kills 200`.

Afterwards what it writes is as it was before, or whole; and when the command has run once more, to its end, nothing
hidden stands beside it.

Every command is a process of its own, forked from one that has imported everything: to start Python 10,000 times would
take most of a day.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from tests.fuzz.seeds import make_seeds

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "--workload", "paged", "-o", "out"),
    "run replicas": ("run", "--workload", "paged", "--replicas", "2", "-o", "out"),
    "compare": ("compare", "--workload", "paged", "--max-model-len", "64", "-o", "out"),
    "import": ("import", "paged", "-o", "out"),
    "export": ("export", "paged", "-o", "out", "--overwrite"),
    "export csv": ("export", "paged", "--to", "csv", "-o", "out", "--overwrite"),
    "export mooncake": ("export", "paged", "--to", "mooncake", "-o", "out", "--overwrite"),
    "plot": ("plot", "queue", "paged", "-o", "out.png"),
    "plot all": ("plot", "--all", "paged", "-o", "out"),
    "animate": ("animate", "paged", "-o", "out.html"),
    "animate gif": ("animate", "paged", "-o", "out.gif"),
    "report": ("report", "paged", "-o", "out"),
    "explain": ("explain", "1", "--markdown", "-o", "out"),
    "fit": ("fit", "--rate", "2", "--prompt-tokens", "50", "--output-tokens", "5", "--num-requests", "20",
            "--figure", "out.png"),
    "calibrate": ("calibrate", "hf-h200-granite-350m-batch64-static", "hf-h200-granite-350m-heldout-batch32-static",
                  "-o", "out.toml"),
    "screenshot": ("tui", "paged", "--screenshot", "out.svg", "--size", "80x24"),
    "sweep": ("sweep", "--workload", "paged", "--vary", "num-blocks=30,40", "--jobs", "1", "-o", "out"),
    "sweep figure": ("sweep", "--workload", "paged", "--vary", "num-blocks=30,40", "--jobs", "1", "-o", "table",
                     "--figure", "out.png"),
}  # fmt: skip
_FILE_BY_FILE = ("plot all",)
"""Commands that write files into a folder, of which a killed one may leave some, each of them whole."""
_OUTPUTS = ("--screenshot", "--figure", "-o")
_LOADED = (
    "kvsim.experiments.bands", "kvsim.calibration", "kvsim.cli.show", "kvsim.exporters", "kvsim.fitting", "kvsim.plots",
    "kvsim.recording.parquet", "kvsim.plots.report", "kvsim.simulation", "kvsim.experiments.sweeps",
    "matplotlib.backends.backend_agg", "rich.progress",
)  # fmt: skip


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
        if _in_a_fork(lambda: make_seeds(folder)):  # whose threads a fork would not have
            raise SystemExit("the seeds cannot be made")
        for name in options.command or COMMANDS:
            problems, killed = kill_many(name, folder / name.replace(" ", "-"), folder, options.kills, rng)
            num_killed += killed
            wrong += len(problems)
            print(f"{name}: {killed} kills, {len(problems)} wrong", *problems[:5], sep="\n  ", flush=True)
            if time.monotonic() - began_s > 60 * options.minutes:
                break
    print(f"{num_killed:,} kills, {wrong} wrong, {time.monotonic() - began_s:,.0f} s")
    sys.exit(bool(wrong))


def kill_many(name: str, folder: Path, seeds: Path, num_kills: int, rng: random.Random) -> tuple[list[str], int]:
    """Kill a command so often, each time with an earlier result in place or without; return what is wrong."""
    arguments = COMMANDS[name]
    folder.mkdir()
    (folder / "paged").symlink_to(seeds / "paged")
    target = folder / next(arguments[arguments.index(flag) + 1] for flag in _OUTPUTS if flag in arguments)
    for module in _LOADED:
        import_module(module)
    took_s = -time.monotonic()
    if _run(arguments, folder) != 0:
        return [f"kvsim {' '.join(arguments)} fails by itself"], 0
    took_s += time.monotonic()
    whole, all_files = digest(target), files_of(target)
    beside = _others(folder)
    problems = []
    for nth in range(num_kills):
        is_there = nth % 2 == 0
        if not is_there:
            for written in beside - {"paged"}:
                _remove(folder / written)
        # Most of a run reads and computes; what is dangerous comes at its end.
        _run(arguments, folder, kill_after_s=took_s * rng.triangular(0.2, 1.1, 0.95))
        found = digest(target)
        is_part = name in _FILE_BY_FILE and files_of(target).items() <= all_files.items()
        if found not in ((whole,) if is_there else (whole, "")) and not is_part:
            problems.append(f"kill {nth}: {target.name} is neither what it was nor whole")
        if _run(arguments, folder) != 0 or digest(target) != whole:
            problems.append(f"kill {nth}: the next run does not put it right")
        if _others(folder) != beside:
            problems.append(f"kill {nth}: left {sorted(_others(folder) - beside)}")
    return problems, num_kills


def _run(arguments: Sequence[str], folder: Path, kill_after_s: float = 600.0) -> int:
    """The exit code of the command, or that it was killed."""
    process = _fork(lambda: _be_kvsim(arguments, folder))
    until_s = time.monotonic() + kill_after_s
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until_s:
            os.kill(process, signal.SIGKILL)
            break
        time.sleep(0.0005)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _be_kvsim(arguments: Sequence[str], folder: Path) -> None:
    """Go on as `kvsim` with these arguments, until it exits."""
    from kvsim.cli import main as kvsim

    os.chdir(folder)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silence, stream)
    sys.argv = ["kvsim", *arguments]
    kvsim()


def _fork(work: Callable[[], object]) -> int:
    """The number of a process that does `work` and exits as a program would."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    finally:
        os._exit(code)


def _in_a_fork(work: Callable[[], object]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(_fork(work), 0)[1])


def digest(target: Path) -> str:
    """What stands at `target`, with all of its files; empty where nothing does."""
    if not target.exists():
        return ""
    return hashlib.sha256(repr(sorted(files_of(target).items())).encode()).hexdigest()


def files_of(target: Path) -> dict[str, str]:
    """The files at `target` and digests of what is in them, without hidden ones: those are under way."""
    files = sorted(file for file in target.rglob("*") if file.is_file()) if target.is_dir() else [target]
    return {
        str(file.relative_to(target)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(target).parts)
    }


def _others(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def _remove(target: Path) -> None:
    for entry in sorted(target.rglob("*"), reverse=True) if target.is_dir() else []:
        entry.rmdir() if entry.is_dir() else entry.unlink()
    target.rmdir() if target.is_dir() else target.unlink()


if __name__ == "__main__":
    main()
