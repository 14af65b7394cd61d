from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kvsim.capture.sinks import Fanout, FileSink
from kvsim.recording.eventlog import FILE_NAME


def test_lines_reach_the_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "run")
    sink.write(b"[1]\n")
    sink.write(b"[2]\n")
    sink.close()
    assert (tmp_path / "run" / FILE_NAME).read_bytes() == b"[1]\n[2]\n"


def test_an_older_log_is_never_overwritten(tmp_path: Path) -> None:
    FileSink(tmp_path).close()
    with pytest.raises(FileExistsError):
        FileSink(tmp_path)


class FullDisk:
    """A file on a disk that is full from the second write on."""

    def __init__(self, file: Any) -> None:
        self.file, self.writes = file, 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        if self.writes > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = FileSink(tmp_path)
    disk = sink._file = FullDisk(sink._file)
    for number in range(5):
        sink.write(b"[%d]\n" % number)
    sink.close()
    assert (tmp_path / FILE_NAME).read_bytes() == b"[0]\n", "what was written before stays"
    assert disk.writes == 2, "after the first failure nothing more is tried"
    assert caplog.text.count("recording ends here") == 1


def test_a_fanout_hands_everything_to_everyone(tmp_path: Path) -> None:
    sinks = [FileSink(tmp_path / name) for name in "ab"]
    both = Fanout(sinks)
    both.write(b"[1]\n")
    both.close()
    assert not both.wants_snapshot
    assert [(tmp_path / name / FILE_NAME).read_bytes() for name in "ab"] == [b"[1]\n"] * 2
