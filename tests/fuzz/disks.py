"""Let every command write where it cannot: `python -m tests.fuzz.disks --times 12`.

The disk is full sooner or later, has no room for another file, lets no file grow, or may not be written at all. What
was there stays as it was, or becomes all that is new; the command says in a sentence why it failed, and leaves nothing
behind. Disks are small ones in memory, mounted where no other process sees them.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.campaign import run_campaign
from tests.fuzz.commands import run
from tests.fuzz.places import Files, Place

_ROOMY = "size=256m,nr_inodes=100k"
"""Options of a disk that is not full yet."""
_MOUNTS = "KVSIM_FUZZ_MOUNTS"
"""Set where this program may mount disks."""
_ALONE = ("unshare", "--map-root-user", "--mount")
"""Runs a program that may mount disks, which no other program sees."""
Obstacle = Callable[[Place, random.Random], Callable[[], object]]
"""Is put in the way of a command; returns what the command's process has to do first."""


def can_mount() -> bool:
    """Whether this system lets a program have disks of its own."""
    with tempfile.TemporaryDirectory() as folder:
        attempt = [*_ALONE, "mount", "-t", "tmpfs", "none", folder]
        return (
            bool(shutil.which("unshare")) and not subprocess.run(attempt, capture_output=True, check=False).returncode
        )


def obstruct(place: Place, rng: random.Random, nth: int) -> str:
    """Run the command once with something in its way, every second time with an earlier result in place, and say what
    is wrong then, if anything.
    """
    obstacles = _OF_DISKS | _OF_FILES if _MOUNTS in os.environ else _OF_FILES
    what, obstacle = tuple(obstacles.items())[nth // 2 % len(obstacles)]
    complaint = place.folder.with_name(f"{place.folder.name}-complaint")
    shutil.rmtree(place.folder)
    place.folder.mkdir()
    with _disk(place.folder):
        before = place.fill(is_there=nth % 2 == 0)
        there = {entry.name for entry in place.folder.iterdir()}
        first = obstacle(place, rng)
        code = run(place.arguments, place.folder, before=first, complaint=complaint)
        problem = _wrong(place, before, there, code, complaint.read_text(errors="replace"))
        if _MOUNTS in os.environ:
            _mount(place.folder, f"remount,rw,{_ROOMY}")
        problem = problem or place.puts_right()
    return problem and f"{what}: {problem}"


def _wrong(place: Place, before: Files | None, there: set[str], code: int, complaint: str) -> str:
    said = f"(exit {code}: {complaint.strip()[-300:]})"
    if place.is_harmed(before):
        return f"{place.target.name} is neither what it was nor whole {said}"
    if code == 0:
        return "" if place.is_whole() else f"says that it is done, and is not {said}"
    # joblib's own process may say more, because a fork ends without telling it.
    sentences = [line for line in complaint.splitlines() if line.startswith("kvsim: ")]
    if code not in (1, 2) or len(sentences) != 1 or "Traceback" in complaint:
        return f"ends without a sentence {said}"
    left = sorted({entry.name for entry in place.folder.iterdir()} - there)
    hidden = [name for name in left if name.startswith(".")]
    return f"leaves {hidden} {said}" if hidden else ""


def _full(place: Place, rng: random.Random) -> Callable[[], object]:
    """The disk has room for a part of what comes."""
    disk = os.statvfs(place.folder)
    needed = sum(file.stat().st_size for file in place.everything.rglob("*") if not file.is_symlink())
    used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    _mount(place.folder, f"remount,size={used + int(rng.uniform(0, 1.3) * needed)}")
    return _nothing


def _without_names(place: Place, rng: random.Random) -> Callable[[], object]:
    """The disk has room for a few files and folders more, whatever their size."""
    disk = os.statvfs(place.folder)
    _mount(place.folder, f"remount,nr_inodes={disk.f_files - disk.f_ffree + rng.randrange(8)}")
    return _nothing


def _read_only(place: Place, _: random.Random) -> Callable[[], object]:
    _mount(place.folder, "remount,ro")
    return _nothing


def _short_files(place: Place, rng: random.Random) -> Callable[[], object]:
    """No file may grow beyond a part of the largest that comes; a few letters of complaint fit in any case."""
    largest = max(file.stat().st_size for file in place.everything.rglob("*") if not file.is_symlink())
    most = max(int(rng.uniform(0, 1.1) * largest), 2048)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _nothing() -> None:
    """What the command's process has to do first where the disk is what stands in its way."""


_OF_DISKS: dict[str, Obstacle] = {"a full disk": _full, "no room for names": _without_names, "read-only": _read_only}
_OF_FILES: dict[str, Obstacle] = {"short files": _short_files}


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Have a disk of its own at `folder`, where that may be."""
    if _MOUNTS not in os.environ:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", _ROOMY, "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", options, folder], check=True)


if __name__ == "__main__":
    if _MOUNTS not in os.environ and can_mount():
        os.environ[_MOUNTS] = "1"
        os.execvp(_ALONE[0], [*_ALONE, sys.executable, "-m", "tests.fuzz.disks", *sys.argv[1:]])
    if _MOUNTS not in os.environ:
        print("no disks may be mounted here: only files that may not grow are tried", file=sys.stderr)
    run_campaign(obstruct, "obstacles", times=16, share=8, description=__doc__)
