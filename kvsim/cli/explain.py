"""`kvsim explain`: print a lesson as text, or write it as Markdown, without the interactive interface."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import click

from kvsim.cli.flag import flag
from kvsim.cli.show import overwrite_option
from kvsim.errors import UsageError
from kvsim.files.overwriting import may_replace


@click.command("explain")
@click.argument("lesson", metavar="[N]", required=False)
@flag("--markdown", is_flag=True, requires=("output",), help="Write Markdown with a figure for every caption into -o.")
@flag(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    requires=("markdown",),
    help="Folder for --markdown and its figures.",
)
@overwrite_option("output")
@flag("--ascii", "ascii_only", is_flag=True, excludes=("markdown",), help="Draw with plain characters.")
def command(*, lesson: str | None, markdown: bool, output: Path | None, overwrite: bool, ascii_only: bool) -> None:
    """Print lesson N with still pictures of the memory pool; without N, list the lessons.

    N may also be the file of a lesson of your own. The lesson's run is simulated, and the figures in its text are
    computed from this run.
    """
    lessons = import_module("kvsim_tui.lessons")
    if lesson is None:
        if markdown:
            raise UsageError("--markdown writes one lesson; give its number: kvsim explain 1 --markdown -o FOLDER.")
        list_lessons()
        return
    reading, guided = import_module("kvsim_tui.lessons.reading"), lessons.Guided(lessons.find_lesson(lesson))
    if output is None:
        symbols = import_module("kvsim_tui.look.states")
        plain = ascii_only or not _can_print("█▒×")
        click.echo(reading.as_text(guided, symbols.ASCII if plain else symbols.GLYPHS))
        return
    text, figures = reading.as_markdown(guided)
    page = output / f"{guided.lesson.file.stem}.md"
    for file in (page, *(output / name for name in figures)):
        may_replace(file, "explain", overwrite=overwrite)
    output.mkdir(parents=True, exist_ok=True)
    save = import_module("kvsim_tui.export.picture_file").save
    for name, figure in figures.items():
        save(figure, output / name, made_by="explain")
    click.echo(save(f"{text}\n", page, made_by="explain"))  # last, so that a written page always has its figures


def list_lessons() -> None:
    """Print the number, the title and the summary of each lesson."""
    for lesson in import_module("kvsim_tui.lessons").all_lessons():
        click.echo(f"{lesson.number}  {lesson.title}\n   {lesson.summary}")


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return os.environ.get("TERM") != "dumb"
