"""What may come of a command, whatever it is given.

A command may succeed, or end with one sentence and exit code 1 or 2. It may not show a traceback, hang, take gigabytes,
leave anything half-written, or succeed with figures that cannot be.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.cli import main

HANG_S = 20
_WAITING = 5
"""A command that waits for something, and takes no time of its own, is given so much more."""
MOST_BYTES = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case."""

    kind: str
    arguments: list[str]
    code: int | None
    problem: str
    """Empty where all is well."""


class Hang(BaseException):
    """A command has taken too long."""


def judge(kind: str, arguments: list[str], folder: Path) -> Outcome:
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


def _run(arguments: list[str], folder: Path) -> tuple[int | None, str, str, str]:
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


def _wrong(code: int | None, output: str, complaint: str, arguments: list[str]) -> str:
    if "Traceback (most recent call last)" in complaint:
        return f"traceback in the complaint: {complaint.splitlines()[-1]}"
    for text in (output, complaint):
        if "\x1b" in text or "\x00" in text:
            return "a control character reaches the terminal"
    if "kvsim: there is not enough memory" in complaint and "--users" not in arguments:
        return "wants all the memory that there is"
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
