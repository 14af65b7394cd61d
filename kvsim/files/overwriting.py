"""Rules for replacing existing files and folders, so that no command destroys a user's work.

A command replaces its own output: `kvsim run` a recording of `kvsim run`, `kvsim plot` a figure of `kvsim plot`. It
replaces other files only with --overwrite. It never replaces a folder that kvsim did not write.

An output file has a mark (`kvsim.files.marks`). A recording has an identity, and its command in `meta.json`. After an
edit, neither fits, and the file counts as the user's. Tables for other programs have no place for a mark, so they
always need --overwrite.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.errors import KvsimError, UsageError
from kvsim.files.atomic import check_folder, whole_folder
from kvsim.files.contents import META_BYTES, content_of, open_file
from kvsim.files.identity import FORMAT, LOG, META, TABLES, is_as_written
from kvsim.files.json_text import parse
from kvsim.files.marks import maker_of

_DESCRIBED_BYTES = 1 << 20
"""Most bytes that are read of a changed `meta.json`, a log's first line, or the text that describes a figure."""
_RECORDING_FILES = frozenset((META, *(f"{name}.parquet" for name in TABLES)))
_REPORT = "report.html"
_EXPORT_STEMS = frozenset(("requests", "steps", "schedule", "memory", "pool"))


class _Existing(NamedTuple):
    """File or folder that is at a path already."""

    what: str
    """Words for it in a message."""
    makers: frozenset[str] | None
    """Commands of kvsim that may replace it; empty if only --overwrite may, None if not even that may."""
    is_unchanged: bool
    """True if it counts as unchanged since kvsim wrote it."""


def may_replace(path: str | os.PathLike[str], command: str, *, overwrite: bool, is_folder: bool = False) -> None:
    """Check that `kvsim COMMAND` may write to `path`: nothing is there, or unchanged output of the same command. With
    `overwrite`, the user's --overwrite, other files may be there as well, but no folder that kvsim did not write.

    `is_folder` is True if the command writes a folder.

    Raises:
        UsageError: the command may not write there.
    """
    target = Path(path)
    if not os.path.lexists(target):
        return
    if target.is_dir() and not is_folder:
        raise UsageError(f"cannot write {target}: it is a folder; name a file.")
    if is_folder and not target.is_dir():
        raise UsageError(f"cannot write {target}: it is a file; name a folder.")
    existing = _folder(target, command) if is_folder else _file(target)
    if existing.makers is None:
        raise UsageError(f"{target} is {existing.what}; choose another name, nothing was overwritten.")
    if overwrite or (command in existing.makers and existing.is_unchanged):
        return
    raise UsageError(f"{target} is {existing.what}; --overwrite replaces it, or choose another name.")


def may_write(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> None:
    """Check, before a long computation, that the folder of a file exists, and that `may_replace` allows the file.

    Raises:
        UsageError: the file could not be written.
    """
    may_replace(path, command, overwrite=overwrite)
    check_folder(path)


def check_ending(path: str | os.PathLike[str], what: str, *endings: str) -> None:
    """Check that the name of a file ends in one of `endings`, such as `.svg`; upper and lower case are the same.

    An empty ending allows a name without one. `what` says, for the message, what the file contains, such as "a figure".

    Raises:
        UsageError: the name has another ending.
    """
    ending = Path(path).suffix.lower()
    if ending not in endings:
        known = ", ".join(filter(None, endings))
        raise UsageError(f"{path} ends in {ending or 'nothing'}; {what} is written as {known}.")


@contextmanager
def replacing_folder(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield a path for a new folder, and rename it to `path` when the block ends without an exception.

    A folder that is at `path` is replaced if `may_replace` allows it, which is checked before the block and after it.
    """
    may_replace(path, command, overwrite=overwrite, is_folder=True)
    with whole_folder(path, replacing=True) as folder:
        try:
            yield folder
        except KvsimError as error:
            if str(folder) not in str(error):
                raise
            # The user does not know the hidden name of the scratch folder, so the message gets the name of the target.
            raise type(error)(str(error).replace(str(folder), str(path))) from error
        may_replace(path, command, overwrite=overwrite, is_folder=True)


def description(text: bytes) -> str:
    """Return a line with a digest of `text`, the contents of the text file that describes a figure. The figure's file
    has this line, so that edits of the text are detected.
    """
    return f"kvsim, described in {hashlib.blake2b(text, digest_size=16).hexdigest()}"


def describes(text_file: Path, figure: Path) -> bool:
    """Tell whether kvsim wrote `text_file` and the `figure` that it describes, and neither was changed since."""
    with suppress(OSError):
        said = description(content_of(text_file, _DESCRIBED_BYTES)).encode()
        return maker_of(figure) is not None and said in figure.read_bytes()
    return False


def _file(target: Path) -> _Existing:
    if target.exists() and not target.is_file():
        return _Existing("there and no ordinary file", None, False)
    maker = maker_of(target)
    if maker is None:
        return _Existing("there, and not as a command of kvsim wrote it", frozenset(), False)
    return _Existing(f"a file that kvsim {maker} wrote", frozenset((maker,)), True)


def _folder(target: Path, command: str) -> _Existing:
    """Describe the folder `target`. `command` is the command that is about to write there."""
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return _Existing("an empty folder", frozenset((command,)), True)
    if META in names or LOG in names:
        return _recording(target, names)
    if _REPORT in names:
        return _report(target)
    if any(names == {f"{stem}.{form}" for stem in _EXPORT_STEMS} for form in ("csv", "parquet")):
        return _Existing("a folder of tables", frozenset(), False)
    return _folder_of_recordings(target, names)


def _folder_of_recordings(target: Path, names: set[str]) -> _Existing:
    """Describe a folder of recordings. Only the output of one run of a command may be replaced."""
    if not all((target / name / META).is_file() for name in names):
        return _Existing("a folder that holds something else", None, False)
    folders = [_recording(target / name, {entry.name for entry in (target / name).iterdir()}) for name in names]
    makers = frozenset.intersection(*(folder.makers or frozenset() for folder in folders))
    if "compare" not in makers and not _are_replicas(target, names, makers):
        # Probably the folder in which a user keeps recordings.
        return _Existing("a folder of recordings that no one command of kvsim wrote", None, False)
    return _Existing("a folder of recordings", makers, all(folder.is_unchanged for folder in folders))


def _are_replicas(target: Path, names: set[str], makers: frozenset[str]) -> bool:
    """Tell whether the recordings in `target` are those of the servers of one run of `kvsim run --replicas`.

    Their folders are `names`, which must be the numbers from 0. `makers` are the commands that wrote all recordings.
    """
    numbered = names == {str(number) for number in range(len(names))}
    return "run" in makers and numbered and len({_document(target / name).get("command") for name in names}) == 1


def _document(target: Path) -> dict[str, Any]:
    """Return the `meta.json` of a recording, or the first line of a growing one's log; empty for any other folder."""
    with suppress(OSError, ValueError):
        if os.path.lexists(target / META):
            text = content_of(target / META, META_BYTES if is_as_written(target) else _DESCRIBED_BYTES)
        else:
            with open_file(target / LOG) as log:
                text = log.readline(_DESCRIBED_BYTES)
        read = parse(text)
        return read if isinstance(read, dict) and read.get("format") == FORMAT else {}
    return {}


def _recording(target: Path, names: set[str]) -> _Existing:
    """Describe a recording with the files `names`. Only simulations may count as unchanged, captures never."""
    document = _document(target)
    if not document:
        return _Existing("a folder that holds something else", None, False)
    source = document.get("source")
    foreign = _foreign(names - _RECORDING_FILES - ({"allocator.parquet"} if source == "hf" else set()))
    words: list[str] = []
    with suppress(ValueError):
        words = shlex.split(str(document.get("command") or ""))[:2]
    maker = words[1] if len(words) == 2 and words[0] == "kvsim" else ""
    of = {"simulation": "a simulation", "vllm": "a real run of vLLM", "hf": "a real run of generate()"}
    by = f" that kvsim {maker} wrote" if maker.isidentifier() else ""
    edited = "" if foreign or is_as_written(target) else ", changed since or of an older version"
    return _Existing(
        f"a recording of {of.get(str(source), 'an unknown source')}{by}{foreign}{edited}",
        frozenset((maker,)),
        not foreign and not edited and source == "simulation",
    )


def _report(target: Path) -> _Existing:
    if maker_of(target / _REPORT) != "report":
        return _Existing("a folder with a report that kvsim did not write in this form", None, False)
    foreign = _foreign(
        str(file.relative_to(target))
        for file in target.rglob("*")
        if not (
            file.is_dir() or maker_of(file) or describes(file, file.with_name(f"{file.name.partition('.')[0]}.png"))
        )
    )
    return _Existing(f"a report{foreign}", frozenset(("report",)), not foreign)


def _foreign(others: Iterable[str]) -> str:
    """Return a clause about the first of `others`, files that kvsim did not write; empty if there are none."""
    first = min(others, default="")
    return f" beside {first[:60]!r}, which kvsim did not write" if first else ""
