"""Compile every kind of engine, so that all workers of the tests find its machine code beside the sources."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module
from multiprocessing import get_context
from os import devnull
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvsim.cli import main

KINDS = (
    "paged",
    "paged --order priority",
    "paged --vllm 0.25.1 --kv-offloading-size 8",
    "paged --vllm 0.25.1 --kv-offloading-size 8 --order priority",
    "paged --prefill 1 --decode 1",
    "paged --replicas 2 --prefix-store-gib 1",
    "contiguous",
    "contiguous --order priority",
    "static",
    "static --sort-by-length",
    "radix",
    "radix --enable-hierarchical-cache",
)
"""A policy and the flags that need machine code of their own."""
_COMMAND = "kvsim run --engine compiled --num-requests 4 --policy"


def compile_kind(kind: str) -> None:
    """Run a few requests with compiled code of one kind."""
    sys.argv = [*_COMMAND.split(), *kind.split()]
    with Path(devnull).open("w") as nothing, redirect_stdout(nothing), suppress(SystemExit):
        main()


if __name__ == "__main__":
    for module in ("kvsim.cli.run", "kvsim.engine.machine_code.object_code", "kvsim.simulation"):
        import_module(module)  # once, and not in every fork
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        pool.map(compile_kind, KINDS, chunksize=1)
