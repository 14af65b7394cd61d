"""`kvsim compare`: the same requests and the same memory under all policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvsim.cli.ladder import climb_ladder
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.sections import SectionedCommand
from kvsim.cli.show import json_option, overwrite_option, print_json, progress
from kvsim.policies import POLICY_NAMES

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
    if as_json:
        pairs = zip(recordings, summaries, strict=True)
        print_json({summary.policy: summary_document(recording, summary) for recording, summary in pairs})
    else:
        if flags["times"] == "one":
            click.echo("every policy with the step times of one engine, vLLM's; --times own gives each its own")
        print_summaries(
            f"{scenario.workload.description}, {scenario.kv_bytes / 2**30:.2f} GiB of KV memory", recordings, summaries
        )
