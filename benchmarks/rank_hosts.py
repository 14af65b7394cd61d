"""Time the host of each data-parallel rank in each step of vLLM 0.25.1, for `--worker-extension-cls`.

Start vLLM as `ranks.py` does, with `--worker-extension-cls rank_hosts.Extension` in place of its scheduler. The folder
`KVSIM_RECORD` then gets `hosts-RANK.jsonl`: a line for each batch, with its begin by the clock that all processes
share, tokens, sequences, layers whose experts were exchanged outside of a graph, and milliseconds of the forward pass
on the host, of the thread's CPU time in the whole step, and of the wait for the other ranks before the forward pass.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch.distributed
from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class Extension:
    """Give the worker no methods: to import this module is enough."""


class _Step:
    """The step of this process that is under way."""

    layers = 0
    forward_s = waited_s = 0.0


def _watch(runner: Any) -> None:
    """Write a line for each batch from now on. vLLM has captured its graphs by then."""
    rank = runner.vllm_config.parallel_config.data_parallel_index
    file = (Path(os.environ["KVSIM_RECORD"]) / f"hosts-{rank}.jsonl").open("w", buffering=1)
    step = _Step()
    execute, forward, combine = _EXECUTE, GPUModelRunner._model_forward, AgRsAll2AllManager.combine
    all_reduce = torch.distributed.all_reduce

    def watched_execute(runner: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        step.layers, step.forward_s, step.waited_s = 0, 0.0, 0.0
        begin, cpu_s = time.monotonic(), time.thread_time()
        output = execute(runner, scheduled, *args, **kwargs)
        row = {
            "begin_s": round(begin, 6),
            "tokens": scheduled.total_num_scheduled_tokens,
            "sequences": len(scheduled.num_scheduled_tokens),
            "layers": step.layers,
            "forward_ms": round(1e3 * step.forward_s, 3),
            "cpu_ms": round(1e3 * (time.thread_time() - cpu_s), 3),
            "waited_ms": round(1e3 * step.waited_s, 3),
        }
        file.write(json.dumps(row) + "\n")
        return output

    def watched_forward(runner: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        output = forward(runner, *args, **kwargs)
        step.forward_s += time.monotonic() - begin
        return output

    def watched_combine(manager: Any, *args: Any, **kwargs: Any) -> Any:
        step.layers += 1
        return combine(manager, *args, **kwargs)

    def watched_all_reduce(*args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        result = all_reduce(*args, **kwargs)
        step.waited_s += time.monotonic() - begin
        return result

    GPUModelRunner.execute_model = watched_execute
    GPUModelRunner._model_forward = watched_forward
    AgRsAll2AllManager.combine = watched_combine
    torch.distributed.all_reduce = watched_all_reduce


def _first_execute(runner: Any, *args: Any, **kwargs: Any) -> Any:
    _watch(runner)
    return GPUModelRunner.execute_model(runner, *args, **kwargs)


_EXECUTE = GPUModelRunner.execute_model
GPUModelRunner.execute_model = _first_execute
