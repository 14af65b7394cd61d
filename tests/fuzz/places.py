"""Folders in which commands are disturbed: what stands there before, what afterwards, and whether that may be."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsim.recording import read
from tests.fuzz.commands import COMMANDS, in_a_fork, run

Files = dict[str, str]
"""The files of a target, and digests of what is in them."""
_MEASURED = ("capture",)
"""Commands that write something else every time: whole is what can be read."""
_FILE_BY_FILE = ("plot all", "explain")
"""Commands that write files into a folder, of which one that was disturbed may leave some, each of them whole."""
_GIVEN = ("paged", "generate", "tiny")
"""What stands beside every output: what the commands read."""
_SCRATCH = re.compile(r"(\..*)-\w{8}(\.kvsim-scratch)(/.*)?")
_OUTPUTS = ("--screenshot", "--figure", "--plot", "-o")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder in which one command is disturbed again and again, and what it does where nothing disturbs it."""

    name: str
    folder: Path
    nothing: Path
    """A copy of the folder before the command."""
    everything: Path
    """A copy of the folder after it."""
    whole: Files
    took_s: float

    @property
    def arguments(self) -> Sequence[str]:
        """Of the command."""
        return COMMANDS[self.name]

    @property
    def target(self) -> Path:
        """What the command writes."""
        return _target_of(self.name, self.folder)

    def fill(self, *, is_there: bool) -> Files | None:
        """Have in the folder, which is empty or not there, what the command reads and, if asked, what it wrote before;
        return what then stands at its target.
        """
        shutil.copytree(
            self.everything if is_there else self.nothing, self.folder, symlinks=True, dirs_exist_ok=True
        )  # fmt: skip
        return self.whole if is_there else None

    def is_whole(self) -> bool:
        """Whether the target is all that the command writes."""
        if self.name not in _MEASURED:
            return files_of(self.target) == self.whole
        return bool(files_of(self.target)) and in_a_fork(lambda: read(self.target)) == 0

    def is_harmed(self, before: Files | None) -> bool:
        """Whether the target is neither what it was before nor all that the command writes, nor what it may leave."""
        found = files_of(self.target)
        if found == before or self.is_whole():
            return False
        return not (self.name in _FILE_BY_FILE and found is not None and found.items() <= self.whole.items())

    def puts_right(self) -> str:
        """Run the command once more, with nothing in its way, and say what is still wrong afterwards, if anything."""
        left, known = _state(self.folder), self.nothing.parent / "put-right" / self.name
        seen = known / hashlib.sha256(repr(sorted(left)).encode()).hexdigest()
        if seen.exists():  # by any process
            return ""
        if run(self.arguments, self.folder) != 0:
            return f"the next run fails beside {sorted(path for path, _ in left)}"
        if files_of(self.target) != self.whole and self.name not in _MEASURED:
            return f"the next run does not put right {sorted(path for path, _ in left)}"
        others, expected = ({entry.name for entry in folder.iterdir()} for folder in (self.folder, self.everything))
        if others != expected:
            return f"the next run leaves {sorted(others - expected)}"
        known.mkdir(parents=True, exist_ok=True)
        seen.touch()
        return ""


def set_up(name: str, folder: Path, seeds: Path) -> Place:
    """Run the command of that name once, in `folder`, which is made; `seeds` is what was prepared.

    Raises:
        RuntimeError: it fails by itself.
    """
    folder.mkdir()
    for given in _GIVEN:
        (folder / given).symlink_to(seeds / given)
    nothing, everything = (folder.with_name(f"{folder.name}-{kind}") for kind in ("nothing", "everything"))
    shutil.copytree(folder, nothing, symlinks=True)
    took_s = -time.monotonic()
    if run(COMMANDS[name], folder) != 0:
        raise RuntimeError(f"kvsim {' '.join(COMMANDS[name])} fails by itself")
    took_s += time.monotonic()
    shutil.copytree(folder, everything, symlinks=True)
    whole = files_of(_target_of(name, folder))
    assert whole is not None
    return Place(
        name=name, folder=folder, nothing=nothing, everything=everything, whole=whole, took_s=took_s
    )  # fmt: skip


def _target_of(name: str, folder: Path) -> Path:
    arguments = COMMANDS[name]
    return folder / next(arguments[arguments.index(flag) + 1] for flag in _OUTPUTS if flag in arguments)


def files_of(target: Path) -> Files | None:
    """The files at `target` and digests of what is in them, without hidden ones: those are under way. None where
    nothing stands.
    """
    if not target.exists():
        return None
    files = sorted(file for file in target.rglob("*") if file.is_file()) if target.is_dir() else [target]
    return {
        str(file.relative_to(target)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if not any(part.startswith(".") for part in file.relative_to(target).parts)
    }


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
