"""`kvsim report`: write a page with the figures of recordings and a description of what happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvsim.cli.show import output_option, overwrite_option, progress, theme_option

if TYPE_CHECKING:
    from kvsim.plots.colors import Theme


@click.command("report")
@click.argument("recordings", nargs=-1, required=True)
@output_option("Folder to write.", default="report", show_default=True)
@theme_option("Background and colours of the page and of its figures.")
@overwrite_option()
def command(*, recordings: tuple[str, ...], output: Path, theme: Theme, overwrite: bool) -> None:
    """Write a page about RECORDINGS: what happened, every figure that suits them, and the commands to repeat it.

    The folder holds report.html, which needs nothing else, report.md, and the figures.
    """
    from kvsim.files.overwriting import may_replace
    from kvsim.plots.report_page import write_report
    from kvsim.recording import find, read

    may_replace(output, "report", overwrite=overwrite, is_folder=True)
    runs = [read(find(name)) for name in recordings]
    with progress("figures") as show:
        page = write_report(runs, output, given_as=recordings, overwrite=overwrite, theme=theme, progress=show)
        click.echo(page)
