"""Every command that writes, disturbed many times, on many cores: what `kills` and `disks` have in common."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.commands import COMMANDS, prepare
from tests.fuzz.places import Place, set_up

Disturb = Callable[[Place, random.Random, int], str]
"""Disturbs the command of a place for the nth time, and says what is wrong then, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """Some of the times that a command is disturbed: what one process does in one go."""

    name: str
    first: int
    end: int


def run_campaign(disturb: Disturb, what: str, *, times: int, share: int, description: str | None) -> None:
    """Disturb commands as the command line asks, and exit with 1 if anything was wrong. What is wrong is printed as it
    is found, and how often each command was disturbed in the end.

    Args:
        disturb: what is done each time.
        what: the name of that in what is printed, such as `kills`.
        times: how often each command is disturbed, where the command line does not say.
        share: times that a process does in one go.
        description: of the program.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--times", type=int, default=times, help="of each command")
    parser.add_argument("--command", choices=COMMANDS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    began_s, names = time.monotonic(), options.command or list(COMMANDS)
    # All commands come equally far, whenever it ends.
    shares = [
        _Share(name=name, first=first, end=min(first + share, options.times))
        for first in range(0, options.times, share)
        for name in names
    ]
    num_done, num_wrong = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kvsim-disturbed-") as scratch:
        prepare(Path(scratch), names)
        work = partial(_run_share, disturb, Path(scratch), options.seed, began_s + 60 * options.minutes)
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
            under_way = {pool.submit(work, each): each for each in shares}
            for done in as_completed(under_way):
                name = under_way[done].name
                for number, problem in done.result():
                    num_done[name] += 1
                    if problem:
                        num_wrong[name] += 1
                        print(f"{name}, {number}: {problem}", flush=True)
                print(f"{name}: {num_done[name]} {what} so far", file=sys.stderr, flush=True)
    for name in names:
        print(f"{name}: {num_done[name]} {what}, {num_wrong[name]} wrong")
    print(f"{num_done.total():,} {what}, {num_wrong.total()} wrong, {time.monotonic() - began_s:,.0f} s")
    sys.exit(bool(num_wrong))


def _run_share(disturb: Disturb, seeds: Path, seed: int, until_s: float, share: _Share) -> list[tuple[int, str]]:
    return list(_disturbed(disturb, seeds, seed, until_s, share))


def _disturbed(disturb: Disturb, seeds: Path, seed: int, until_s: float, share: _Share) -> Iterator[tuple[int, str]]:
    if time.monotonic() > until_s:
        return
    rng = random.Random(f"{seed} {share.name} {share.first}")
    try:
        place = set_up(share.name, seeds / f"{share.name.replace(' ', '-')}-{share.first}", seeds)
    except RuntimeError as error:
        yield share.first, str(error)
        return
    for number in range(share.first, share.end):
        if time.monotonic() > until_s:
            return
        yield number, disturb(place, rng, number)
