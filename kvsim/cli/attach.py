"""`kvsim tui --attach`: watch a live server, and write down what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.show import echo
from kvsim.display.text import message
from kvsim.errors import UsageError
from kvsim.files.atomic import whole_file
from kvsim.files.overwriting import may_replace, replacing_folder

if TYPE_CHECKING:
    from pathlib import Path


def check_output(address: str, output: Path, *, overwrite: bool) -> None:
    """Make sure that what is seen of the server at `address` may be written to `output`.

    Raises:
        UsageError: it may not.
    """
    if not is_metrics(address):
        may_replace(output, "tui", overwrite=overwrite, is_folder=True)
        return
    if output.suffix != ".csv":
        raise UsageError(
            f"metrics tell of no blocks, so they are written as a table: -o should end in .csv, not {output}."
        )
    may_replace(output, "tui", overwrite=overwrite)


def is_metrics(address: str) -> bool:
    """Whether `address` is a page of metrics, and not a socket with events."""
    return address.startswith(("http://", "https://"))


def attach(tui: Any, address: str, output: Path | None, *, overwrite: bool, ascii_only: bool) -> None:
    """Watch the server at `address` until the person quits, and write what was seen to `output`."""
    watch = _watch_metrics if is_metrics(address) else _watch_events
    watch(tui, address, output, overwrite=overwrite, ascii_only=ascii_only)
    if output is not None:
        click.echo(output)


def _watch_metrics(tui: Any, address: str, output: Path | None, *, overwrite: bool, ascii_only: bool) -> None:
    from kvsim.live.metrics_feed import MetricsFeed
    from kvsim.live.metrics_table import as_csv

    feed = MetricsFeed(address)
    try:
        tui.watch_metrics(feed, ascii=ascii_only)
    finally:
        feed.close()
        _say_end(feed.ended)
    if output is not None:
        may_replace(output, "tui", overwrite=overwrite)
        with whole_file(output) as file:
            file.write_text(as_csv(feed.looks()), encoding="utf-8")


def _watch_events(tui: Any, address: str, output: Path | None, *, overwrite: bool, ascii_only: bool) -> None:
    from kvsim.live.feed import LiveFeed
    from kvsim.recording import write

    feed = LiveFeed(address)
    click.echo(f"attached to {address}; waiting for its first step. Ctrl+C gives up.", err=True)
    try:
        seen = tui.attach(feed, ascii=ascii_only)
    finally:
        feed.close()
        _say_end(feed.ended_before_close)
    if output is not None:
        with replacing_folder(output, "tui", overwrite=overwrite) as folder:
            write(seen, folder)


def _say_end(sentence: str | None) -> None:
    if sentence is not None:
        echo(message(sentence), err=True)
