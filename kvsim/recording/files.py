"""Recordings on disk: a folder with `meta.json` and one Parquet file per table, or the log of one that still grows."""

from __future__ import annotations

import os
from pathlib import Path

from kvsim.errors import RecordingError
from kvsim.recording import eventlog, provenance
from kvsim.recording.check import check
from kvsim.recording.model import Recording
from kvsim.recording.tables import Memory, Requests, Schedule, Steps
from kvsim.recording.writer import RecordingWriter


def read(path: str | os.PathLike[str]) -> Recording:
    """Read and check the recording in folder `path`.

    Raises:
        RecordingVersionError: its version is one this kvsim does not know. RecordingError: it is missing, truncated
        or inconsistent; the message names the file, and the row where there is one.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise RecordingError(f"{folder} {what}; a recording is a folder with meta.json and steps.parquet in it.")
    recording = _read_log(folder) if (folder / eventlog.FILE_NAME).exists() else _read_tables(folder)
    check(recording, folder)
    return recording


def write(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write `recording` as folder `path`, replacing a recording that is there already.

    Raises:
        RecordingError: `path` exists and is not a recording, or cannot be written.
    """
    with RecordingWriter(path) as writer:
        for table in (recording.requests, recording.steps, recording.schedule, recording.memory):
            writer.append(table)
        return writer.commit(recording.meta)


def _read_tables(folder: Path) -> Recording:
    meta = provenance.read_meta(folder / provenance.FILE_NAME)
    # Both cost more than the rest of kvsim together.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from kvsim.recording.parquet import read_table  # noqa: PLC0415

    with ThreadPoolExecutor() as pool:
        memory, steps, schedule, requests = (
            pool.submit(read_table, folder, Memory) if (folder / "memory.parquet").exists() else None,
            pool.submit(read_table, folder, Steps),
            pool.submit(read_table, folder, Schedule),
            pool.submit(read_table, folder, Requests),
        )
        return Recording(
            meta=meta,
            requests=requests.result(),
            steps=steps.result(),
            schedule=schedule.result(),
            # An engine whose cache has no addresses, such as generate(), leaves this file out.
            memory=Memory.empty() if memory is None else memory.result(),
            name=folder.resolve().name,
        )


def _read_log(folder: Path) -> Recording:
    """A recording that is still growing, or whose engine was killed."""
    file = folder / eventlog.FILE_NAME
    try:
        with file.open("rb") as log:
            document, builder = eventlog.replay(log, str(file))
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {error.strerror}.") from error
    return builder.finish(provenance.meta_from_document(document, file), name=folder.resolve().name)
