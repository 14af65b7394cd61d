"""`kvsim plot`: figures from recordings, as files for papers, slides and web pages."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import flag
from kvsim.cli.show import echo, output_option, overwrite_option, progress, theme_option
from kvsim.display.text import printable
from kvsim.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.plots import FileOptions, Picture
    from kvsim.recording import Recording

_MOST_PIXELS = 100_000_000
_DEFAULT_DPI = 300
"""Pixels per inch that `_check_pixels` assumes if --dpi is not given: the largest default of any --for."""
_DEFAULT_SIDE_INCHES = 11.0
"""Width and height in inches that `_check_pixels` assumes if --size is not given: the largest default of any --for."""
_KINDS = (
    "waste-bars, occupancy, queue, latency, lifetimes, free-runs (one or several recordings); "
    "ladder (what kvsim compare --ladder -o wrote); waste-over-time, memory-map, roofline (one); "
    "sessions (one whose turns wait for answers); "
    "throughput-memory, throughput-block-size, hits-capacity (a recording or a table's row per point); "
    "agreement (a measured run and its simulation)"
)


@click.command("plot", epilog=f"KIND is one of: {_KINDS}.")
@click.argument("kind_and_names", metavar="KIND RECORDING...", nargs=-1, required=True)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Write every figure that suits the recordings into the folder -o; give no KIND.",
)
@output_option("PNG, SVG or PDF; a folder with --all.  [KIND.png, figures]")
@flag(
    "--as",
    "file_type",
    type=click.Choice(["png", "svg", "pdf"]),
    default="png",
    show_default=True,
    requires=("everything",),
    help="Type of the files of --all.",
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["paper", "paper-wide", "slide", "web"]),
    default="web",
    show_default=True,
    help="Medium: one or both columns of a paper, a slide, or a web page. It decides the size of figure and letters.",
)
@theme_option("Colours of the interface for a light or a dark background.")
@click.option("--size", metavar="WIDTHxHEIGHT", help="Size in inches, such as 3.3x2.2.  [by --for]")
@click.option("--dpi", type=click.IntRange(30, 2400), help="Pixels per inch in PNG.  [by --for]")
@flag("--title", metavar="TEXT", excludes=("no_title",), help="Title to use instead of the finding.")
@click.option(
    "--label", "labels", metavar="TEXT", multiple=True, help="Name of a recording; give one for each, in their order."
)
@click.option("--order", metavar="NAMES", help="Order of the recordings: their names or labels, with commas.")
@click.option("--no-title", is_flag=True, help="Draw no title; the caption states the finding.")
@click.option("--no-source", is_flag=True, help="Leave out the line that names the source of the data.")
@click.option("--transparent", is_flag=True, help="Draw no background.")
@click.option("--svg-text", is_flag=True, help="Keep text in SVG as text, for editing and searching.")
@overwrite_option()
def command(
    *,
    kind_and_names: tuple[str, ...],
    everything: bool,
    output: Path | None,
    file_type: str,
    purpose: str,
    theme: str,
    size: str | None,
    dpi: int | None,
    title: str | None,
    labels: tuple[str, ...],
    order: str | None,
    no_title: bool,
    no_source: bool,
    transparent: bool,
    svg_text: bool,
    overwrite: bool,
) -> None:
    """Draw a figure of one KIND from recordings: folders, or names of recordings that come with kvsim.

    A text file that describes the figure to people who cannot see it is written beside the figure.
    """
    from kvsim.plots import OF_SEVERAL, FileOptions, check_kind, may_save, save

    if title is not None:
        title = printable(title)
    options = FileOptions(
        title="" if no_title else title, source=not no_source, dpi=dpi, transparent=transparent, svg_text=svg_text
    )
    inches = None if size is None else _inches(size)
    _check_pixels(inches, dpi)
    if (labels or order is not None) and (everything or kind_and_names[0] not in OF_SEVERAL):
        raise UsageError(f"--label and --order name the recordings of {', '.join(OF_SEVERAL)}; leave them out here.")
    if everything:
        folder = output or Path("figures")
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"cannot write {folder}: it is a file; name a folder.")
        recordings = _read(kind_and_names)
        folder.mkdir(parents=True, exist_ok=True)
        _write_all(
            recordings, folder, file_type, options, overwrite=overwrite, purpose=purpose, size=inches, theme=theme
        )
        return
    kind, *names = kind_and_names
    check_kind(kind, len(names))
    file = output or Path(f"{kind}.png")
    may_save(file, "plot", overwrite=overwrite)
    picture = _picture(kind, names, labels, order, purpose=purpose, size=inches, theme=theme)
    click.echo(save(picture, file, options=options))


def _check_pixels(inches: tuple[float, float] | None, dpi: int | None) -> None:
    num_square_inches = _DEFAULT_SIDE_INCHES**2 if inches is None else math.prod(inches)
    if (dpi or _DEFAULT_DPI) ** 2 * num_square_inches > _MOST_PIXELS:
        raise UsageError("--size and --dpi together give more than 100 million pixels; lower one.")


def _picture(kind: str, names: Sequence[str], labels: tuple[str, ...], order: str | None, **style: Any) -> Picture:
    """Draw the recordings or tables called `names`; `style` has the medium (--for), the size and the theme."""
    from kvsim.plots import FIGURES, OF_A_SWEEP, OF_SEVERAL

    runs = _points(names) if kind in OF_A_SWEEP else _read(names)
    if labels or order is not None:
        runs, named = _arranged(runs, tuple(map(printable, labels)), order)
        return OF_SEVERAL[kind](*runs, **style, names=named)
    return FIGURES[kind](*runs, **style)


def _arranged(
    runs: list[Recording], labels: tuple[str, ...], order: str | None
) -> tuple[list[Recording], tuple[str, ...]]:
    """Return the runs and their names, in the `order` of names that the user gave."""
    from kvsim.plots.words import names_for

    names = names_for(runs, labels, len(runs))
    if order is None:
        return runs, names
    wanted = [name.strip() for name in order.split(",")]
    if sorted(wanted) != sorted(names):
        raise UsageError(f"--order should name each recording once ({', '.join(names)}), not {printable(order)!r}.")
    # Two recordings may have equal names: each recording is taken once.
    unused = list(enumerate(names))
    arranged = []
    for name in wanted:
        place = next(place for place in unused if place[1] == name)
        unused.remove(place)
        arranged.append(runs[place[0]])
    return arranged, tuple(wanted)


def _inches(size: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", size)
    width, height = map(float, match.groups()) if match else (0.0, 0.0)
    if not (1 <= width <= 40 and 1 <= height <= 40):
        raise UsageError(f"--size should be a width and a height of 1 to 40 inches such as 3.3x2.2, not {size!r}.")
    return width, height


def _read(names: Sequence[str]) -> list[Recording]:
    from kvsim.recording import find, read

    return [read(find(name)) for name in names]


def _points(names: Sequence[str]) -> list[Any]:
    from kvsim.plots import RunPoint, points_of_table
    from kvsim.recording import find, read

    paths = [find(name) for name in names]
    points: list[RunPoint] = []
    for path in paths:
        points += points_of_table(path) if path.suffix in (".csv", ".parquet") else [RunPoint.of(read(path))]
    return points


def _write_all(
    recordings: list[Recording], folder: Path, file_type: str, options: FileOptions, *, overwrite: bool, **style: Any
) -> None:
    """Write every figure that suits the recordings; print why each other figure cannot be drawn."""
    from kvsim.plots import may_save, plans, save

    written = 0
    with progress("figures") as report:
        todo = plans(recordings)
        for plan in todo:
            may_save(folder / f"{plan.file_stem}.{file_type}", "plot", overwrite=overwrite)
        for number, plan in enumerate(todo):
            report(number, len(todo))
            try:
                picture = plan.draw(**style)
            except (RecordingError, UsageError) as error:
                echo(f"left out {plan.file_stem}: {error}", err=True)
                continue
            click.echo(save(picture, folder / f"{plan.file_stem}.{file_type}", options=options))
            written += 1
    if not written:
        raise RecordingError("no figure could be drawn; the lines above say why.")
