"""Kill every command that writes, at random moments: `python -m tests.fuzz.kills --kills 200`.

Afterwards what it writes is as it was before, or whole; and when the command has run once more, to its end, nothing
hidden stands beside it.

Every command is a process of its own, forked from one that has imported everything: to start Python 10,000 times would
take most of a day. What was left behind is put right by a next run, which is made for everything that was not seen
before.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from kvsim.capture.shapes import write_config
from kvsim.models import find_model
from kvsim.recording import read
from kvsim.steptime.card import load_card
from tests.fuzz.seeds import ROOT, make_seeds

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
    "validate": ("validate", "auto", "generate", "--plot", "out.png"),
    "reproduce": ("reproduce", "kv-per-token", "--plot", "out.png"),
    "calibrate card": ("calibrate", "vllm-h200-granite-350m-gsm8k", "--card", "auto", "-o", "out.toml"),
    "capture": ("capture", "hf", "--model", "tiny", "--prompt-tokens", "4", "--output-tokens", "3", "--num-requests",
                "2", "--device", "cpu", "-o", "out", "--overwrite"),
    "measure": ("measure", "-o", "out.toml"),
    "attach": ("tui", "--attach", "127.0.0.1:1", "-o", "out", "--overwrite"),
    "attach metrics": ("tui", "--attach", "http://127.0.0.1:1/metrics", "-o", "out.csv", "--overwrite"),
}  # fmt: skip
_MEASURED = ("capture",)
"""Commands that write something else every time: whole is what can be read."""
_FILE_BY_FILE = ("plot all", "explain")
"""Commands that write files into a folder, of which a killed one may leave some, each of them whole."""
_GIVEN = ("paged", "generate", "tiny")
"""What stands beside every output: what the commands read."""
_OUTPUTS = ("--screenshot", "--figure", "--plot", "-o")
_SCRATCH = re.compile(r"(\..*)-\w{8}(\.kvsim-scratch)(/.*)?")
_LOADED = (
    "kvsim.experiments.bands", "kvsim.calibration", "kvsim.cli.show", "kvsim.exporters", "kvsim.fitting", "kvsim.plots",
    "kvsim.recording.parquet", "kvsim.plots.report", "kvsim.simulation", "kvsim.experiments.sweeps",
    "matplotlib.backends.backend_agg", "rich.progress", "kvsim.tui.app",
)  # fmt: skip
_LOADED_TO_CAPTURE = ("kvsim.capture.hf",)
_AT_ONCE = 25
"""Kills that one process makes in one go, where there are several."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="of each command")
    parser.add_argument("--command", choices=COMMANDS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    began_s, names = time.monotonic(), options.command or list(COMMANDS)
    with tempfile.TemporaryDirectory(prefix="kvsim-kills-") as scratch:
        folder = Path(scratch)
        if _in_a_fork(lambda: _make_seeds(folder)):  # whose threads a fork would not have
            raise SystemExit("the seeds cannot be made")
        for module in _LOADED + (_LOADED_TO_CAPTURE if "capture" in names else ()):
            import_module(module)
        size = min(options.kills, _AT_ONCE) if options.jobs > 1 else options.kills
        shares = [(name, first, min(size, options.kills - first)) for first in range(0, options.kills, size)
                  for name in names]  # fmt: skip
        todo = [
            (name, folder / f"{name.replace(' ', '-')}-{first}", num_kills, f"{options.seed} {name} {first}")
            for name, first, num_kills in shares
        ]
        until_s = began_s + 60 * options.minutes
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
            done = list(pool.map(_kill_share, todo, repeat(folder), repeat(until_s)))
    wrong = 0
    for name in names:
        results = [found for (of, _, _), found in zip(shares, done, strict=True) if of == name]
        problems = [problem for found, _ in results for problem in found]
        wrong += len(problems)
        num_killed = sum(killed for _, killed in results)
        print(f"{name}: {num_killed} kills, {len(problems)} wrong", *problems[:5], sep="\n  ", flush=True)
    total = sum(killed for _, killed in done)
    print(f"{total:,} kills, {wrong} wrong, {time.monotonic() - began_s:,.0f} s")
    sys.exit(bool(wrong))


def _kill_share(share: tuple[str, Path, int, str], seeds: Path, until_s: float) -> tuple[list[str], int]:
    name, folder, num_kills, seed = share
    return kill_many(name, folder, seeds, num_kills, random.Random(seed), until_s)


def kill_many(
    name: str, folder: Path, seeds: Path, num_kills: int, rng: random.Random, until_s: float
) -> tuple[list[str], int]:
    """Kill a command so often, each time with an earlier result in place or without; return what is wrong."""
    arguments = COMMANDS[name]
    folder.mkdir()
    for given in _GIVEN:
        (folder / given).symlink_to(seeds / given)
    target = folder / next(arguments[arguments.index(flag) + 1] for flag in _OUTPUTS if flag in arguments)
    nothing, everything = (folder.with_name(f"{folder.name}-{kind}") for kind in ("nothing", "everything"))
    shutil.copytree(folder, nothing, symlinks=True)
    took_s = -time.monotonic()
    if _run(arguments, folder) != 0:
        return [f"kvsim {' '.join(arguments)} fails by itself"], 0
    took_s += time.monotonic()
    shutil.copytree(folder, everything, symlinks=True)
    whole, all_files, beside = digest(target), files_of(target), _others(folder)
    problems: list[str] = []
    put_right: set[frozenset[tuple[str, str]]] = set()
    for nth in range(num_kills):
        if time.monotonic() > until_s:
            return problems, nth
        is_there = nth % 2 == 0
        shutil.rmtree(folder)
        shutil.copytree(everything if is_there else nothing, folder, symlinks=True)
        # Most of a run reads and computes; what is dangerous comes at its end.
        moment = rng.uniform(0.0, 1.1) if nth % 4 < 2 else rng.triangular(0.5, 1.2, 0.95)
        _run(arguments, folder, kill_after_s=took_s * moment)
        found = digest(target)
        is_part = name in _FILE_BY_FILE and files_of(target).items() <= all_files.items()
        is_whole = found == whole or (name in _MEASURED and found != "" and _can_be_read(target))
        if not is_whole and not is_part and (is_there or found):
            problems.append(f"kill {nth}: {target.name} is neither what it was nor whole")
        left = _state(folder)
        if left in put_right:
            continue
        if _run(arguments, folder) != 0 or not (digest(target) == whole or name in _MEASURED):
            problems.append(f"kill {nth}: the next run does not put right {sorted(path for path, _ in left)}")
        elif _others(folder) != beside:
            problems.append(f"kill {nth}: left {sorted(_others(folder) - beside)}")
        else:
            put_right.add(left)
    return problems, num_kills


def _make_seeds(folder: Path) -> None:
    make_seeds(folder)
    shape = find_model("Meta-Llama-3-8B")
    (folder / "tiny").mkdir()
    write_config(
        replace(
            shape,
            num_layers=1, hidden_size=16, num_attention_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=16,
            vocab_size=64,
        ),
        folder / "tiny",
    )  # fmt: skip


def _can_be_read(recording: Path) -> bool:
    return _in_a_fork(lambda: read(recording)) == 0


def _state(folder: Path) -> frozenset[tuple[str, str]]:
    """The files below `folder` and digests of these; of what is half made, whose names are random, the kind alone."""
    state = set()
    for file in folder.rglob("*"):
        path = str(file.relative_to(folder))
        if scratch := _SCRATCH.fullmatch(path):
            state.add((f"{scratch[1]}{scratch[2]}{re.sub(r'[0-9a-f]{8,}', '', scratch[3] or '')}", ""))
        elif file.is_file() and not file.is_symlink():
            state.add((path, hashlib.sha256(file.read_bytes()).hexdigest()))
    return frozenset(state)


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
    if arguments[0] in ("measure", "tui"):
        _stand_in()
    sys.argv = ["kvsim", *arguments]
    kvsim()


class _Feed:
    """A server that has been watched, and left."""

    ended = ended_before_close = None

    def __init__(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass

    def looks(self) -> tuple[()]:
        return ()


def _stand_in() -> None:
    """Put something in the place of what is not here: a GPU to measure, a server, and a person who quits."""
    os.environ["TEXTUAL_DRIVER"] = "none"
    card = load_card(ROOT / "kvsim" / "machines" / "cards" / "h200.toml")
    vars(import_module("kvsim.measure"))["measure"] = lambda *_, **__: card
    vars(import_module("kvsim.live.feed"))["LiveFeed"] = _Feed
    vars(import_module("kvsim.live.metrics_feed"))["MetricsFeed"] = _Feed
    vars(import_module("kvsim.live.metrics_table"))["as_csv"] = lambda _: "time_s\n" * 10_000
    vars(import_module("kvsim.tui")).update(
        attach=lambda *_, **__: read(Path("paged")), watch_metrics=lambda *_, **__: 0
    )


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


if __name__ == "__main__":
    main()
