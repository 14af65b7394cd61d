"""The flags of a scenario: on what machine, with how much memory, under which policy; and those of its requests.

Every command that simulates takes the same ones. What they stand for is in `kvsim.cli.scenario`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvsim.cli.machine import tokens_or_auto
from kvsim.cli.sections import section
from kvsim.cli.workload import workload_options
from kvsim.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_machine = section("Machine and memory")
_paged = section("Paged cache")
_contiguous = section("Contiguous reservations")
_static = section("Static batches")
_scheduling = section("Scheduling")


def _refuse_swap_space(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    """Say what has become of a flag of vLLM 0.x."""
    if value is not None:
        raise UsageError(
            "vLLM dropped --swap-space with its V1 engine, which computes preempted sequences again; "
            "--kv-offloading-size GIB is the host memory of vLLM 0.25.1, and --swap-gib GIB a model of the old swap."
        )


_MACHINE = (
    _machine(
        "--model",
        metavar="MODEL",
        help="A model that kvsim size --list names, a config.json, or a folder with one.  "
        "[the recording's, or Llama-3-8B]",
    ),
    _machine(
        "--gpu",
        metavar="GPU",
        help="A GPU that kvsim size --list names, or a TOML file of your own.  [the recording's, or H200]",
    ),
    _machine("--tensor-parallel-size", type=int, metavar="N", help="GPUs among which every layer is dealt out.  [1]"),
    _machine("--pipeline-parallel-size", type=int, metavar="N", help="GPUs that each hold a run of layers.  [1]"),
    _machine(
        "--quantization",
        metavar="METHOD",
        help="How weights are stored: none, fp8, awq, gptq, mxfp4 and others.  [the model's]",
    ),
    _machine("--kv-cache-dtype", metavar="TYPE", help="Type of the KV cache: auto, fp8 or another of vLLM's.  [auto]"),
    _machine(
        "--max-model-len",
        type=tokens_or_auto,
        metavar="TOKENS",
        help="Longest sequence, or auto: what fits.  [the recording's, or the model's]",
    ),
    _machine(
        "--kv-gib",
        type=float,
        metavar="GIB",
        help="Memory for the KV cache on each GPU.  [the recording's, or what the GPU leaves]",
    ),
    _machine(
        "--num-blocks",
        "--num-gpu-blocks-override",
        type=int,
        metavar="N",
        help="The same, in blocks of a paged cache.",
    ),
    _machine(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        help="The same, as what this share of the GPU leaves.  [0.92]",
    ),
    _machine("--oversize", is_flag=True, help="Insist on a model and a cache that the GPU has no memory for."),
    _machine("--block-size", type=int, metavar="TOKENS", help="Tokens per block.  [16; 64 for latent attention]"),
    _machine("--enforce-eager", is_flag=True, help="Launch kernels one by one: no captured graphs."),
    _paged("--no-prefix-caching", "--no-enable-prefix-caching", is_flag=True, help="Never reuse a prefix."),
    _paged(
        "--prefix-caching",
        "--enable-prefix-caching",
        is_flag=True,
        help="Reuse prefixes in models with recurrent layers, too.",
    ),
    _paged(
        "--disable-hybrid-kv-cache-manager",
        is_flag=True,
        help="Treat windowed layers as full ones, as vLLM's flag does.",
    ),
    _paged("--swap-space", hidden=True, expose_value=False, callback=_refuse_swap_space),
)
_LIMITS = (
    _scheduling("--max-num-seqs", type=int, help="Sequences in one step.  [vLLM's, by the GPU]"),
    _scheduling("--max-num-batched-tokens", type=int, help="Tokens in one step.  [vLLM's, by the GPU]"),
    _scheduling(
        "--defaults",
        type=click.Choice(["llm", "server"]),
        default="llm",
        show_default=True,
        help="Whose limits hold where none is given: vLLM's LLM class or its server.",
    ),
)
"""Limits of a step; beside the flags above, all that decides how many blocks there are."""

_OPTIONS = (
    _machine(
        "--profile",
        metavar="PROFILE",
        help="Step times: a profile, or none for the data sheet alone.  [the one that matches]",
    ),
    _paged(
        "--watermark",
        type=float,
        default=0.0,
        show_default=True,
        help="Share of the pool that admission leaves free.",
    ),
    _paged(
        "--kv-offloading-size",
        type=float,
        metavar="GIB",
        help="Host memory of vLLM's native offload: blocks are copied there and come back as prefix hits.  [none]",
    ),
    _paged(
        "--kv-offloading-block-size",
        type=int,
        metavar="TOKENS",
        help="With --kv-offloading-size: tokens of a block on the host.  [the block size]",
    ),
    _paged(
        "--kv-offloading-eviction",
        type=click.Choice(["lru", "arc"]),
        help="With --kv-offloading-size: which block on the host makes room for another.  [lru]",
    ),
    _paged(
        "--kv-offloading-outputs",
        is_flag=True,
        help="With --kv-offloading-size: copy blocks of generated tokens too.",
    ),
    _paged(
        "--kv-offloading-gb-per-s",
        type=float,
        metavar="GB/S",
        help="With --kv-offloading-size: speed of the link each way.  [from the machine card; 80% of PCIe 5.0 x16]",
    ),
    _paged(
        "--swap-gib",
        type=float,
        metavar="GIB",
        help="Host memory to which vLLM 0.x copied preempted sequences; no vLLM of today does.  [none; a model]",
    ),
    _paged(
        "--swap-gb-per-s",
        type=float,
        metavar="GB/S",
        help="With --swap-gib: speed of the link to it.  [50.4: 80% of PCIe 5.0 x16]",
    ),
    _paged(
        "--speculative-tokens",
        type=int,
        metavar="N",
        help="Tokens drafted a step; needs --no-async-scheduling.  [none; a model, not vLLM's]",
    ),
    _paged(
        "--acceptance-rate",
        type=float,
        metavar="SHARE",
        help="With --speculative-tokens: how often a draft is right when those before it are.  [0.7]",
    ),
    _contiguous(
        "--reserve",
        type=click.Choice(["max", "limit", "pow2", "oracle", "doubling"]),
        default="max",
        show_default=True,
        help="How much each sequence reserves.",
    ),
    _contiguous(
        "--fit",
        type=click.Choice(["first", "best", "next", "buddy"]),
        default="first",
        show_default=True,
        help="Which hole is taken.",
    ),
    _contiguous(
        "--growth",
        type=click.Choice(["move", "fail"]),
        default="move",
        show_default=True,
        help="With --reserve doubling: copy what has no room to grow, or preempt.",
    ),
    _contiguous("--compaction", is_flag=True, help="Slide everything together when only that makes room."),
    _contiguous("--request-level", is_flag=True, help="Admit no request until the whole batch has ended."),
    _static("--batch-size", type=int, default=16, show_default=True, help="Rows of a batch."),
    _static(
        "--cache",
        type=click.Choice(["dynamic", "static"]),
        default="dynamic",
        show_default=True,
        help="Grow the cache by a column a step, or allocate it at once.",
    ),
    _static(
        "--batch-timeout",
        type=float,
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        help="How long the oldest request waits for a batch to fill up.",
    ),
    _static("--sort-by-length", is_flag=True, help="Batch prompts of similar length."),
    _static("--no-memory-guard", is_flag=True, help="Let batches run out of memory, and count it."),
    _scheduling(
        "--long-prefill-token-threshold",
        type=int,
        default=0,
        help="Most tokens of one prompt in one step; 0: no limit.",
    ),
    _scheduling("--no-chunked-prefill", is_flag=True, help="Prompts are computed in one step or not at all."),
    _scheduling(
        "--no-async-scheduling", is_flag=True, help="Schedule a step only when the last one's output is known."
    ),
    _scheduling(
        "--order",
        type=click.Choice(["fcfs", "priority"]),
        default="fcfs",
        show_default=True,
        help="Who is served first.",
    ),
    _scheduling(
        "--refuse-misfits",
        is_flag=True,
        help="Refuse and count requests that could never be served; otherwise an error.",
    ),
    _scheduling("--check", is_flag=True, help="Verify at every step that all slots are accounted for (slower)."),
)


def machine_options(command: Command) -> Command:
    """Add the flags of a machine to `command`, which receives them as keyword arguments."""
    for option in reversed((*_MACHINE, *_LIMITS)):
        command = option(command)
    return command


def scenario_options(command: Command) -> Command:
    """Add every flag of a scenario to `command`, which receives them as keyword arguments."""
    for option in reversed((*_MACHINE, *_OPTIONS, *_LIMITS)):
        command = option(command)
    return workload_options(command)
