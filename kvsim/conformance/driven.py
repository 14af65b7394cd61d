"""A process in which vLLM's own engine serves workloads with a fake model, and records its decisions.

vLLM may be installed in another environment than kvsim; see `vllm_driver.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

DRIVER = Path(__file__).with_name("vllm_driver.py")
_MOST_LETTERS = 300


class VllmMissingError(KvsimError):
    """Raised if there is no vLLM that can serve workloads."""


class EngineFailedError(KvsimError):
    """Raised if vLLM refuses a workload, or fails while it serves it."""


class DrivenVllm:
    """Process that serves workloads with vLLM's engine. `release` is the version of vLLM in the process."""

    def __init__(
        self,
        python: str = sys.executable,
        script: Sequence[str] = (str(DRIVER),),
        log: Path | None = None,
        **environment: str,
    ) -> None:
        """Args:
        python: interpreter of an environment with vLLM.
        script: path of the driver, and its arguments.
        log: file for the process's standard error; None for a temporary file.
        environment: further environment variables of the process.
        """
        self._python = python
        self._log = tempfile.TemporaryFile() if log is None else log.open("w+b")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, *script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=os.environ | environment,
            )
        except OSError as error:
            self._log.close()
            raise VllmMissingError(f"{python} cannot be run: {error.strerror}; give an interpreter.") from error
        self.release = str(self._ready().get("vllm"))

    def _ready(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        try:
            first: Mapping[str, Any] = json.loads(self._process.stdout.readline())
        except ValueError:
            self.close()
            raise VllmMissingError(
                f"{self._python} has no vLLM that can be driven ({self._last_line()}); install vLLM there, or give "
                "the interpreter of an environment that has it (--python)."
            ) from None
        return first

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["it ended without a word"]
        return lines[-1].strip().rstrip(".")[:_MOST_LETTERS]

    def close(self) -> None:
        """Close the standard input of the process, and wait for its end."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # the process may be blocked, because the rest of its output is not read
            self._process.kill()
        self.close()
        self._log.close()

    def records(self, workload: Mapping[str, Any], **fields: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Serve `workload`, and yield the records of the scheduler's decisions, each with its number from 1.

        `fields` are further fields of the JSON object that the driver gets, beside `workload`.

        Raises:
            EngineFailedError: vLLM failed. It is raised after vLLM's last record.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"workload": workload} | fields) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailedError(f"the process of vLLM ended: {self._last_line()}.") from None
        for number, line in enumerate(self._process.stdout, 1):
            answer = json.loads(line)
            match answer["kind"]:
                case "done":
                    return
                case "failed":
                    raise EngineFailedError(" ".join(answer["error"].split())[:_MOST_LETTERS])
                case _:
                    yield number, answer
        raise EngineFailedError(f"the process of vLLM ended: {self._last_line()}.")
