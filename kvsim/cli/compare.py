"""`kvsim compare`: the same requests and the same memory under all policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.ladder import climb_ladder
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.sections import SectionedCommand
from kvsim.cli.show import json_option, overwrite_option, print_json, progress
from kvsim.policies import POLICY_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.cli.scenario import Scenario

times_option = click.option(
    "--times",
    type=click.Choice(["one", "own"]),
    default="one",
    show_default=True,
    help="Step times: of one engine, vLLM's, for every policy, or of each policy's own.",
)


@click.command("compare", cls=SectionedCommand)
@scenario_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the recordings into this folder, one for each policy.",
)
@times_option
@click.option(
    "--ladder",
    is_flag=True,
    help="Eight ways to serve instead, one change each, from one by one to asynchronous scheduling; all requests at "
    "once.",
)
@overwrite_option
@json_option
def command(*, output: Path | None, ladder: bool, overwrite: bool, as_json: bool, **flags: Any) -> None:
    """Put the same requests through all three policies.

    Shows for each where the memory went, how many sequences ran at once, and who waited. The shares add up to 100%.
    """
    if ladder:
        climb_ladder(output, flags, overwrite=overwrite, as_json=as_json)
        return
    from kvsim.cli.summary import print_summaries, summary_document
    from kvsim.metrics import summarize
    from kvsim.overwriting import may_replace, replacing_folder

    if output is not None:
        may_replace(output, "compare", overwrite=overwrite, is_folder=True)
    scenario = build_scenario(**flags)
    recordings = []
    for policy in POLICY_NAMES:
        with progress(policy) as report:
            recordings.append(scenario.simulate(policy, progress=report))
    if output is not None:
        from kvsim.recording import write

        with replacing_folder(output, "compare", overwrite=overwrite) as folder:
            for policy, recording in zip(POLICY_NAMES, recordings, strict=True):
                write(recording, folder / policy)
    summaries = [summarize(recording) for recording in recordings]
    with progress("with memory for everything") as report:
        roomy = _with_memory_for_everything(scenario, report)
    if as_json:
        documents = {
            summary.policy: summary_document(recording, summary) | {"ample_output_tokens_per_s": tokens_per_s}
            for recording, summary, tokens_per_s in zip(recordings, summaries, roomy, strict=True)
        }
        print_json(documents)
    else:
        if flags["times"] == "one":
            click.echo("every policy with the step times of one engine, vLLM's; --times own gives each its own")
        each = ", ".join(f"{name} {tokens_per_s:,.0f}" for name, tokens_per_s in zip(POLICY_NAMES, roomy, strict=True))
        print_summaries(
            f"{scenario.workload.description}, {scenario.kv_bytes / 2**30:.2f} GiB of KV memory",
            recordings,
            summaries,
            note=f"with memory for everything, tokens per second: {each}; what differs then is not memory",
        )


def _with_memory_for_everything(scenario: Scenario, report: Callable[[int, int], None]) -> list[float]:
    """Output tokens per second of each policy where memory never runs short: what they differ by then is not memory."""
    from kvsim.ladder import with_ample_memory
    from kvsim.simulation import measure

    found = []
    for number, name in enumerate(POLICY_NAMES):
        report(number, len(POLICY_NAMES))
        policy = scenario.policy(name)
        machine = with_ample_memory(scenario.machine(policy), policy, scenario.workload)
        found.append(measure(scenario.workload, policy, machine, refuse_misfits=True).summary.output_tokens_per_s)
    return found
