"""`kvsim conform`: compare the decisions of an installed vLLM with those that kvsim predicts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.cli.options import bounded
from kvsim.cli.show import difference_rows, echo, json_option, overwrite_option, print_json, print_table, progress

if TYPE_CHECKING:
    from kvsim.conformance.conformity import Conformity

_MOST_LINES = 12
"""Maximum number of printed lines of a difference; the report has all lines."""


@click.command("conform")
@click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help="Interpreter of the environment that has vLLM.  [the one that runs kvsim]",
)
@click.option("--vllm", metavar="VERSION", help="Release whose rules are followed.  [that of the installed vLLM]")
@click.option(
    "--count",
    type=int,
    default=200,
    callback=bounded(at_least=0, at_most=1_000_000),
    metavar="N",
    help="Generated workloads, beside the golden ones.  [200]",
)
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of the generated workloads.  [0]")
@click.option(
    "--groups",
    type=click.Choice(["one", "several", "both"]),
    default="both",
    help="Number of KV-cache groups of a workload.  [both]",
)
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Write the result to FILE.json and FILE.md."
)
@overwrite_option("report")
@json_option
def command(
    *, python: str, vllm: str | None, count: int, seed: int, groups: str, report: Path | None, overwrite: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare the decisions of an installed vLLM with those of kvsim, and name the rules that differ.

    vLLM's own scheduler and KV-cache manager serve workloads on the CPU, with a fake model: the golden ones, which come
    with kvsim, and generated ones. Requests, tokens and their order, block ids, hits, preemptions, queues and ends are
    compared at every step. The exit code is 1 if anything differs.
    """
    from kvsim.conformance.conform_report import as_dict, as_markdown
    from kvsim.conformance.conformity import conform
    from kvsim.conformance.driven import DrivenVllm
    from kvsim.files.atomic import whole_file
    from kvsim.files.overwriting import may_write

    files = [] if report is None else [report.with_name(f"{report.name}.{kind}") for kind in ("json", "md")]
    for file in files:
        may_write(file, "conform", overwrite=overwrite)
    with progress("starting vLLM") as done, DrivenVllm(python) as engine:
        result = conform(engine, count=count, seed=seed, groups=groups, release=vllm, progress=done)
    for file, text in zip(files, (json.dumps(as_dict(result), indent=2) + "\n", as_markdown(result)), strict=False):
        with whole_file(file, made_by="conform" if file.suffix == ".md" else "") as scratch:
            scratch.write_text(text, encoding="utf-8")
    if as_json:
        print_json(as_dict(result))
    else:
        _show(result)
    if not result.equal:
        sys.exit(1)


def _show(result: Conformity) -> None:
    from kvsim.conformance.conform_report import place_of, sentence_of, words_of

    for note in result.notes:
        echo(f"Note: {note}.")
    echo(sentence_of(result))
    for number, finding in enumerate(result.findings, 1):
        echo(f"\n{number}. {finding.rule}\n   {words_of(finding)}")
        lines = finding.difference.lines
        more = f"… and {len(lines) - _MOST_LINES} more; --report writes all" if len(lines) > _MOST_LINES else ""
        print_table(place_of(finding), ["", "vLLM", "kvsim"], difference_rows(lines[:_MOST_LINES]), note=more)
