"""Every flag and every argument of every command, with values that are hardly right.

Which there are, and of what type, is asked of the command line itself: one that is new is tried as well. What stands
here is how each command is called where only one thing is wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import click

from kvsim.cli import cli
from kvsim.policies import EVERY_POLICY
from tests.fuzz.seeds import NASTY_NUMBERS, NASTY_TEXTS, Seeds

Words = tuple[str, ...]


class Call(NamedTuple):
    """A command line: a command, what it acts on, its flags, and among these one that is hardly right."""

    command: Words
    subjects: Words
    usual: Words
    tried: Words

    @property
    def words(self) -> list[str]:
        return [*self.command, *self.usual, *self.tried, *self.subjects]


LEFT_OUT = {
    "capture vllm": "starts an engine, which keeps what it compiles in the user's home",
    "conform": "imports vLLM for each value, which takes seconds; tests/conformance/test_conform.py is about it",
    "tui --serve": "serves until it is stopped; tests/cli/test_serve.py is about it",
    "sweep --backend": "starts a cluster",
}
"""What is not tried, and why."""
_RUN = ("--num-requests", "4", "--json")
_FIT = ("--rate", "2", "--prompt-tokens", "50", "--output-tokens", "5", "--num-requests", "4", "--points", "1")
_SHOT = ("--screenshot", "s.svg", "--size", "80x24")
_NUMBERS = (*map(str, NASTY_NUMBERS), "9" * 300, "x", "1_000", "0x10", "٣", " 3 ")
_PARTS = ("0", "-1", "3", "1e9", "nan", "9" * 400)
"""What stands for a word of a flag's metavar."""
_TEXTS = (
    *(text for text in NASTY_TEXTS if text and "\0" not in text), "\udcff", "auto", "none", "list", ".", "..",
    "a/b.csv", "x.png", "x.svg",
)  # fmt: skip
"""Empty ones are refused before any command, and none has a zero byte; the surrogate stands for a byte that is no
text."""


@cache
def every(seeds: Seeds) -> tuple[Call, ...]:
    """Each flag and each argument of each command with each value that is tried, one at a time."""
    return tuple(call for name, command in commands() if name not in LEFT_OUT for call in _calls(name, command, seeds))


def some(rng: random.Random, seeds: Seeds) -> list[str]:
    """A command with up to three values that are hardly right."""
    call = rng.choice(every(seeds))
    among = _alike(seeds)[call[:3]]
    more = [word for _ in range(rng.choice((0, 0, 1, 2))) for word in rng.choice(among).tried]
    return call._replace(tried=(*call.tried, *more)).words


@cache
def _alike(seeds: Seeds) -> dict[tuple[Words, Words, Words], list[Call]]:
    """The calls that differ in nothing but the value that is tried."""
    found: dict[tuple[Words, Words, Words], list[Call]] = {}
    for call in every(seeds):
        found.setdefault(call[:3], []).append(call)
    return found


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of kvsim and its full name, such as `run` or `capture hf`."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", command.commands[inner]) for inner in command.commands)
        elif command is not None:
            yield name, command


def _calls(name: str, command: click.Command, seeds: Seeds) -> Iterator[Call]:
    for subjects, usual in _usual(name, seeds):
        for param in command.params:
            if f"{name} {param.opts[0]}" in LEFT_OUT:
                continue
            for value in _values(param, seeds):
                tried = (param.opts[-1], *value)
                if isinstance(param, click.Argument):
                    yield Call(command=tuple(name.split()), subjects=value, usual=usual, tried=())
                else:
                    yield Call(command=tuple(name.split()), subjects=subjects, usual=usual, tried=tried)


def _usual(name: str, seeds: Seeds) -> list[tuple[Words, Words]]:
    """What a command acts on and the flags that it has, in each way of calling it that is tried.

    Raises:
        KeyError: nobody has said how the command is called.
    """
    recording, generate = str(seeds.recordings[0]), str(seeds.recordings[-1])
    policies = [("--policy", policy) for policy in EVERY_POLICY]
    calls: dict[str, list[tuple[Words, Words]]] = {
        "run": [((), (*_RUN, *policy)) for policy in policies],
        "fit": [((), (*_FIT, "--json")), ((), ("--users", "2", *_FIT[2:], "--json")),
                ((), (*_FIT, "--policy", "radix", "--json"))],
        "diagnose": [((recording,), ("--points", "1", "--json"))],
        "doctor": [((str(seeds.server_logs[0]),), ("--gpu", "H200", "--json"))],
        "compare": [((), (*_RUN, *more)) for more in ((), ("--seed", "1", "2"), ("--policy", "paged", "radix"))],
        "sweep": [((), (*_RUN, "--jobs", "1", "-o", "s.parquet"))],
        "tui": [((recording,), _SHOT), ((), (*_RUN[:2], *policies[0], *_SHOT)), ((), ())],
        "explain": [(("1",), ())],
        "plot": [(("queue", recording), ("-o", "a.png"))],
        "animate": [((recording,), ("-o", "a.html"))],
        "report": [((recording,), ("-o", "r"))],
        "info": [((recording,), ("--json",))],
        "size": [((), ("--model", "Meta-Llama-3-8B", "--gpu", "H200", "--json"))],
        "measure": [((), ("-o", "c.toml"))],
        "calibrate": [((generate,), ("-o", "p.toml", "--no-held-out", "--json"))],
        "validate": [(("auto", recording), ("--json",))],
        "pack": [((), (*_RUN, "--arrivals", "poisson"))],
        "reproduce": [(("kv-per-token",), ("--json",))],
        "capture hf": [((), ("--model", str(seeds.tiny), *_RUN[:2], "--output-tokens", "2", "--prompt-tokens", "2",
                             "--device", "cpu", "-o", "c"))],
        "import": [((str(seeds.workloads[2]),), ("--json",))],
        "export": [((recording,), ("-o", "e"))],
        "verify": [((recording,), ("--json",))],
        "versions": [((), ("--json",)), (("0.22.1", "0.33.0"), ())],
    }  # fmt: skip
    return calls[name]


def _values(param: click.Parameter, seeds: Seeds) -> Iterator[Words]:
    """What the parameter is given, one after the other; nothing for a switch."""
    kind = param.type
    if isinstance(param, click.Option) and param.is_flag:
        yield ()
    elif isinstance(kind, click.Choice):
        yield from ((value,) for value in (*kind.choices, "x", kind.choices[0].upper()))
    elif isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        yield from ((value,) for value in _NUMBERS)
        for bound in (getattr(kind, "min", None), getattr(kind, "max", None)):
            if bound is not None:
                yield from ((str(bound + by),) for by in (-1, 1))
    else:
        yield from ((value,) for value in (*_TEXTS, *_filled(param.metavar or ""), str(seeds.recordings[0])))


def _filled(metavar: str) -> Iterator[str]:
    """Texts of a metavar's form, such as `3x-1` for GROUPSxTOKENS, with and without what may be left out."""
    for form in dict.fromkeys((metavar, re.sub(r"\[.*?\]", "", metavar))):
        words = re.split(r"([A-Z]+|\d+)", re.sub(r"[\[\]]|\.\.\.", "", form))
        for at in range(1, len(words), 2):
            for part in _PARTS:
                yield "".join("3" if nth % 2 and nth != at else part if nth == at else word
                              for nth, word in enumerate(words))  # fmt: skip
