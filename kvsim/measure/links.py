"""Measure the links of a machine for its card: all-reduce between GPUs, and copies between a GPU and its host."""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvsim.measure.timing import seconds_per_call

SIZES_BYTES = tuple(1 << power for power in range(12, 29, 2))
"""Sizes in bytes of the tensors that are reduced, from 4 KiB to 256 MiB."""
_COPY_BYTES = 1 << 28
_REDUCTIONS = 20
"""Number of all-reduces in one captured graph, so that starting the graph takes a small part of its time."""
_REPLAYS = 5


def host_copy_rates() -> tuple[float, float]:
    """Return the speed of copies from the host's pinned memory to the GPU, and of copies back, in bytes per second."""
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    there = seconds_per_call([lambda: device.copy_(host, non_blocking=True)])
    back = seconds_per_call([lambda: host.copy_(device, non_blocking=True)])
    return _COPY_BYTES / there, _COPY_BYTES / back


def all_reduce(num_gpus: int) -> tuple[str, tuple[tuple[int, float], ...]]:
    """Measure an all-reduce over `num_gpus` GPUs. Return its name, and pairs (bytes, seconds).

    For one GPU, the name is empty and there are no pairs.
    """
    if num_gpus == 1:
        return "", ()
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "seconds.pt"
        torch.multiprocessing.spawn(_measure_rank, args=(num_gpus, _free_port(), str(result)), nprocs=num_gpus)
        name, seconds = torch.load(result)
    return name, tuple(zip(SIZES_BYTES, seconds, strict=True))


def _measure_rank(rank: int, num_gpus: int, port: int, result: str) -> None:
    """Take part in all reductions as process `rank`. Rank 0 saves the name and the seconds in the file `result`."""
    torch.cuda.set_device(rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    name, reduce, capturing = _connect(rank, num_gpus, port)
    seconds = []
    for size in SIZES_BYTES:
        values = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
        seconds.append(_reduce_s(partial(reduce, values), capturing))
    if rank == 0:
        torch.save((name, seconds), result)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _reduce_s(reduce: Callable[[], Any], capturing: Any) -> float:
    """Return the seconds of one all-reduce: the median of `_REPLAYS` replays of a graph."""
    reduce()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with capturing() as context, torch.cuda.graph(graph, stream=getattr(context, "stream", None)):
        for _ in range(_REDUCTIONS):
            reduce()
    seconds = []
    for _ in range(_REPLAYS):
        torch.distributed.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / _REDUCTIONS)
    return float(statistics.median(seconds))


def _connect(rank: int, num_gpus: int, port: int) -> tuple[str, Callable[[Any], Any], Any]:
    """Join the group of all ranks. Return the name of its all-reduce, the function, and a context for capturing the
    function. vLLM's all-reduce is taken if vLLM can be imported, otherwise NCCL's.
    """
    from contextlib import nullcontext  # noqa: PLC0415

    address = f"tcp://127.0.0.1:{port}"
    try:
        from vllm.config import VllmConfig, set_current_vllm_config  # noqa: PLC0415
        from vllm.distributed import parallel_state as state  # noqa: PLC0415
    except ImportError:
        torch.distributed.init_process_group("nccl", init_method=address, rank=rank, world_size=num_gpus)
        return "NCCL", torch.distributed.all_reduce, nullcontext
    with set_current_vllm_config(VllmConfig()):
        state.init_distributed_environment(num_gpus, rank, address, rank, "nccl")
        state.initialize_model_parallel(num_gpus)
    device = torch.device("cuda", rank)
    return "vLLM's all-reduce", state.get_tp_group().all_reduce, partial(state.graph_capture, device)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
