"""`kvsim capture`: record a real engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import SectionedCommand
from kvsim.cli.machine_flags import AUTO_LENGTH
from kvsim.cli.options import bounded
from kvsim.cli.scenario_flags import settings_options
from kvsim.cli.show import command_line, output_option, overwrite_option, progress
from kvsim.cli.workload import workload_of_flags
from kvsim.cli.workload_flags import workload_options
from kvsim.errors import UsageError
from kvsim.policies.speculative_config import read_config

if TYPE_CHECKING:
    from kvsim.workload import Workload


@click.group("capture")
def command() -> None:
    """Record a real run of vLLM or Hugging Face.

    To record your own vLLM server instead, start it with KVSIM_RECORD=FOLDER and --scheduler-cls
    kvsim.capture.vllm.RecordingScheduler; KVSIM_PUBLISH=PORT lets kvsim tui --attach PORT watch it live.
    """


_ENGINE_SETTINGS = (
    "num_blocks", "block_size", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "enable_prefix_caching", "async_scheduling", "enforce_eager", "speculative_config", "enable_lora", "max_loras",
    "max_lora_rank",
)  # fmt: skip
"""Settings that are passed to vLLM if their flags are given."""


@command.command("vllm", cls=SectionedCommand)
@click.option("--model", required=True, help="A model folder, or a listed model with random weights.")
@workload_options
@output_option("Folder of the recording to write.", required=True)
@click.option(
    "--users", "--concurrency", type=int, callback=bounded(at_least=1), help="Closed loop with N users.", metavar="N"
)
@settings_options(*_ENGINE_SETTINGS)
@click.option("--vllm", "release", metavar="VERSION", help="Release that must be installed.  [any]")
@overwrite_option()
def vllm(*, model: str, output: Path, users: int | None, release: str | None, overwrite: bool, **flags: Any) -> None:
    """Start vLLM on this machine, let it serve the requests of a workload, and record it."""
    from kvsim.capture.drive import DrivenEngine, check_installed
    from kvsim.files.overwriting import may_replace, replacing_folder

    if not flags["enable_lora"] and (flags["max_loras"] or flags["max_lora_rank"]):
        raise UsageError("--max-loras and --max-lora-rank are for adapters; give --enable-lora, too.")
    if release is not None:
        check_installed(release)
    may_replace(output, "capture", overwrite=overwrite, is_folder=True)
    workload = _requests_without_images(flags)
    if workload.adapter.any() and not flags["enable_lora"]:
        raise UsageError("requests name adapters; give --enable-lora, or leave them out.")
    with (
        DrivenEngine(model, **_engine_arguments(flags)) as engine,
        progress("recording") as report,
        replacing_folder(output, "capture", overwrite=overwrite) as folder,
    ):
        engine.record(workload, folder, users=users, command=command_line(), progress=report)
    click.echo(output)


def _requests_without_images(flags: dict[str, Any]) -> Workload:
    workload = workload_of_flags(flags)
    if workload.images is not None:
        raise UsageError(
            "kvsim capture sends no images, and these requests have some; leave them out, or record your own vLLM "
            "server with the images of its clients: start it with KVSIM_RECORD=FOLDER and --scheduler-cls "
            "kvsim.capture.vllm.RecordingScheduler."
        )
    return workload


def _engine_arguments(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the flags state, with the names and types of vLLM's arguments."""
    given = {name: flags[name] for name in _ENGINE_SETTINGS if flags[name] is not None}
    if "num_blocks" in given:
        given["num_gpu_blocks_override"] = given.pop("num_blocks")
    if given.get("max_model_len") == AUTO_LENGTH:
        given["max_model_len"] = -1
    for name, convert in (("speculative_config", read_config), ("max_lora_rank", int)):
        if name in given:
            given[name] = convert(given[name])
    return given


@command.command("hf", cls=SectionedCommand)
@click.option("--model", required=True, help="A model folder, or a listed model with random weights.")
@workload_options
@output_option("Folder of the recording to write.", required=True)
@click.option("--batch-size", type=int, default=1, show_default=True, help="Rows of a batch; 1 is one by one.")
@click.option(
    "--cache",
    type=click.Choice(["dynamic", "static"]),
    default="dynamic",
    show_default=True,
    help="Cache that grows token by token, or is allocated for the longest output at once.",
)
@click.option("--device", help="cuda or cpu.  [cuda where there is one]")
@click.option(
    "--allocation-history", type=int, default=0, metavar="EVENTS", help="Number of PyTorch's allocation events to keep."
)
@overwrite_option()
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
    from kvsim.files.overwriting import may_replace, replacing_folder
    from kvsim.recording import write, write_allocator

    if batch_size < 1:
        raise UsageError(f"--batch-size should be at least 1, not {batch_size}.")
    may_replace(output, "capture", overwrite=overwrite, is_folder=True)
    workload, found = _requests_without_images(flags), find_device(device)
    with tempfile.TemporaryDirectory(prefix="kvsim-") as scratch:
        loaded = load_model(model_folder(model, Path(scratch)), device=found)
        recorder = GenerateRecorder(loaded, allocation_history=allocation_history, command=command_line())
        with recorder, progress("recording") as report:
            generate_workload(loaded, workload, batch_size=batch_size, cache=cache, recorder=recorder, progress=report)
    with replacing_folder(output, "capture", overwrite=overwrite) as folder:
        write(recorder.recording(output.name), folder)
        if recorder.allocator is not None:
            write_allocator(recorder.allocator, folder)
    click.echo(output)
