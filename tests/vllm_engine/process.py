"""The process in which vLLM's own engine runs, from the side of the tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvsim.conformance.driven import DrivenVllm

from ..forks import ROOT, Forks
from .install import python_path


def forks_with(release: str, folder: Path) -> Forks:
    """Forks of a process, for all workers, that has imported a release of vLLM."""
    return Forks(folder / f"vllm-{release}", "tests.vllm_engine.preloaded", PYTHONPATH=python_path(release, ROOT))


class EngineProcess(DrivenVllm):
    """One process that serves workloads with vLLM's own engine and kvsim's recorder in it."""

    def __init__(self, release: str, log: Path, interpreter: Sequence[str] = (sys.executable,)) -> None:
        """Start it with a release of vLLM; what it says goes into the file `log`."""
        python, *first = interpreter
        script = (*first, "-m", "tests.vllm_engine.engine_process")
        super().__init__(python, script, log, PYTHONPATH=python_path(release, ROOT))

    def serve(self, workload: dict[str, Any], **environment: str) -> None:
        """Put `workload` through an engine that is started in `environment`.

        Raises:
            EngineFailedError: vLLM did not reach the end.
        """
        for _ in self.records(workload, environment=environment, tell=False):
            pass
