from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvsim.capture import sinks
from kvsim.capture.pump import Pump
from kvsim.capture.sinks import Fanout, FileSink
from kvsim.recording.eventlog import FILE_NAME
from tests.waiting import until


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


def test_events_of_an_idle_engine_reach_the_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.write(b"[1]\n")
    until(lambda: (tmp_path / FILE_NAME).read_bytes() == b"[1]\n")
    sink.close()


def test_an_engine_that_is_killed_leaves_what_it_wrote(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from kvsim.capture.sinks import FileSink; "
        "sink = FileSink(Path(sys.argv[1])); [sink.write(b'[%d]\\n' % n) for n in range(1000)]; "
        "time.sleep(0.9); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        engine.kill()
    assert (tmp_path / FILE_NAME).read_bytes().count(b"\n") == 1000


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[bytes] = []

    def write_all(descriptor: int, data: bytes) -> None:
        writes.append(data)
        if len(writes) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.write(descriptor, data)

    monkeypatch.setattr(sinks, "write_all", write_all)
    sink = FileSink(tmp_path)
    sink.write(b"[0]\n")
    until(lambda: writes)
    until(lambda: sink.write(b"[1]\n") is None and caplog.text)
    for _ in range(5):
        sink.write(b"[2]\n")
    sink.close()
    assert (tmp_path / FILE_NAME).read_bytes() == b"[0]\n", "what was written before stays"
    assert len(writes) == 2, "after the first failure nothing more is tried"
    assert caplog.text.count("recording ends here") == 1
    assert "No space left on device" in caplog.text


def test_a_disk_that_stands_still_is_not_waited_for() -> None:
    goes_on = threading.Event()
    reasons: list[str] = []
    pump = Pump(
        lambda _: goes_on.wait(10) and None,
        reasons.append,
        name="stuck",
        period_s=0.0,
        max_waiting_bytes=1000,
    )
    for _ in range(2000):
        pump.push(b"0123456789")
        assert pump.waiting_bytes <= 1010
    assert not pump.open
    assert len(reasons) == 1
    goes_on.set()
    assert pump.close(5.0)


def test_a_fanout_hands_everything_to_everyone(tmp_path: Path) -> None:
    both_files = [FileSink(tmp_path / name) for name in "ab"]
    both = Fanout(both_files)
    both.write(b"[1]\n")
    both.close()
    assert [(tmp_path / name / FILE_NAME).read_bytes() for name in "ab"] == [b"[1]\n"] * 2
