"""Comparison by `kvsim compare` of values of a flag, or of servers with the same number of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cli.answer import failure_notes
from kvsim.cli.compared_figures import SideRun, figure_rows, sentence_on
from kvsim.cli.fleet_flags import OF_TRANSFERS, check_routes, fleet_of, routed_words, servers_of
from kvsim.cli.run import simulate_servers
from kvsim.cli.scenario import build_scenario
from kvsim.cli.show import command_line, echo, print_json, print_table, progress
from kvsim.cli.summary_lines import time_lines
from kvsim.errors import KvsimError
from kvsim.metrics.run_verdict import verdict_of
from kvsim.policies import Paged

if TYPE_CHECKING:
    from kvsim.cli.several_values import SeveralValues
    from kvsim.simulation import Options


class Side(NamedTuple):
    """Setup and requests of one of the compared runs."""

    name: str
    flags: Mapping[str, Any]
    is_requested: bool = True
    """True if the user asked for this run. Other runs are left out if they cannot be simulated."""


class Sides(NamedTuple):
    """Compared runs, and the flag in which they differ."""

    runs: Sequence[Side]
    flag: str = ""
    """Flag in which the runs differ, as it is typed; empty if the servers differ."""

    @classmethod
    def of_values(cls, several: SeveralValues, flags: Mapping[str, Any]) -> Sides:
        """Return sides that differ in one flag, with a run for each of its values."""
        sides = [
            Side(word, {**flags, several.name: value})
            for word, value in zip(several.words, several.values, strict=True)
        ]
        return cls(sides, several.flag)

    @classmethod
    def of_servers(cls, flags: Mapping[str, Any]) -> Sides:
        """Return a run for the requested servers, and one for each other arrangement of the same number of GPUs."""
        return cls(list(_apart(flags) if flags["prefill"] or flags["decode"] else _ranks(flags)))


def _apart(flags: Mapping[str, Any]) -> Iterator[Side]:
    prefill, decode = flags["prefill"] or 0, flags["decode"] or 0
    number, ranks = prefill + decode, flags["data_parallel_size"] or 1
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    equal = dict.fromkeys(("prefill", "decode", *OF_TRANSFERS)) | {"replicas": number}
    yield Side(f"{number} servers{of_ranks}", {**flags, **equal})
    yield Side(f"{prefill} prefill, {decode} decode{of_ranks}", flags)


def _ranks(flags: Mapping[str, Any]) -> Iterator[Side]:
    ranks, per_rank, number = flags["data_parallel_size"], flags["tensor_parallel_size"] or 1, flags["replicas"]
    servers = f"{number} servers, " if number > 1 else ""
    alone = {**flags, "data_parallel_size": None, "enable_expert_parallel": False}
    alone |= {"route": None} if number == 1 else {}
    yield Side(f"{servers}{ranks} data-parallel ranks", flags)
    together = f"{servers}tensor parallel over {ranks * per_rank}"
    yield Side(together, alone | {"tensor_parallel_size": ranks * per_rank}, is_requested=False)
    yield Side(f"{number * ranks} servers with all weights", alone | {"replicas": number * ranks}, is_requested=False)


def compare_sides(sides: Sides, policy: str, output: Path | None, *, overwrite: bool, as_json: bool) -> None:
    """Simulate all runs under `policy`, print their figures, and record each run in a folder below `output`.

    If `output` is None, nothing is recorded.
    """
    requested = [side.flags for side in sides.runs if side.is_requested]
    check_routes(*requested)
    for flags in requested:
        fleet_of(dict(flags))  # raises before anything is simulated
    if output is None:
        runs, notes = _run_all(sides, policy, None)
    else:
        from kvsim.files.overwriting import replacing_folder

        with replacing_folder(output, "compare", overwrite=overwrite) as folder:
            runs, notes = _run_all(sides, policy, folder)
    if as_json:
        print_json({name: run.as_dict() for name, run in runs.items()})
    else:
        _print(sides, runs, notes)


def _run_all(sides: Sides, policy: str, folder: Path | None) -> tuple[dict[str, SideRun], list[str]]:
    runs: dict[str, SideRun] = {}
    notes: dict[str, list[str]] = {}
    for side in sides.runs:
        try:
            runs[side.name], of_side = _simulate(side, policy, folder and folder / _folder_name(side.name))
        except KvsimError as error:
            if side.is_requested:
                raise
            of_side = [str(error)]
        for note in of_side:
            notes.setdefault(note, []).append(side.name)
    told = {
        note if len(names) == len(runs) else f"{', '.join(names)}: {note}": note.startswith("times: ")
        for note, names in notes.items()
    }
    times, others = ([note for note, is_time in told.items() if is_time is wanted] for wanted in (True, False))
    if len(times) > 1:
        times.append("the sides have different sources of times, which differ by their errors, too")
    return runs, [*times, *others]


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "side"


def _simulate(side: Side, policy: str, folder: Path | None) -> tuple[SideRun, list[str]]:
    """Simulate one run, and record it into `folder`; None records nothing. Return the run, and notes about it."""
    flags = dict(side.flags)
    fleet_flags = fleet_of(flags)
    scenario = build_scenario(**flags)
    settings = scenario.policy(policy)
    machine = scenario.machine(settings)
    servers = servers_of(fleet_flags, settings, machine)
    with progress(side.name) as report:
        options: Options = {
            "progress": report, "check": flags["check"], "refuse_misfits": flags["refuse_misfits"],
            "command": command_line(),
        }  # fmt: skip
        fleet = simulate_servers((scenario.workload, settings, machine), servers, options, folder)
    run = SideRun(scenario.workload, settings, machine, fleet)
    notes = [] if servers is None or side.name == servers.route_name else [routed_words(servers)]
    if (link := fleet_flags.link) is not None:
        notes.append(f"each server fetches KV over {link.gb_per_s:g} GB/s, {link.num_transfers} at a time")
    notes += [*(scenario.notes if policy == Paged.name else ()), *failure_notes([each.meta for each in fleet.servers])]
    notes += time_lines(fleet.servers[0])[:1]
    reasons = dict.fromkeys(each.prefix_no_hits for each in run.summaries if each.prefix_no_hits)
    return run, [*notes, *(f"no prefix hits: {why}" for why in reasons)]


def _print(sides: Sides, runs: Mapping[str, SideRun], notes: Sequence[str]) -> None:
    echo(sentence_on(sides.flag, runs))
    for name, run in runs.items():
        if len(run.summaries) == 1:
            echo(f"{name}: {verdict_of(run.summaries[0]).sentence}")
    loads = dict.fromkeys(run.workload.description for run in runs.values())
    title = next(iter(loads)) if len(loads) == 1 else ""
    heads = [sides.flag, *runs, *(["change"] if len(runs) == 2 else [])]
    print_table(title, heads, figure_rows(list(runs.values())), figures=range(1, len(heads)), note="\n".join(notes))
