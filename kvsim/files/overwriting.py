"""Whether a command may write where something stands already.

A command replaces what it wrote itself: `kvsim run` the recording of an earlier `kvsim run`, `kvsim plot` an earlier
figure. Whatever else is there stays, unless the user says --overwrite; and a folder that kvsim did not write stays in
any case, because it may hold anything.

What a command wrote is known from a mark in the file, or from the command in a recording's `meta.json`. Formats of
other programs have no place for a mark, so their files are replaced with --overwrite alone.
"""

from __future__ import annotations

import os
import shlex
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError, UsageError
from kvsim.files.atomic import unwritable, whole_folder
from kvsim.files.json_text import parse

MARKED = (
    "animate", "calibrate", "explain", "fit", "import", "measure", "plot", "reproduce", "sweep", "tui", "validate",
)  # fmt: skip
"""Commands whose files say that they wrote them."""
MARK_KEY = "made_by"
"""Key of a Parquet file's mark in the metadata of its schema."""
_ENDS_BYTES = 1 << 16
"""A mark stands this near to the beginning or the end of a file."""
_META_BYTES = 1 << 28
"""A `meta.json` lists every unit of a pool at most, and is read whole up to this size."""
_RECORDING = "meta.json"
_RECORDING_FILES = frozenset(
    (_RECORDING, *(f"{name}.parquet" for name in ("requests", "steps", "schedule", "memory", "copies", "allocator")))
)
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_REPORT = "report.html"
_REPORT_FILES = frozenset((_REPORT, "report.md", "figures"))
_EXPORT_STEMS = frozenset(("requests", "steps", "schedule", "memory", "pool"))


def mark(command: str) -> str:
    """What a file of `kvsim COMMAND` says about its origin, in whatever place its format has for that."""
    return f"Made by: kvsim {command}"


def may_replace(path: str | os.PathLike[str], command: str, *, overwrite: bool, is_folder: bool = False) -> None:
    """Make sure that `kvsim COMMAND` may write to `path`: nothing is there, or only what it wrote itself.

    Args:
        path: the file or folder that will be written.
        command: the command's name, such as `run`.
        overwrite: whether the user said --overwrite.
        is_folder: whether a folder will be written.

    Raises:
        UsageError: something else is there; the sentence says what, and that --overwrite replaces it where it does.
    """
    target = Path(path)
    if not os.path.lexists(target):
        return
    if target.is_dir() and not is_folder:
        raise UsageError(f"cannot write {target}: it is a folder; name a file.")
    if is_folder and not target.is_dir():
        raise UsageError(f"cannot write {target}: it is a file; name a folder.")
    what, makers, is_ours = _folder(target, command) if is_folder else _file(target)
    if makers is None:
        raise UsageError(f"{target} is {what}; choose another name, nothing was overwritten.")
    if overwrite or (command in makers and is_ours):
        return
    raise UsageError(f"{target} is {what}; --overwrite replaces it, or choose another name.")


def may_write(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> None:
    """Make sure, before minutes are spent on a file, that its folder is there, and that `may_replace` allows it.

    Raises:
        UsageError: there is no such folder, or something else is at `path`.
    """
    may_replace(path, command, overwrite=overwrite)
    if not Path(path).parent.is_dir():
        raise unwritable(path, os.strerror(ENOENT))


@contextmanager
def replacing_folder(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> Iterator[Path]:
    """A name for a folder that `kvsim COMMAND` makes, which becomes `path` when the block ends without an exception.

    Raises:
        UsageError: what is at `path`, now or in the end, may not be replaced (see `may_replace`), or it cannot be
        written.
    """
    may_replace(path, command, overwrite=overwrite, is_folder=True)
    with whole_folder(path, replacing=True) as folder:
        try:
            yield folder
        except KvsimError as error:
            if str(folder) not in str(error):
                raise
            # Only this function knows the hidden name.
            raise type(error)(str(error).replace(str(folder), str(path))) from error
        may_replace(path, command, overwrite=overwrite, is_folder=True)


def marked_png(png: bytes, command: str) -> bytes:
    """`png` with the mark of `kvsim COMMAND` in it: a text behind its first chunk, which is always 25 bytes long."""
    chunk = b"tEXtSoftware\0" + mark(command).encode()
    head = len(_PNG_SIGNATURE) + 25
    framed = (len(chunk) - 4).to_bytes(4) + chunk + zlib.crc32(chunk).to_bytes(4)
    return png[:head] + framed + png[head:]


def marked_svg(svg: str, command: str) -> str:
    """`svg` with the mark of `kvsim COMMAND` in it, as a comment at its end."""
    before, end, after = svg.rpartition("</svg>")
    return f"{before}<!-- {mark(command)} -->{end}{after}"


def _file(target: Path) -> tuple[str, frozenset[str] | None, bool]:
    """What `target` is, the commands that say they wrote it, and whether it is the work of kvsim alone."""
    if target.exists() and not target.is_file():
        return "there and no ordinary file", None, False
    ends = _ends_of(target)
    makers = frozenset(name for name in MARKED if mark(name).encode() in ends)
    if not makers:
        return "there and says nowhere that this command wrote it", frozenset(), False
    return f"a file that kvsim {' and '.join(sorted(makers))} wrote", makers, True


def _folder(target: Path, command: str) -> tuple[str, frozenset[str] | None, bool]:
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return "an empty folder", frozenset((command,)), True
    if _RECORDING in names or "events.jsonl" in names:
        return _recording(target, names)
    if _REPORT in names:
        made = mark("report").encode() in _ends_of(target / _REPORT)
        foreign = _foreign(names, _REPORT_FILES)
        return f"a report{foreign}", frozenset(("report",) if made else ()), not foreign
    if any(names == {f"{stem}.{form}" for stem in _EXPORT_STEMS} for form in ("csv", "parquet")):
        return "a folder of tables", frozenset(), False
    return _folder_of_recordings(target, names)


def _folder_of_recordings(target: Path, names: set[str]) -> tuple[str, frozenset[str] | None, bool]:
    if not all((target / name / _RECORDING).is_file() for name in names):
        return "a folder that holds something else", None, False
    folders = [_recording(target / name, {entry.name for entry in (target / name).iterdir()}) for name in names]
    makers = frozenset.intersection(*(folder[1] or frozenset() for folder in folders))
    if "compare" not in makers and not _are_replicas(target, names, makers):
        # As likely as not a folder that holds everything of a user.
        return "a folder of recordings that no one command of kvsim wrote", None, False
    return "a folder of recordings", makers, all(folder[2] for folder in folders)


def _are_replicas(target: Path, names: set[str], makers: frozenset[str]) -> bool:
    """Whether these are the servers of one `kvsim run --replicas`, which are numbered."""
    numbered = names == {str(number) for number in range(len(names))}
    return "run" in makers and numbered and len({_document(target / name).get("command") for name in names}) == 1


def _document(target: Path) -> dict[str, Any]:
    """What a recording's `meta.json` says; nothing where it cannot be read."""
    with suppress(OSError, ValueError):
        file = target / _RECORDING
        if file.stat().st_size <= _META_BYTES:
            read = parse(file.read_bytes())
            return read if isinstance(read, dict) else {}
    return {}


def _recording(target: Path, names: set[str]) -> tuple[str, frozenset[str] | None, bool]:
    """A recording is a command's own if its `meta.json` says so; that of a real run is not replaced unasked by any."""
    document = _document(target)
    source, foreign = document.get("source"), _foreign(names, _RECORDING_FILES)
    words: list[str] = []
    with suppress(ValueError):
        words = shlex.split(str(document.get("command") or ""))[:2]
    maker = words[1] if len(words) == 2 and words[0] == "kvsim" else ""
    of = {"simulation": "a simulation", "vllm": "a real run of vLLM", "hf": "a real run of generate()"}
    by = f" that kvsim {maker} wrote" if maker.isidentifier() else ""
    return (
        f"a recording of {of.get(str(source), 'an unknown source')}{by}{foreign}",
        frozenset((maker,)),
        not foreign and source == "simulation",
    )


def _foreign(names: set[str], known: frozenset[str]) -> str:
    others = sorted(names - known)
    return f" beside {others[0][:60]!r}, which it has not from kvsim" if others else ""


def _ends_of(file: Path) -> bytes:
    try:
        with file.open("rb") as content:
            head = content.read(_ENDS_BYTES)
            content.seek(max(content.seek(0, os.SEEK_END) - _ENDS_BYTES, len(head)))
            return head + content.read(_ENDS_BYTES)
    except OSError:
        return b""
