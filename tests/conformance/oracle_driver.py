"""Run many workloads through the oracle in one process: it takes seconds to start and milliseconds to run.

This file is run by the oracle's interpreter, which knows nothing of kvsim: `python oracle_driver.py vllm_oracle.py`, or
with `vllm_oracle_groups.py` or `vllm_oracle_offload.py`. It reads one workload per line and answers each with the
oracle's records and a closing line: `{"kind": "done"}`, or `{"kind": "failed", "error": ...}`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

MOST_ENGINE_CALLS = 4_000
"""A workload that needs more is one whose requests wait for ever; the records up to there still count."""


def main() -> None:
    script = Path(sys.argv[1]).resolve()
    spec = importlib.util.spec_from_file_location("vllm_oracle", script)
    assert spec is not None
    assert spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print must not end up among the records
    spec.loader.exec_module(oracle)
    _deal_out(oracle)
    run = _runner(oracle, answers)
    for line in sys.stdin:
        closing: dict[str, str] = {"kind": "done"}
        try:
            run(json.loads(line))
        except (Exception, SystemExit) as error:  # whatever stops one workload must not stop the next
            closing = {"kind": "failed", "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(closing) + "\n")
        answers.flush()


def _deal_out(oracle: Any) -> None:
    """Give vLLM's engine the stages that a workload asks for, and its scheduler what follows from these.

    vLLM reads their number where it makes an engine and where it schedules. The fake model, which runs no stage, serves
    any number.
    """
    module = getattr(oracle, "g", oracle)
    make_config = module.make_vllm_config

    def make_config_with_stages(workload: dict[str, Any], *arguments: Any) -> Any:
        config = make_config(workload, *arguments)
        config.parallel_config.pipeline_parallel_size = workload.get("pipeline_parallel_size", 1)
        return config

    module.make_vllm_config = make_config_with_stages


def _runner(oracle: Any, answers: TextIO) -> Callable[[dict[str, Any]], None]:
    """What runs a workload: an oracle of one group writes its records to `OUT`, the others take where they go."""
    if hasattr(oracle, "OUT"):
        oracle.OUT = answers
        return lambda workload: oracle.run(workload, "engine", MOST_ENGINE_CALLS)
    run = getattr(oracle, "g", oracle).run

    def emit(record: dict[str, Any]) -> None:
        answers.write(json.dumps(record) + "\n")

    return lambda workload: run(workload, emit, MOST_ENGINE_CALLS)


if __name__ == "__main__":
    main()
