"""The process in which vLLM's own engine runs, from the side of the tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvsim.conformance.driven import DrivenVllm

from .install import python_path

ROOT = Path(__file__).resolve().parents[2]


class EngineProcess(DrivenVllm):
    """One process that serves workloads with vLLM's own engine and kvsim's recorder in it."""

    def __init__(self, release: str, log: Path) -> None:
        """Start it with a release of vLLM; what it says goes into the file `log`."""
        path = python_path(release, ROOT)
        super().__init__(sys.executable, ("-m", "tests.vllm_engine.engine_process"), log, PYTHONPATH=path)

    def serve(self, workload: dict[str, Any], **environment: str) -> None:
        """Put `workload` through an engine that is started in `environment`.

        Raises:
            EngineFailedError: vLLM did not reach the end.
        """
        for _ in self.records(workload, environment=environment, tell=False):
            pass
