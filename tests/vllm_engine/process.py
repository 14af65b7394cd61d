"""The process in which vLLM's own engine runs, from the side of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .install import python_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]


class EngineFailedError(Exception):
    """vLLM refused a workload, or failed on it."""


class EngineProcess:
    """One process that serves workloads with vLLM's own engine; it takes seconds to start and milliseconds to serve."""

    def __init__(self, release: str, log: Path) -> None:
        """Start it with a release of vLLM; what it says goes into the file `log`."""
        settings = {"PYTHONPATH": python_path(release, ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.vllm_engine.engine_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=ROOT,
                env=os.environ | settings,
            )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.stdin.close()  # type: ignore[union-attr]

    def serve(self, workload: dict[str, Any], **environment: str) -> None:
        """Put `workload` through an engine that is started in `environment`.

        Raises:
            EngineFailedError: vLLM did not reach the end.
        """
        for _ in self._answers({"workload": workload, "environment": environment, "tell": False}):
            pass

    def records(self, workload: dict[str, Any], **environment: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """What the scheduler does with `workload`, in the records of an oracle, numbered like the lines of its file.

        Raises:
            EngineFailedError: after the records that there are, if vLLM did not reach the end.
        """
        return enumerate(self._answers({"workload": workload, "environment": environment, "tell": True}), 1)

    def _answers(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            match answer["kind"]:
                case "done":
                    return
                case "failed":
                    raise EngineFailedError(answer["error"])
                case _:
                    yield answer
        raise EngineFailedError("the process ended")
