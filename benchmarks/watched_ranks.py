"""A scheduler for vLLM's data-parallel ranks: it records, and writes when its rank takes part without a batch.

A step without a batch does not reach the scheduler, so no recording has it. `steps.jsonl` beside each rank's recording
has one line for each: begin and end in seconds of the recording, and one for each time that all ranks fall asleep.
The recording ends at the first request after a file `unrecorded` is there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.engine.core import DPEngineCoreProc

from kvsim.capture.vllm import RecordingScheduler


class WatchedScheduler(RecordingScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rank = self.vllm_config.parallel_config.data_parallel_index
        folder = Path(os.environ["KVSIM_RECORD"])
        self._file = (folder / f"steps-{rank}.jsonl").open("w", buffering=1)
        self._unrecorded = folder / "unrecorded"
        idle, sync = DPEngineCoreProc.execute_dummy_batch, DPEngineCoreProc._has_global_unfinished_reqs

        def watched_idle(core: Any) -> None:
            begin = time.monotonic()
            idle(core)
            self._write("idle", begin)

        def watched_sync(core: Any, local_unfinished: bool) -> bool:
            begin = time.monotonic()
            runs_on = sync(core, local_unfinished)
            if not runs_on:
                self._write("sleep", begin)
            return bool(runs_on)

        DPEngineCoreProc.execute_dummy_batch = watched_idle
        DPEngineCoreProc._has_global_unfinished_reqs = watched_sync

    def _write(self, kind: str, begin: float) -> None:
        begin_s = getattr(self.kvsim, "_begin_s", None)
        if begin_s is not None:
            times = [round(each - begin_s, 6) for each in (begin, time.monotonic())]
            self._file.write(json.dumps([kind, *times, begin_s]) + "\n")

    def add_request(self, request: Any) -> None:
        if self.kvsim.sink is not None and self._unrecorded.exists():
            self.kvsim.stop()
        super().add_request(request)
