"""`kvsim compare --ladder`: the same requests served in eight ways (rungs), each with one more change."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.cli.options import check_defaults, is_given, policies_with
from kvsim.cli.scenario import build_scenario
from kvsim.cli.show import print_json, print_table, progress
from kvsim.cli.workload import is_generated
from kvsim.errors import UsageError
from kvsim.policies.settings import ContinuousSettings
from kvsim.setting_fields import settings_in

if TYPE_CHECKING:
    import click

    from kvsim.experiments.rungs import RungResult

LADDER_WORKLOAD = "vllm-h200-llama-3-8b-pressure-prefixes"
"""Recording whose requests `--ladder` serves by default. Its requests share prefixes and need more memory than the pool
has, so every change of the ladder has an effect.
"""


_USED = {each.name for each in settings_in(ContinuousSettings)} | {"block_size", "batch_size", "watermark"}
"""Settings that the compared servers take from the flags. All others are fixed by the server or have no effect."""
_DECIDED = {
    *("async_scheduling", "enable_chunked_prefill", "enforce_eager", "check", "refuse_misfits"),
    *("load", "rate", "ramp", "burstiness", "rate_profile"),
}
"""Flags that have no effect on a ladder: its servers have settings of their own, all requests arrive at once, and runs
are not checked.
"""


def check_ladder_flags(context: click.Context) -> None:
    """Check that each flag on the command line changes at least one of the servers that `--ladder` compares.

    Raises:
        UsageError: a flag has no effect.
    """
    check_defaults(context)
    for option in context.command.params:
        name = str(option.name)
        if is_given(context, name) and (name in _DECIDED or (policies_with(name) and name not in _USED)):
            raise UsageError(f"{option.opts[0]} has no effect with --ladder; leave one out.")


def climb_ladder(output: Path | None, flags: dict[str, Any], *, overwrite: bool, as_json: bool) -> None:
    """Simulate all servers of the ladder and print their figures. If `output` is given, write the recordings there."""
    from kvsim.experiments.rungs import at_once, climb, rung_recordings
    from kvsim.files.overwriting import may_replace, replacing_folder

    if output is not None:
        may_replace(output, "compare", overwrite=overwrite, is_folder=True)
    if flags["workload"] is None and not is_generated(flags):
        flags = flags | {"workload": LADDER_WORKLOAD}
    scenario = build_scenario(**flags)
    scenario = replace(scenario, workload=at_once(scenario.workload))
    rungs = scenario.ladder()
    machine = scenario.machine(rungs[-1].policy)
    with progress("ladder") as report:
        climbed = climb(scenario.workload, machine, rungs, scenario.times_of, progress=report)
    if output is not None:
        from kvsim.recording import write

        recordings = rung_recordings(scenario.workload, machine, rungs, scenario.times_of, climbed)
        with replacing_folder(output, "compare", overwrite=overwrite) as folder:
            for number, (rung, recording) in enumerate(zip(rungs, recordings, strict=True), start=1):
                write(recording, folder / f"{number}-{rung.name.replace(' ', '-')}")
    if as_json:
        print_json({"step_times": machine.step_time.label, "rungs": [rung.as_dict() for rung in climbed]})
        return
    title = f"{scenario.workload.description}, {scenario.kv_bytes / 2**30:.2f} GiB of KV memory"
    rows = [_row(number, rung) for number, rung in enumerate(climbed, start=1)]
    columns = ["", "way to serve", "what is new", "tokens/s", "at a time", "gain", "of it memory", "of it speed"]
    print_table(title, columns, rows, figures=range(3, len(columns)), note=_note(climbed, machine.step_time.label))


def _row(number: int, rung: RungResult) -> tuple[str, ...]:
    gains = ("", "", "") if number == 1 else (_times(rung.gain), _times(rung.memory_gain), _times(rung.time_gain))
    figures = ("–", "–") if isnan(rung.tokens_per_s) else (f"{rung.tokens_per_s:,.0f}", f"{rung.mean_batch:.1f}")
    return (str(number), rung.name, rung.change, *figures, *gains)


def _times(factor: float) -> str:
    return "–" if isnan(factor) else f"\u00d7{factor:.2f}"


def _note(climbed: list[RungResult], label: str) -> str:
    from kvsim.machines import plain_words

    first, last = climbed[0], climbed[-1]
    ample = last.ample_tokens_per_s / first.ample_tokens_per_s
    return (
        f"From the first to the last: {_times(last.tokens_per_s / first.tokens_per_s)}; with memory for everything "
        f"{_times(ample)}.\ngain, against the line above = of it memory \u00d7 of it speed: what it would have gained "
        f"with memory for everything is speed, the rest is memory.\nstep times of one engine for all: "
        f"{plain_words(label)}\nin full: {label}"
    )
