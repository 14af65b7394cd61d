"""Write a recording, at once or during a run.

The folder is written beside its target and renamed when it is complete, so that readers never find a partial one. Rows
are written in groups as they arrive, so that memory does not grow with the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvsim.errors import IntegrityError, RecordingError, reason_of
from kvsim.files.atomic import real_path
from kvsim.files.identity import identity_of
from kvsim.files.scratch import replace_folder, scratch_beside
from kvsim.recording import provenance
from kvsim.recording.model import Meta, Recording
from kvsim.recording.tables import TABLES, ColumnTable

if TYPE_CHECKING:
    from kvsim.recording.parquet import TableFile

_MOST_ROWS_CHECKED = 1 << 22
"""Largest number of rows of a recording that is read back and checked before its folder gets its final name.

Reading and checking this many rows takes a second or two. A longer recording is checked only when it is read, because
the checks need memory for all rows.
"""
_MOST_ROWS_REPLAYED = 200_000
"""Most rows of a recording that is replayed before its folder gets its final name. This takes tenths of a second."""


class RecordingWriter:
    """Context manager that writes a recording: `append` rows, then `commit`. Without a commit, it leaves no files.

    The bytes on disk depend only on the rows and the provenance. All files of a recording have the same identity, a
    digest of its contents, so that files of two recordings are never mixed up.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Args:
        path: the folder to write.
        overwrite: True to replace a recording with another `source` (kind of program that made it), too. A recording
            with the same source is replaced in any case.
        """
        self._target = real_path(path)
        self._overwrite = overwrite
        self._files: dict[str, TableFile] = {}
        self._stack = ExitStack()
        self._num_rows = 0

    def __enter__(self) -> Self:
        from kvsim.recording.parquet import TableFile  # noqa: PLC0415  costs more than the rest of kvsim together

        target = self._target
        with self._as_recording_error():
            self._check_replaceable()
            target.parent.mkdir(parents=True, exist_ok=True)
            self._scratch = self._stack.enter_context(scratch_beside(target))
            self._new = self._scratch / "new"
            self._new.mkdir()
        for table in TABLES:
            self._files[table.name] = TableFile(self._new / f"{table.name}.parquet")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.abandon()
        self._stack.close()

    def append(self, table: ColumnTable) -> None:
        """Add rows to the end of their table, any number at a time.

        Raises:
            RecordingError: the rows cannot be written.
        """
        with self._as_recording_error():
            self._files[table.name].append(table)
        self._num_rows += len(table)

    def commit(self, meta: Meta, *, replay_check: Callable[[Recording, Path], object] | None = None) -> Path:
        """Finish the recording, and return its folder.

        Args:
            meta: provenance of the recording.
            replay_check: check of a short recording that replays it, and raises a RecordingError; None for no such
                check.

        Raises:
            RecordingError: the recording cannot be written, or the target exists and may not be replaced.
            IntegrityError: the written recording is inconsistent.
        """
        with self._as_recording_error():
            digests = [file.finish() for file in self._files.values()]
            identity = identity_of(provenance.meta_as_text(meta).encode(), digests)
            for file in self._files.values():
                file.close(identity)
            (self._new / provenance.FILE_NAME).write_text(provenance.meta_as_text(meta, identity), encoding="utf-8")
            self._check_replaceable(meta.source)
            self._check_what_was_written(replay_check)
            replace_folder(self._new, self._target, self._scratch)
        return self._target

    def _check_what_was_written(self, replay_check: Callable[[Recording, Path], object] | None) -> None:
        from kvsim.recording.check import check, check_events  # noqa: PLC0415  as above
        from kvsim.recording.parquet import read_tables  # noqa: PLC0415  as above

        if self._num_rows > _MOST_ROWS_CHECKED:
            return
        try:
            recording = read_tables(self._new)
            check(recording, self._new)
            more_checks = replay_check if replay_check and self._num_rows <= _MOST_ROWS_REPLAYED else check_events
            more_checks(recording, self._new)
        except RecordingError as error:
            reason = str(error).replace(str(self._new), str(self._target)).rstrip(".")
            raise IntegrityError(f"{reason}; what was recorded does not agree, so nothing was written.") from error

    def _check_replaceable(self, source: str = "") -> None:
        """Raise a RecordingError if the target exists and may not be replaced.

        A target that exists must be a recording. Without `overwrite`, it must have the same `source`; an empty `source`
        is not compared.
        """
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
        existing = provenance.source_of(file)
        if existing != source:
            raise RecordingError(
                f"{target} is a recording of {existing}, and this one is of {source}; choose another name, or allow it "
                "to be overwritten."
            )

    @contextmanager
    def _as_recording_error(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError) as error:
            raise RecordingError(f"cannot write {self._target}: a part of its path is a file, not a folder.") from error
        except OSError as error:
            raise RecordingError(f"cannot write {self._target}: {reason_of(error)}.") from error
