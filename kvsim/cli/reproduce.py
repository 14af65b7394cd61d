"""`kvsim reproduce`: simulate published experiments, and compare kvsim's figures with the published ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.cli.flag import flag
from kvsim.cli.show import json_option, overwrite_option, print_json, print_table, progress
from kvsim.display.text import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.published import Figure, Reproduction


@click.command("reproduce")
@click.argument("rows", nargs=-1, metavar="[ROW]...")
@flag("--list", "list_only", is_flag=True, excludes=("plot",), help="List the names of the rows, and run none.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw simulated figures beside the published ones: PNG, SVG or PDF."
)
@overwrite_option("plot")
@json_option
def command(*, rows: tuple[str, ...], list_only: bool, plot: Path | None, overwrite: bool, as_json: bool) -> None:
    """Repeat the runs of papers, posts and logs, and compare the figures.

    ROW is the name of a row that --list shows; without any, all rows are run, which takes some seconds. The exit code
    is 1 if any simulated figure is outside the tolerance of its row. Some published figures are more than the GPU of
    their source can reach under the assumptions of the row; such a row is marked, and cannot fail.
    """
    from kvsim.published import ROWS, find_row, reproduce

    chosen = [find_row(name) for name in dict.fromkeys(rows)] or list(ROWS)
    if list_only and as_json:
        print_json({"rows": [{"name": row.name, "title": row.title, "source": row.source} for row in chosen]})
        return
    if list_only:
        print_table("", ["row", "what", "source"], [(row.name, row.title, row.source) for row in chosen])
        return
    if plot is not None:
        from kvsim.plots import may_save

        may_save(plot, "reproduce", overwrite=overwrite)  # before minutes of simulation
    outcomes = []
    for row in chosen:
        with progress(row.name) as report:
            outcomes.append(reproduce(row, report))
    if plot is not None:
        from kvsim.plots import save
        from kvsim.plots.published import beside_published

        save(beside_published(outcomes), plot, made_by="reproduce")
    if as_json:
        print_json({"rows": [outcome.as_dict() for outcome in outcomes]})
    else:
        _print_outcomes(outcomes)
    if any(outcome.failed for outcome in outcomes):
        sys.exit(1)


def _print_outcomes(outcomes: Sequence[Reproduction]) -> None:
    for outcome in outcomes:
        row = outcome.row
        lines = [
            (figure.label, f"{figure.published:,.6g}", f"{ours:,.6g}", figure.unit, _verdict(outcome, figure, ours))
            for figure, ours in zip(row.figures, outcome.ours, strict=True)
        ]
        notes = f"Source: {row.source}.\nBand: {row.band}.\n{row.note}".rstrip()
        print_table(
            f"{row.name}: {row.title}", ["", "published", "ours", "", ""], lines, figures=(1, 2), note=f"{notes}\n"
        )
    refuted = [outcome.row.name for outcome in outcomes if outcome.is_refuted]
    failed = [outcome.row.name for outcome in outcomes if outcome.failed]
    others = "all other figures" if refuted else "all figures"
    verdict = f"outside their bands: {', '.join(failed)}" if failed else f"{others} are inside their bands"
    if refuted:
        verdict = f"more is published than the source's own GPU can reach: {', '.join(refuted)}; {verdict}"
    num_figures = sum(len(outcome.ours) for outcome in outcomes)
    click.echo(f"{plural(len(outcomes), 'row')}, {plural(num_figures, 'figure')}; {verdict}.")


def _verdict(outcome: Reproduction, figure: Figure, ours: float) -> str:
    if figure.label in outcome.beyond:
        most = dict(zip((item.label for item in outcome.row.figures), outcome.ceilings, strict=True))[figure.label]
        return f"beyond the GPU: at most {most:,.3g}"
    if figure.holds(ours):
        return "pass"
    return "another load" if outcome.is_refuted else f"FAIL: {figure.low:,.6g} to {figure.high:,.6g}"
