"""One case: a good file, something that happens to it, a command that reads it, and what may come of that.

A command may succeed, or end with one sentence and exit code 1 or 2. It may not show a traceback, hang, take gigabytes,
leave anything half-written, or succeed with figures that cannot be.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.cli import main
from tests.fuzz import flags
from tests.fuzz.mutations import mutate_bytes, mutate_json_file, mutate_parquet, mutate_text
from tests.fuzz.seeds import Seeds

HANG_S = 20
_WAITING = 5
"""A command that waits for something, and takes no time of its own, is given so much more."""
MOST_BYTES = 2 << 30
Arguments = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case."""

    kind: str
    arguments: Arguments
    code: int | None
    problem: str
    """Empty where all is well."""


class Hang(BaseException):
    """A command has taken too long."""


def run_case(number: int, seeds: Seeds, folder: Path) -> Outcome:
    """Make case `number` in `folder`, which is emptied, and run it."""
    rng = random.Random(number)
    inside = _inside(folder)
    kind = rng.choices(tuple(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
    return judge(kind, _KINDS[kind][1](rng, seeds, inside), inside)


def run_flag(number: int, seeds: Seeds, folder: Path) -> Outcome:
    """Run the call of that number among those of every flag, in `folder`, which is emptied."""
    return judge("flags", flags.every(seeds)[number].words, _inside(folder))


def _inside(folder: Path) -> Path:
    """A folder inside `folder`, which is emptied: names that begin with `../..` are inside it, too."""
    shutil.rmtree(folder, ignore_errors=True)
    inside = folder / "a" / "b"
    inside.mkdir(parents=True)
    return inside


def judge(kind: str, arguments: Arguments, folder: Path) -> Outcome:
    """Run a command in `folder`, and say what is wrong with what came of it."""
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    code, output, complaint, problem = _run(arguments, folder)
    if not problem:
        problem = _wrong(code, output, complaint, arguments)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - peak_before
    if not problem and grown > MOST_BYTES:
        problem = f"took {grown >> 20} MiB"
    hidden = [entry.name for entry in folder.rglob("*") if entry.name.endswith(".kvsim-scratch")]
    if not problem and hidden:
        problem = f"left {hidden[0]}"
    return Outcome(kind=kind, arguments=arguments, code=code, problem=problem)


def _run(arguments: Arguments, folder: Path) -> tuple[int | None, str, str, str]:
    output, complaint = _Stream("strict"), _Stream("backslashreplace")
    code: int | None = 0
    problem = ""
    argv = sys.argv
    sys.argv = ["kvsim", *arguments]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaint), contextlib.chdir(folder):
        try:
            with _time_limit(HANG_S):
                main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
        except Hang:
            code, problem = None, f"hangs: {_where()}"
        except BaseException:
            code, problem = None, "traceback: " + " | ".join(traceback.format_exc().splitlines()[-3:])
        finally:
            sys.argv = argv

    return code, output.text(), complaint.text(), problem


class _Stream(io.TextIOWrapper):
    """A stream of a program, which takes no more letters than a terminal or a pipe."""

    def __init__(self, errors: str) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", errors=errors, write_through=True)

    def text(self) -> str:
        """What was written."""
        return self._bytes.getvalue().decode()


def _where() -> str:
    return " | ".join(line.strip() for line in traceback.format_exc().splitlines()[-4:-1])


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = [signal.signal(kind, ring) for kind in (signal.SIGPROF, signal.SIGALRM)]
    # Of this process's own time, so that a busy machine is no hang; waiting for something takes none of it.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(_WAITING * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for kind, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(kind, handler)


def _wrong(code: int | None, output: str, complaint: str, arguments: Arguments) -> str:
    if "Traceback (most recent call last)" in complaint:
        return f"traceback in the complaint: {complaint.splitlines()[-1]}"
    for text in (output, complaint):
        if "\x1b" in text or "\x00" in text:
            return "a control character reaches the terminal"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code and arguments[0] != "verify":
        lines = [line for line in complaint.splitlines() if not line.startswith("warning: ")]
        if not lines:
            return "fails without a word"
        if lines[-1].startswith("kvsim: ") and max(map(len, lines)) > 1500:
            return f"a sentence of {max(map(len, lines))} letters"
        if not lines[-1].startswith(("kvsim: ", "Error: ")):
            return f"not a sentence: {lines[-1][:100]}"
    if code == 0 and "--json" in arguments and output.strip():
        try:
            return impossible(json.loads(output, parse_constant=_refuse))
        except ValueError as error:
            return f"its JSON is none: {error}"
    return ""


def _refuse(name: str) -> float:
    raise ValueError(name)


def impossible(document: Any) -> str:
    """What figure of a summary cannot be, or an empty text."""
    if not isinstance(document, dict):
        return ""
    for name, value in _numbers(document):
        last = name.rpartition(".")[2]
        if not math.isfinite(value):
            return f"{name} is {value}"
        if "percent" in name and "pool_percent" in name and not -1e-6 <= value <= 100 + 1e-6:
            return f"{name} is {value}"
        if last.endswith("_occupancy") and not 0 <= value <= 1 + 1e-9:
            return f"{name} is {value}"
        if name.split(".")[0] in _NOT_NEGATIVE and value < -1e-9:
            return f"{name} is {value}"
    shares = document.get("waste", {}).get("pool_percent") if isinstance(document.get("waste"), dict) else None
    if isinstance(shares, dict) and None not in shares.values() and abs(sum(shares.values()) - 100) > 1e-6:
        return f"the shares add up to {sum(shares.values())}"
    return ""


_NOT_NEGATIVE = frozenset((
    "ttft_s", "tpot_s", "e2e_s", "wait_s", "duration_s", "num_finished", "num_refused", "num_aborted", "num_unfinished",
    "num_steps", "output_tokens", "output_tokens_per_s", "mean_batch", "mean_waiting", "num_preemptions",
    "prefix_hit_tokens", "swapped_out_bytes", "swapped_in_bytes", "requests_per_s", "num_requests", "num_blocks",
    "kv_bytes", "capacity_tokens", "max_sequences", "num_slots", "num_padding", "mean_prompt_tokens",
))  # fmt: skip


def _numbers(document: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key not in ("engine", "model", "policy"):
                yield from _numbers(value, f"{name}.{key}" if name else key)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield name, document


def _recording(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    path = Path(shutil.copytree(rng.choice(seeds.recordings), folder / "rec"))
    for _ in range(rng.choice((1, 1, 1, 2))):
        files = sorted(path.glob("*.parquet"))
        if rng.random() < 0.2 or not files:
            mutate_json_file(path / "meta.json", rng)
        elif rng.random() < 0.15:
            mutate_bytes(rng.choice(files), rng)
        else:
            mutate_parquet(rng.choice(files), rng)
    return _reading(rng, "rec")


def _reading(rng: random.Random, name: str) -> Arguments:
    few = ["--refuse-misfits", "--json"]
    return rng.choices(
        (
            ["info", "--json", name],
            ["info", name],
            ["run", "--workload", name, *few],
            ["import", name, "--json", "-o", "w.parquet"],
            ["export", name, "--to", rng.choice(("perfetto", "csv", "parquet", "azure", "mooncake", "burstgpt"))],
            ["verify", name, "--json"],
            ["validate", "auto", name, "--json"],
            ["calibrate", name, "-o", "p.toml", "--no-held-out", "--json"],
            ["plot", rng.choice(("waste-bars", "queue", "latency", "memory-map", "lifetimes")), name],
            ["tui", name, "--screenshot", "s.svg", "--size", "80x24"],
        ),
        (30, 8, 12, 8, 12, 4, 4, 2, 2, 1),
    )[0]


def _log(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    path = Path(shutil.copytree(rng.choice(seeds.logs), folder / "rec"))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((mutate_json_file, mutate_json_file, mutate_text, mutate_bytes))(path / "events.jsonl", rng)
    return _reading(rng, "rec")


def _workload(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    seed = rng.choice(seeds.workloads)
    if seed.parent.name == "ragpulse":
        shutil.copytree(seed.parent, folder, dirs_exist_ok=True)
        file = rng.choice(sorted(folder.glob("*.jsonl")))
    else:
        file = Path(shutil.copy(seed, folder))
    for _ in range(rng.choice((1, 1, 2))):
        if file.suffix == ".parquet":
            rng.choice((mutate_parquet, mutate_parquet, mutate_parquet, mutate_bytes))(file, rng)
        elif file.suffix == ".csv":
            rng.choice((mutate_text, mutate_text, mutate_bytes))(file, rng)
        else:
            rng.choice((mutate_json_file, mutate_json_file, mutate_text, mutate_bytes))(file, rng)
    forms = ("azure", "burstgpt", "csv", "mooncake", "ragpulse", "sharegpt", "vidur", "vllm-bench")
    form = ["--as", rng.choice(forms)] if rng.random() < 0.1 else []
    return ["import", seed.name, "--json", *form, *(["-o", "out.parquet"] if rng.random() < 0.5 else [])]


def _profile(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    file = Path(shutil.copy(rng.choice(seeds.profiles), folder / "p.toml"))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((mutate_text, mutate_text, mutate_text, mutate_bytes))(file, rng)
    policy = rng.choice(("paged", "contiguous", "static"))
    return ["run", "--policy", policy, "--profile", "p.toml", "--num-requests", "4", "--json"]


def _lesson(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    seed = rng.choice(seeds.lessons)
    file = Path(shutil.copy(seed, folder))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((mutate_text, mutate_text, mutate_bytes))(file, rng)
    return ["explain", f"./{seed.name}", "--ascii"]


def _oracle(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    workload, steps = (Path(shutil.copy(file, folder)) for file in rng.choice(seeds.oracles))
    if rng.random() < 0.5:
        mutate_json_file(workload, rng)
    else:
        import gzip

        plain = folder / "steps.jsonl"
        plain.write_bytes(gzip.decompress(steps.read_bytes()))
        steps = plain
        rng.choice((mutate_json_file, mutate_text, mutate_bytes))(steps, rng)
    return ["verify", workload.name, "--oracle", steps.name, "--json"]


def _table(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    file = Path(shutil.copy(rng.choice(seeds.tables), folder / "t.parquet"))
    rng.choice((mutate_parquet, mutate_parquet, mutate_bytes))(file, rng)
    return ["plot", rng.choice(("throughput-memory", "throughput-block-size", "hits-capacity")), "t.parquet"]


def _flags(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    del folder
    return flags.some(rng, seeds)


_KINDS: dict[str, tuple[int, Callable[[random.Random, Seeds, Path], Arguments]]] = {
    "recording": (40, _recording),
    "log": (14, _log),
    "workload": (22, _workload),
    "profile": (5, _profile),
    "lesson": (2, _lesson),
    "oracle": (3, _oracle),
    "table": (2, _table),
    "flags": (4, _flags),
}
