"""`kvsim capture`: record a real engine."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from kvsim.cli.options import SectionedCommand, bounded
from kvsim.cli.show import overwrite_option, progress
from kvsim.cli.workload import workload_of_flags, workload_options


@click.group("capture")
def command() -> None:
    """Record a real run of vLLM or Hugging Face.

    To record your own vLLM server instead, start it with KVSIM_RECORD=FOLDER and --scheduler-cls
    kvsim.capture.vllm.RecordingScheduler; KVSIM_PUBLISH=PORT lets kvsim tui --attach PORT watch it live.
    """


@command.command("vllm", cls=SectionedCommand)
@click.option("--model", required=True, help="A model folder, or a listed model with random weights.")
@workload_options
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The recording's folder.")
@click.option(
    "--users", "--concurrency", type=int, callback=bounded(at_least=1), help="Closed loop with N users.", metavar="N"
)
@click.option("--num-blocks", type=int, help="Blocks of the pool, instead of what the GPU leaves.")
@click.option("--block-size", type=int, help="Tokens per block.")
@click.option("--gpu-memory-utilization", type=float, help="Share of the GPU that may be used.")
@click.option("--max-model-len", type=int, help="Longest sequence.")
@click.option("--max-num-seqs", type=int, help="Sequences in one step.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens in one step.")
@click.option("--no-prefix-caching", is_flag=True, help="Never reuse a prefix.")
@click.option("--no-async-scheduling", is_flag=True, help="Schedule a step only when the last one's output is known.")
@click.option("--enforce-eager", is_flag=True, help="Capture no graphs.")
@click.option(
    "--speculative-config", "-sc", metavar="JSON", help="Speculative decoding, as vLLM takes it: a JSON object."
)
@click.option("--enable-lora", is_flag=True, help="Serve requests that name an adapter (LoRA); weights are random.")
@click.option("--max-loras", type=int, help="Adapters in use at once.")
@click.option("--max-lora-rank", type=int, help="Rank of the adapters.")
@click.option("--vllm", "release", metavar="VERSION", help="Record this release alone.  [the one that is installed]")
@overwrite_option
def vllm(*, model: str, output: Path, users: int | None, release: str | None, overwrite: bool, **flags: Any) -> None:
    """Start vLLM here, run a workload, and record it."""
    from kvsim.capture.drive import DrivenEngine, check_installed
    from kvsim.errors import UsageError
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.policies.speculative_config import read_config

    if not flags["enable_lora"] and (flags["max_loras"] or flags["max_lora_rank"]):
        raise UsageError("--max-loras and --max-lora-rank are for adapters; give --enable-lora, too.")
    if release is not None:
        check_installed(release)
    may_replace(output, "capture", overwrite=overwrite, is_folder=True)
    workload = workload_of_flags(flags)
    if workload.adapter.any() and not flags["enable_lora"]:
        raise UsageError("requests name adapters; give --enable-lora, or leave them out.")
    given = {
        "num_gpu_blocks_override": flags["num_blocks"],
        "block_size": flags["block_size"],
        "gpu_memory_utilization": flags["gpu_memory_utilization"],
        "max_model_len": flags["max_model_len"],
        "max_num_seqs": flags["max_num_seqs"],
        "max_num_batched_tokens": flags["max_num_batched_tokens"],
        "enable_prefix_caching": False if flags["no_prefix_caching"] else None,
        "enforce_eager": flags["enforce_eager"] or None,
        "speculative_config": read_config(flags["speculative_config"]) if flags["speculative_config"] else None,
        "enable_lora": flags["enable_lora"] or None,
        "max_loras": flags["max_loras"],
        "max_lora_rank": flags["max_lora_rank"],
    }
    engine_args = {key: value for key, value in given.items() if value is not None}
    with (
        DrivenEngine(model, async_scheduling=not flags["no_async_scheduling"], **engine_args) as engine,
        progress("recording") as report,
        replacing_folder(output, "capture", overwrite=overwrite) as folder,
    ):
        engine.record(workload, folder, users=users, command=_command_line(), progress=report)
    click.echo(output)


@command.command("hf", cls=SectionedCommand)
@click.option("--model", required=True, help="A model folder, or a listed model with random weights.")
@workload_options
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The recording's folder.")
@click.option("--batch-size", type=int, default=1, show_default=True, help="Rows of a batch; 1 is one by one.")
@click.option("--cache", type=click.Choice(["dynamic", "static"]), default="dynamic", show_default=True)
@click.option("--device", help="cuda or cpu.  [cuda where there is one]")
@click.option(
    "--allocation-history", type=int, default=0, metavar="EVENTS", help="Number of PyTorch's allocation events to keep."
)
@overwrite_option
def hf(
    *,
    model: str,
    output: Path,
    batch_size: int,
    cache: str,
    device: str | None,
    allocation_history: int,
    overwrite: bool,
    **flags: Any,
) -> None:
    """Run a workload through Hugging Face's generate() in padded batches, and record it."""
    from kvsim.capture.hf import GenerateRecorder, find_device, generate_workload, load_model
    from kvsim.capture.random_weights import model_folder
    from kvsim.errors import UsageError
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.recording import write, write_allocator

    if batch_size < 1:
        raise UsageError(f"--batch-size should be at least 1, not {batch_size}.")
    may_replace(output, "capture", overwrite=overwrite, is_folder=True)
    workload, found = workload_of_flags(flags), find_device(device)
    with tempfile.TemporaryDirectory(prefix="kvsim-") as scratch:
        loaded = load_model(model_folder(model, Path(scratch)), device=found)
        recorder = GenerateRecorder(loaded, allocation_history=allocation_history, command=_command_line())
        with recorder, progress("recording") as report:
            generate_workload(loaded, workload, batch_size=batch_size, cache=cache, recorder=recorder, progress=report)
    with replacing_folder(output, "capture", overwrite=overwrite) as folder:
        write(recorder.recording(output.name), folder)
        if recorder.allocator is not None:
            write_allocator(recorder.allocator, folder)
    click.echo(output)


def _command_line() -> str:
    return shlex.join(["kvsim", *sys.argv[1:]])
