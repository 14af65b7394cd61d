"""The oracle as a subprocess, where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

DRIVER = Path(__file__).with_name("oracle_driver.py")


class OracleFailedError(Exception):
    """The oracle refused a workload, or gave up on one that makes no progress."""


class Oracle:
    """One process that answers workloads with records.

    `installation` is the folder that the oracle's setup made, with `src` and `venv` in it; `script` is the oracle.
    """

    def __init__(self, installation: Path, script: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(installation / "src")}
        command = [str(installation / "venv/bin/python"), str(DRIVER), str(script)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    @classmethod
    def from_environment(cls, other_script: str = "") -> Oracle | None:
        """The oracle that KVSIM_ORACLE (installation) and KVSIM_ORACLE_SCRIPT (file) name, or `other_script` beside it.

        None where there is none.
        """
        installation, script = os.environ.get("KVSIM_ORACLE"), os.environ.get("KVSIM_ORACLE_SCRIPT")
        if not installation or not script:
            return None
        file = Path(script).with_name(other_script) if other_script else Path(script)
        return cls(Path(installation), file) if file.exists() else None

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.terminate()

    def records(self, workload: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """What the oracle says of `workload`, numbered like the lines of its output; without timings.

        Raises:
            OracleFailedError: after the records that there are, if the oracle did not reach the end.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(workload) + "\n")
        self._process.stdin.flush()
        for line, text in enumerate(self._process.stdout, 1):
            record = json.loads(text)
            match record["kind"]:
                case "done":
                    return
                case "failed":
                    raise OracleFailedError(record["error"])
                case _:
                    record.pop("sched_us", None)
                    yield line, record
        raise OracleFailedError("the process ended")
