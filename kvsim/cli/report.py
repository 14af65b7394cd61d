"""`kvsim report`: write a page with the figures of recordings and a description of what happened."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.cli.show import output_option, overwrite_option, progress


@click.command("report")
@click.argument("recordings", nargs=-1, required=True)
@output_option("Folder to write.", default="report", show_default=True)
@overwrite_option()
def command(*, recordings: tuple[str, ...], output: Path, overwrite: bool) -> None:
    """Write a page about RECORDINGS: what happened, every figure that suits them, and the commands to repeat it.

    The folder holds report.html, which needs nothing else, report.md, and the figures.
    """
    from kvsim.files.overwriting import may_replace
    from kvsim.plots.report_page import write_report
    from kvsim.recording import find, read

    may_replace(output, "report", overwrite=overwrite, is_folder=True)
    runs = [read(find(name)) for name in recordings]
    with progress("figures") as show:
        click.echo(write_report(runs, output, given_as=recordings, overwrite=overwrite, progress=show))
