"""Write a recording, at once or while it is being made.

Nothing half-written is ever visible under the final name: the folder is made beside its target and renamed into place
when it is complete. Rows go to disk in groups as they come, so that memory does not grow with the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvsim.errors import RecordingError
from kvsim.recording import provenance
from kvsim.recording.model import Meta
from kvsim.recording.scratch import REPLACED, scratch_beside
from kvsim.recording.tables import Memory, Requests, Schedule, Steps, Table

if TYPE_CHECKING:
    from kvsim.recording.parquet import TableFile


class RecordingWriter:
    """A recording on its way to disk: enter it, `append` rows, `commit`. Left without that, it leaves nothing behind.

    The bytes on disk depend on what was recorded, and not on how it was handed over.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Write to folder `path`, replacing a recording that is there already."""
        self._target = Path(path)
        self._files: dict[str, TableFile] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Begin.

        Raises:
            RecordingError: the target exists and is not a recording, or cannot be written.
        """
        from kvsim.recording.parquet import TableFile  # noqa: PLC0415  costs more than the rest of kvsim together

        target = self._target
        with self._in_a_sentence():
            self._refuse_anything_else()
            target.parent.mkdir(parents=True, exist_ok=True)
            self._scratch = self._stack.enter_context(scratch_beside(target))
            self._new = self._scratch / "new"
            self._new.mkdir()
        for table in (Requests, Steps, Schedule, Memory):
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

    def commit(self, meta: Meta) -> Path:
        """Everything has been appended: make it a recording, and return its folder.

        Raises:
            RecordingError: it cannot be written, or the target has become something else in the meantime.
        """
        target, old = self._target, self._scratch / REPLACED
        with self._in_a_sentence():
            for file in self._files.values():
                file.close()
            (self._new / provenance.FILE_NAME).write_text(provenance.meta_as_text(meta), encoding="utf-8")
            self._refuse_anything_else()
            try:
                if target.exists():
                    target.rename(old)
                self._new.rename(target)
            except BaseException:
                if old.exists() and not target.exists():
                    old.rename(target)
                raise
        return target

    def _refuse_anything_else(self) -> None:
        """Raise if there is something at the target that is not a recording."""
        target = self._target
        if target.exists() and not (target / provenance.FILE_NAME).is_file():
            raise RecordingError(
                f"{target} exists and is not a recording; choose another name, nothing was overwritten."
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
