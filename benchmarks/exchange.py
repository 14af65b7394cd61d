"""Time what ranks exchange in a layer of experts, as vLLM does it: benchmarks/exchange.py -o FILE, on several GPUs

Before the experts, each rank gets the activations, weights and experts of all tokens; after them, the sums of its own.
Ranks with equal numbers of tokens call NCCL once for each tensor, others once for each tensor and rank. Each row has
the milliseconds of a layer, in all and on the host, for the numbers of tokens of the ranks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

HIDDEN, CHOSEN = 2048, 8
PORT = 29_611
COUNTS = ((64, 64), (256, 256), (257, 1), (257, 64), (300, 200), (2048, 1), (2048, 1000), (2048, 2048))
"""Tokens of the first rank, and of each other."""
LAYERS = 48
REPEATS = 5


def run(rank: int, num_ranks: int, results: Any) -> None:
    """Time every case on one rank; the first rank's times are the results."""
    import torch  # noqa: PLC0415
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator  # noqa: PLC0415
    from vllm.distributed.utils import StatelessProcessGroup  # noqa: PLC0415

    torch.cuda.set_device(rank)
    group = StatelessProcessGroup.create("127.0.0.1", PORT + num_ranks, rank, num_ranks)
    nccl = PyNcclCommunicator(group, rank)
    rows = []
    for first, others in COUNTS:
        sizes = [first, *[others] * (num_ranks - 1)]
        layer = Layer(nccl, sizes)
        times = []
        for _ in range(REPEATS):
            group.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(LAYERS):
                layer.exchange()
            host_s = time.perf_counter() - begin
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin, host_s))
        wall_s, host_s = min(times)
        rows.append({"tokens": sizes, "ms": 1e3 * wall_s / LAYERS, "host_ms": 1e3 * host_s / LAYERS})
    if rank == 0:
        results.put(rows)
    group.barrier()


class Layer:
    """The tensors of one layer on one rank."""

    def __init__(self, nccl: Any, sizes: list[int]) -> None:
        import torch  # noqa: PLC0415

        self._nccl, self._sizes, own = nccl, sizes, sizes[nccl.rank]
        self._inputs = [
            torch.randn(own, HIDDEN, device="cuda", dtype=torch.bfloat16),
            torch.rand(own, CHOSEN, device="cuda"),
            torch.zeros(own, CHOSEN, device="cuda", dtype=torch.int32),
        ]
        self._gathered = [
            torch.empty(sum(sizes), *each.shape[1:], device="cuda", dtype=each.dtype) for each in self._inputs
        ]
        self._sums = torch.empty_like(self._inputs[0])

    def exchange(self) -> None:
        nccl, sizes, is_equal = self._nccl, self._sizes, len(set(self._sizes)) == 1
        nccl.group_start()
        for output, each in zip(self._gathered, self._inputs, strict=True):
            if is_equal:
                nccl.all_gather(output, each)
            else:
                nccl.all_gatherv(output, each, sizes=sizes)
        nccl.group_end()
        if is_equal:
            nccl.reduce_scatter(self._sums, self._gathered[0])
        else:
            nccl.reduce_scatterv(self._sums, self._gathered[0], sizes=sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("ranks", type=int, nargs="+")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found = {}
    for num_ranks in arguments.ranks:
        results = context.Queue()
        processes = [context.Process(target=run, args=(rank, num_ranks, results)) for rank in range(num_ranks)]
        for process in processes:
            process.start()
        found[num_ranks] = results.get(timeout=90)
        for process in processes:
            process.join(timeout=20)
        print(num_ranks, *(json.dumps(row) for row in found[num_ranks]), sep="\n", flush=True)
    arguments.output.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
