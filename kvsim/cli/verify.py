"""`kvsim verify`: compare the decisions of kvsim's paged policy with those of a real engine, block for block."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.cli.show import difference_rows, echo, json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from kvsim.conformance import Verdict


@click.command("verify")
@click.argument("subject", metavar="RECORDING|WORKLOAD.json")
@click.option(
    "--oracle",
    "steps_file",
    type=click.Path(path_type=Path),
    metavar="STEPS.jsonl[.gz]",
    help="Decisions of vLLM's or SGLang's own scheduler for WORKLOAD.json, driven with a fake model; the first record "
    "names the engine.",
)
@json_option
def command(*, subject: str, steps_file: Path | None, as_json: bool) -> None:
    """Check that kvsim makes the same decisions as a recorded vLLM; with --oracle, as vLLM's or SGLang's scheduler.

    RECORDING is a folder or the name of a recording that comes with kvsim. It is replayed in lockstep: requests, tokens
    and their order, block ids, preemptions, queues and free blocks are compared at every step. The exit code is 1 if
    anything differs.
    """
    from kvsim.conformance import verify_answer

    verdict = _verify_recording(subject) if steps_file is None else verify_answer(Path(subject), steps_file)
    if as_json:
        print_json(verdict.as_dict())
    else:
        echo(f"{subject}: {verdict}")
        if verdict.difference is not None:
            rows = difference_rows(verdict.difference.lines)
            print_table(f"at {verdict.difference.moment}", ["", "recorded", "kvsim"], rows)
    if not verdict.equal:
        sys.exit(1)


def _verify_recording(name: str) -> Verdict:
    from kvsim.conformance import verify_recording
    from kvsim.recording import find, read

    recording = read(find(name))
    with progress("comparing") as report:
        return verify_recording(recording, report)
