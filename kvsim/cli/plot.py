"""`kvsim plot`: a figure from recordings."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.errors import UnknownNameError, UsageError

_OF_ONE_RECORDING = ("waste-over-time", "memory-map")


@click.command("plot")
@click.argument("kind")
@click.argument("recordings", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="PNG, SVG or PDF.  [KIND.png]")
@click.option("--for", "purpose", type=click.Choice(["paper", "slide", "web"]), default="web", show_default=True)
def command(*, kind: str, recordings: tuple[str, ...], output: Path | None, purpose: str) -> None:
    """Draw a figure of one KIND from RECORDINGS: folders, or names of recordings that come with kvsim.

    KIND is one of waste-bars, waste-over-time, occupancy and memory-map.
    """
    from kvsim.plots import FIGURES, save
    from kvsim.recording import find, read

    if kind not in FIGURES:
        raise UnknownNameError("kind of figure", kind, FIGURES)
    if kind in _OF_ONE_RECORDING and len(recordings) > 1:
        raise UsageError(f"a figure of {kind} shows one recording, and {len(recordings)} were given.")
    figure = FIGURES[kind](*(read(find(name)) for name in recordings), purpose=purpose)
    click.echo(save(figure, output or Path(f"{kind}.png")))
