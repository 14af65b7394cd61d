"""Whether a command may write where something stands already.

A command replaces what it wrote itself: `kvsim run` the recording of an earlier `kvsim run`, `kvsim plot` an earlier
figure. Whatever else is there stays, unless the user says --overwrite; and a folder that kvsim did not write stays in
any case, because it may hold anything.

What a command wrote is known from a mark in the file (`kvsim.files.marks`), or from the identity of a recording and the
command in its `meta.json`; what was edited since is the user's. Formats of other programs have no place for a mark, so
their files are replaced with --overwrite alone.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOENT
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError, UsageError
from kvsim.files.atomic import unwritable, whole_folder
from kvsim.files.contents import META_BYTES, content_of, open_file
from kvsim.files.identity import FORMAT, LOG, META, TABLES, is_as_written
from kvsim.files.json_text import parse
from kvsim.files.marks import maker_of

_DESCRIBED_BYTES = 1 << 20
"""A `meta.json` that is not as kvsim wrote it is read up to this size, to say what it is."""
_RECORDING_FILES = frozenset((META, *(f"{name}.parquet" for name in TABLES)))
_REPORT = "report.html"
_EXPORT_STEMS = frozenset(("requests", "steps", "schedule", "memory", "pool"))


def may_replace(path: str | os.PathLike[str], command: str, *, overwrite: bool, is_folder: bool = False) -> None:
    """Make sure that `kvsim COMMAND` may write to `path`: nothing is there, or only what it wrote itself.

    Args:
        path: the file or folder that will be written.
        command: the command's name, such as `run`.
        overwrite: whether the user said --overwrite.
        is_folder: whether a folder will be written.
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
    """Make sure, before minutes are spent on a file, that its folder is there, and that `may_replace` allows it."""
    may_replace(path, command, overwrite=overwrite)
    if not Path(path).parent.is_dir():
        raise unwritable(path, os.strerror(ENOENT))


@contextmanager
def replacing_folder(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> Iterator[Path]:
    """A name for a folder that `kvsim COMMAND` makes, which becomes `path` when the block ends without an exception."""
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


def description(text: bytes) -> str:
    """What a figure's file says of the text beside it, so that a text which was edited is known."""
    return f"kvsim, described in {hashlib.blake2b(text, digest_size=16).hexdigest()}"


def describes(words: Path, figure: Path) -> bool:
    """Whether the text in `words` is the one that kvsim wrote beside `figure`, which it wrote too."""
    with suppress(OSError):
        said = description(content_of(words, _DESCRIBED_BYTES)).encode()
        return maker_of(figure) is not None and said in figure.read_bytes()
    return False


def _file(target: Path) -> tuple[str, frozenset[str] | None, bool]:
    """What `target` is, the commands that say they wrote it, and whether it is the work of kvsim alone."""
    if target.exists() and not target.is_file():
        return "there and no ordinary file", None, False
    maker = maker_of(target)
    if maker is None:
        return "there, and not as a command of kvsim wrote it", frozenset(), False
    return f"a file that kvsim {maker} wrote", frozenset((maker,)), True


def _folder(target: Path, command: str) -> tuple[str, frozenset[str] | None, bool]:
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return "an empty folder", frozenset((command,)), True
    if META in names or LOG in names:
        return _recording(target, names)
    if _REPORT in names:
        return _report(target)
    if any(names == {f"{stem}.{form}" for stem in _EXPORT_STEMS} for form in ("csv", "parquet")):
        return "a folder of tables", frozenset(), False
    return _folder_of_recordings(target, names)


def _folder_of_recordings(target: Path, names: set[str]) -> tuple[str, frozenset[str] | None, bool]:
    if not all((target / name / META).is_file() for name in names):
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
    """What a recording's `meta.json`, or the first line of its log, says; nothing where it is no recording."""
    with suppress(OSError, ValueError):
        if os.path.lexists(target / META):
            text = content_of(target / META, META_BYTES if is_as_written(target) else _DESCRIBED_BYTES)
        else:
            with open_file(target / LOG) as log:
                text = log.readline(_DESCRIBED_BYTES)
        read = parse(text)
        return read if isinstance(read, dict) and read.get("format") == FORMAT else {}
    return {}


def _recording(target: Path, names: set[str]) -> tuple[str, frozenset[str] | None, bool]:
    """A recording is a command's own if its `meta.json` says so and nothing in it was changed; that of a real run is
    not replaced unasked by any.
    """
    document = _document(target)
    if not document:
        return "a folder that holds something else", None, False
    source = document.get("source")
    foreign = _foreign(names - _RECORDING_FILES - ({"allocator.parquet"} if source == "hf" else set()))
    words: list[str] = []
    with suppress(ValueError):
        words = shlex.split(str(document.get("command") or ""))[:2]
    maker = words[1] if len(words) == 2 and words[0] == "kvsim" else ""
    of = {"simulation": "a simulation", "vllm": "a real run of vLLM", "hf": "a real run of generate()"}
    by = f" that kvsim {maker} wrote" if maker.isidentifier() else ""
    edited = "" if foreign or is_as_written(target) else ", changed since or of an older version"
    return (
        f"a recording of {of.get(str(source), 'an unknown source')}{by}{foreign}{edited}",
        frozenset((maker,)),
        not foreign and not edited and source == "simulation",
    )


def _report(target: Path) -> tuple[str, frozenset[str] | None, bool]:
    """A report is a page with its text and its figures, and what describes each of these."""
    if maker_of(target / _REPORT) != "report":
        return "a folder with a report that kvsim did not write as it stands", None, False
    foreign = _foreign(
        str(file.relative_to(target))
        for file in target.rglob("*")
        if not (
            file.is_dir() or maker_of(file) or describes(file, file.with_name(f"{file.name.partition('.')[0]}.png"))
        )
    )
    return f"a report{foreign}", frozenset(("report",)), not foreign


def _foreign(others: Iterable[str]) -> str:
    first = min(others, default="")
    return f" beside {first[:60]!r}, which it has not from kvsim" if first else ""
