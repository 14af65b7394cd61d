"""Read and write recordings. A recording is a folder with `meta.json` and a Parquet file per table; while its run goes
on, it is a log.

A user's recording is checked at every read. The recordings that come with kvsim were checked by its tests, so that only
damaged files are detected at a read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from kvsim.errors import RecordingError, reason_of
from kvsim.files.contents import open_file
from kvsim.recording import eventlog, provenance
from kvsim.recording.model import Meta, Outline, Recording
from kvsim.recording.shipped import is_shipped
from kvsim.recording.shipped_requests import read_shipped_requests
from kvsim.recording.tables import Requests
from kvsim.recording.writer import RecordingWriter
from kvsim.setting_fields import check_instance

_ATTEMPTS = 20
"""Largest number of attempts to read a folder that another process replaces meanwhile."""
_PAUSE_S = 0.005
"""Seconds by which the pause after an attempt is longer than the pause before. All pauses together take one second."""
_SERVER = re.compile(r"\d+|(prefill|decode)-\d+(-rank-\d+)?|server-\d+-rank-\d+")
_NUMBER = re.compile(r"\d+")
_Read = TypeVar("_Read", Recording, Outline)


class RecordedRequests(NamedTuple):
    """Requests of a recording and its provenance, without other tables."""

    meta: Meta
    requests: Requests
    name: str


def read(path: str | os.PathLike[str], *, check_shipped: bool = False) -> Recording:
    """Read and check the recording in the folder `path`. If another process replaces the recording meanwhile, it is
    read again.

    Args:
        path: folder of the recording.
        check_shipped: True to check a recording that comes with kvsim, too.

    Raises:
        RecordingVersionError: this kvsim does not know the version.
        RecordingError: the recording is missing, truncated or inconsistent; the message names the file and row.
    """
    folder = Path(path)
    recording = _read_undisturbed(folder, _read_once)
    if check_shipped or not is_shipped(folder):
        from kvsim.recording.check import check  # noqa: PLC0415  a fifth of the start-up time

        check(recording, folder)
    return recording


def read_outlines(folders: Sequence[Path]) -> Iterator[Outline]:
    """Yield the outlines of many recordings, read and checked, in the order of `folders`.

    Raises:
        RecordingError: a table is missing, truncated or inconsistent in itself.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  as in `read`

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(_read_outline, folders)


def _read_outline(folder: Path) -> Outline:
    from kvsim.recording.check_requests import check_requests  # noqa: PLC0415  as in `read`
    from kvsim.recording.check_schedule import check_steps  # noqa: PLC0415

    outline = _read_undisturbed(folder, _read_outline_once)
    check_requests(outline, folder / "requests.parquet")
    check_steps(outline, folder / "steps.parquet")
    return outline


def read_requests(path: str | os.PathLike[str]) -> Recording | RecordedRequests:
    """Return the requests of the recording in the folder `path`, to serve them again.

    If the recording comes with kvsim, only its requests are read. Any other recording is read and checked as a whole.

    Raises:
        RecordingError: the recording is missing, truncated or inconsistent.
    """
    folder = Path(path)
    if not is_shipped(folder):
        return read(folder)
    file = folder / provenance.FILE_NAME
    document = provenance.read_document(file)
    requests = read_shipped_requests(folder)
    if requests is None:
        from kvsim.recording.parquet import read_table  # noqa: PLC0415  as above

        requests = read_table(folder, Requests, provenance.identity_of(document))
    return RecordedRequests(provenance.meta_from_document(document, file), requests, folder.resolve().name)


def server_folders(path: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of a fleet's servers in `path`; empty if `path` is itself a recording, or has no such folders.

    Prefill servers come first, then decode servers, then others, each sorted by number.
    """
    folder = Path(path)
    try:
        if (folder / provenance.FILE_NAME).exists() or not folder.is_dir():
            return []
        servers = [each for each in folder.iterdir() if _SERVER.fullmatch(each.name)]
        recordings = [each for each in servers if (each / provenance.FILE_NAME).is_file()]
    except OSError:
        return []
    kinds = {"prefill": 0, "decode": 1}
    return sorted(
        recordings,
        key=lambda each: (
            kinds.get(each.name.partition("-")[0], 2),
            [int(part) for part in _NUMBER.findall(each.name)],
        ),
    )


def write(recording: Recording, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write `recording` to the folder `path`, and return the folder.

    An existing recording with the same `source` (kind of program that made it) is replaced; with `overwrite`, a
    recording of any source.

    Raises:
        RecordingError: `path` exists and may not be replaced, or it cannot be written.
        IntegrityError: the recording is inconsistent; nothing was written.
    """
    check_instance("the recording", recording, Recording, "one that was read, as kvsim.read returns it")
    check_instance("the folder of a recording", path, str | os.PathLike, "a path")
    with RecordingWriter(path, overwrite=overwrite) as writer:
        for table in recording.tables:
            writer.append(table)
        return writer.commit(recording.meta)


def _read_undisturbed(folder: Path, read_once: Callable[[Path], _Read]) -> _Read:
    for attempt in range(_ATTEMPTS):
        before = _stamp(folder)
        try:
            recording = read_once(folder)
        except RecordingError:
            if _stamp(folder) == before:
                raise
        else:
            if _stamp(folder) == before:
                return recording
        time.sleep(attempt * _PAUSE_S)
    raise RecordingError(f"{folder} was replaced again and again while it was read; read it when nothing writes to it.")


def _stamp(folder: Path) -> tuple[int, ...]:
    """Return a value that changes if the folder is replaced, or if files in it are added, removed or renamed."""
    try:
        status = folder.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _read_once(folder: Path) -> Recording:
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise RecordingError(f"{folder} {problem}; a recording is a folder with meta.json and steps.parquet in it.")
    if (folder / eventlog.FILE_NAME).exists():
        return _read_log(folder)
    from kvsim.recording.parquet import read_tables  # noqa: PLC0415  costs more than the rest of kvsim together

    return read_tables(folder)


def _read_outline_once(folder: Path) -> Outline:
    if not folder.is_dir() or (folder / eventlog.FILE_NAME).exists():
        return Outline.of(_read_once(folder))
    from kvsim.recording.parquet import read_outline_tables  # noqa: PLC0415  as above

    return read_outline_tables(folder)


def _read_log(folder: Path) -> Recording:
    file = folder / eventlog.FILE_NAME
    try:
        with open_file(file) as log:
            document, builder = eventlog.replay(log, str(file))
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {reason_of(error)}.") from error
    return builder.finish(provenance.meta_from_document(document, file), name=folder.resolve().name)
