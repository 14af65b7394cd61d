"""Write files and folders atomically: each gets its name when it is complete, so none is ever seen half written."""

from __future__ import annotations

import os
from contextlib import contextmanager
from errno import EDQUOT, ENOENT, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import UsageError, reason_of, shortened
from kvsim.files.marks import HTML_COMMENT, Comment, mark_file
from kvsim.files.scratch import keep_access, replace_folder, scratch_beside

if TYPE_CHECKING:
    from collections.abc import Iterator


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` without symbolic links.

    Raises:
        UsageError: it has a character that no path can have.
    """
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise UsageError(
            f"{shortened(os.fspath(path))} is no path: {reason_of(error)}; choose another name."
        ) from error


@contextmanager
def whole_file(path: str | os.PathLike[str], *, made_by: str = "", comment: Comment = HTML_COMMENT) -> Iterator[Path]:
    """Yield a scratch file beside `path`, and rename it to `path` when the block ends without an exception.

    If `path` exists, the new file gets its permissions and owner, and symbolic links to it stay valid. Another hard
    link keeps the old contents. `made_by` is the command whose mark the file gets (`kvsim.files.marks`); empty for no
    mark. `comment` is the form of the mark in a text file.

    Raises:
        UsageError: the file cannot be written.
    """
    target = real_path(path)
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file.")
    try:
        with scratch_beside(target) as scratch:
            file = scratch / target.name
            yield file
            if made_by:
                mark_file(file, made_by, comment)
            keep_access(file, target)
            file.replace(target)
    except OSError as error:
        raise unwritable(path, reason_of(error)) from error


def unwritable(file: str | os.PathLike[str], reason: str) -> UsageError:
    """Return the error for a file that cannot be written. `reason` is the wording of the operating system."""
    full = (os.strerror(ENOSPC), os.strerror(EDQUOT))
    remedy = "free some, or choose another disk" if reason in full else "choose a folder that exists and may be written"
    return UsageError(f"cannot write {os.fspath(file)}: {reason}; {remedy}.")


def check_folder(file: str | os.PathLike[str]) -> None:
    """Check that the folder in which a new file is to be written exists.

    Raises:
        UsageError: there is no such folder.
    """
    if not Path(file).parent.is_dir():
        raise unwritable(file, os.strerror(ENOENT))


@contextmanager
def whole_folder(path: str | os.PathLike[str], *, replacing: bool = False) -> Iterator[Path]:
    """Yield a path beside `path` for a new folder, and rename it to `path` when the block ends without an exception.

    Missing parents are created. An existing folder is replaced with `replacing`, and is otherwise an error.
    `kvsim.files.overwriting` decides whether it may be replaced.

    Raises:
        UsageError: the folder exists, or cannot be written.
    """
    target = real_path(path)
    if os.path.lexists(target) and not (replacing and target.is_dir()):
        raise UsageError(f"{path} exists; name a new folder, nothing was overwritten.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_beside(target) as scratch:
            new = scratch / "new"
            yield new
            replace_folder(new, target, scratch)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"cannot write {path}: a part of its path is a file, not a folder.") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {reason_of(error)}; choose a folder that may be written.") from error
