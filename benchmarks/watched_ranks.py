"""A scheduler for vLLM's data-parallel ranks: it records, and writes when its rank takes part without a batch.

A step without a batch does not reach the scheduler, so no recording has it. `steps.jsonl` beside each rank's recording
has one line for each: begin and end in seconds of the recording, and one for each time that all ranks fall asleep.
Once there is a file `profile`, the operations and kernels of the next steps are listed in `profile-RANK.txt`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile
from vllm.v1.engine.core import DPEngineCoreProc

from kvsim.capture.vllm import RecordingScheduler

_PROFILED_STEPS = 12
_ROWS = 50
"""Lines of each list of a profile."""


class WatchedScheduler(RecordingScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rank = self.vllm_config.parallel_config.data_parallel_index
        folder = Path(os.environ["KVSIM_RECORD"])
        self._file = (folder / f"steps-{rank}.jsonl").open("w", buffering=1)
        self._wanted, self._list = folder / "profile", folder / f"profile-{rank}.txt"
        self._profile: Any = None
        self._left = _PROFILED_STEPS
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

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._left and (self._profile or self._wanted.exists()):
            self._count_down()
        return super().schedule(*args, **kwargs)

    def _count_down(self) -> None:
        """Start the profile at the first step, and write it at the last."""
        if self._profile is None:
            self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profile.start()
            return
        self._left -= 1
        if self._left == 0:
            self._profile.stop()
            found = self._profile.key_averages()
            lists = [
                found.table(sort_by=by, row_limit=_ROWS, max_name_column_width=90)
                for by in ("self_cuda_time_total", "self_cpu_time_total")
            ]
            self._list.write_text("\n".join(lists), encoding="utf-8")
