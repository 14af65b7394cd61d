"""Run many workloads through the oracle in one process: it takes seconds to start and milliseconds to run.

This file is run by the oracle's interpreter, which knows nothing of kvsim: `python oracle_driver.py vllm_oracle.py`. It
reads one workload per line and answers each with the oracle's records and a closing line: `{"kind": "done"}`, or
`{"kind": "failed", "error": ...}`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

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
    oracle.OUT = answers
    for line in sys.stdin:
        closing: dict[str, str] = {"kind": "done"}
        try:
            if hasattr(oracle, "run_to_list"):  # the one with several KV-cache groups hands its records over
                oracle.run(json.loads(line), lambda record: answers.write(json.dumps(record) + "\n"), MOST_ENGINE_CALLS)
            else:
                oracle.run(json.loads(line), "engine", MOST_ENGINE_CALLS)
        except (Exception, SystemExit) as error:  # whatever stops one workload must not stop the next
            closing = {"kind": "failed", "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(closing) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
