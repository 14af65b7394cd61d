"""Write a recording, at once or while it is being made.

Nothing half-written is ever visible under the final name: the folder is made beside its target and renamed into place
when it is complete. Rows go to disk in groups as they come, so that memory does not grow with the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvsim.errors import IntegrityError, RecordingError
from kvsim.files.identity import identity_of
from kvsim.files.scratch import replace_folder, scratch_beside
from kvsim.recording import provenance
from kvsim.recording.model import Meta, Recording
from kvsim.recording.tables import Copies, Memory, Requests, Schedule, Steps, Table

if TYPE_CHECKING:
    from kvsim.recording.parquet import TableFile

_MOST_ROWS_CHECKED = 1 << 22
"""Rows of the longest recording that is read back and checked before it takes its name, in a second or two. A longer
one would take memory by its steps; of all its rows the order is checked, and the rest when somebody reads it.
"""
_MOST_ROWS_PLAYED = 200_000
"""Rows of the longest that is also played, in some tenths of a second."""


class RecordingWriter:
    """A recording on its way to disk: enter it, `append` rows, `commit`. Left without that, it leaves nothing behind.

    The bytes on disk depend on what was recorded, and not on how it was handed over. All files of a recording carry one
    identity, a digest of everything in it, so that files of two are never taken for one.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write to folder `path`, replacing a recording of the same source; with `overwrite`, of any."""
        self._target = Path(os.path.realpath(path))
        self._overwrite = overwrite
        self._files: dict[str, TableFile] = {}
        self._stack = ExitStack()
        self._num_rows = 0

    def __enter__(self) -> Self:
        """Begin."""
        from kvsim.recording.parquet import TableFile  # noqa: PLC0415  costs more than the rest of kvsim together

        target = self._target
        with self._in_a_sentence():
            self._refuse_anything_else()
            target.parent.mkdir(parents=True, exist_ok=True)
            self._scratch = self._stack.enter_context(scratch_beside(target))
            self._new = self._scratch / "new"
            self._new.mkdir()
        for table in (Requests, Steps, Schedule, Memory, Copies):
            self._files[table.name] = TableFile(self._new / f"{table.name}.parquet")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.abandon()
        self._stack.close()

    def append(self, table: Table) -> None:
        """Add rows to the end of their table, any number at a time.

        Raises:
            RecordingError: they cannot be written.
        """
        with self._in_a_sentence():
            self._files[table.name].append(table)
        self._num_rows += len(table)

    def commit(self, meta: Meta, *, play: Callable[[Recording, Path], object] | None = None) -> Path:
        """Make a recording of all that has been appended, and return its folder.

        Args:
            meta: what is said of the recording.
            play: checks what the reader does not, of a recording that is not long; raises RecordingError.

        Raises:
            RecordingError: it cannot be written, the target is a recording of another source, or it has become
            something else in the meantime.
            IntegrityError: what was written does not agree with itself.
        """
        with self._in_a_sentence():
            digests = [file.finish() for file in self._files.values()]
            identity = identity_of(provenance.meta_as_text(meta).encode(), digests)
            for file in self._files.values():
                file.close(identity)
            (self._new / provenance.FILE_NAME).write_text(provenance.meta_as_text(meta, identity), encoding="utf-8")
            self._refuse_anything_else(meta.source)
            self._check_what_was_written(play)
            replace_folder(self._new, self._target, self._scratch)
        return self._target

    def _check_what_was_written(self, play: Callable[[Recording, Path], object] | None) -> None:
        """Read and check it as whoever opens it will, and as whoever prints its figures."""
        from kvsim.recording.check import check, check_events  # noqa: PLC0415  as above
        from kvsim.recording.parquet import read_tables  # noqa: PLC0415  as above

        if self._num_rows > _MOST_ROWS_CHECKED:
            return
        try:
            recording = read_tables(self._new)
            check(recording, self._new)
            played = play if play and self._num_rows <= _MOST_ROWS_PLAYED else check_events
            played(recording, self._new)
        except RecordingError as error:
            said = str(error).replace(str(self._new), str(self._target)).rstrip(".")
            raise IntegrityError(f"{said}; what was recorded does not agree, so nothing was written.") from error

    def _refuse_anything_else(self, source: str = "") -> None:
        """Raise if there is something at the target that is not a recording, or one of another `source` than this."""
        target = self._target
        if not target.exists():
            return
        file = target / provenance.FILE_NAME
        if not file.is_file():
            raise RecordingError(
                f"{target} exists and is not a recording; choose another name, nothing was overwritten."
            )
        if not source or self._overwrite:
            return
        there = provenance.source_of(file)
        if there != source:
            raise RecordingError(
                f"{target} is a recording of {there}, and this one is of {source}; choose another name, or allow it to "
                "be overwritten."
            )

    @contextmanager
    def _in_a_sentence(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError) as error:
            raise RecordingError(f"cannot write {self._target}: a part of its path is a file, not a folder.") from error
        except OSError as error:
            reason = (error.strerror or str(error)).splitlines()[0].rstrip(".")
            raise RecordingError(f"cannot write {self._target}: {reason}.") from error
