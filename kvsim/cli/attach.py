"""`kvsim tui --attach`: watch a live server, and record it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.show import echo
from kvsim.display.text import message
from kvsim.errors import UsageError
from kvsim.files.atomic import whole_file
from kvsim.files.overwriting import may_replace, replacing_folder
from kvsim.files.scratch import ENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvsim.live.kv_event_ranks import KvEventRanks


def kv_events_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags for the KV events that a server publishes beside its metrics."""
    for option in (
        click.option(
            "--kv-events-replay",
            metavar="ADDRESS",
            help="The server's replay_endpoint, which sends events that --kv-events missed.",
        ),
        click.option(
            "--kv-events",
            metavar="ADDRESS",
            help="Follow the KV events that vLLM or SGLang publishes beside its /metrics, at tcp://HOST:PORT or PORT; "
            "PORT-PORT for the data-parallel ranks of a server, whose ports follow one another.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def cache_feed(address: str | None, replay: str | None) -> Iterator[KvEventRanks | None]:
    """Follow the KV events at `address`, if any.

    Raises:
        UsageError: it is no address, or there is a `replay` alone.
    """
    if address is None:
        if replay is not None:
            raise UsageError("--kv-events-replay asks for events that --kv-events has missed; give both.")
        yield None
        return
    from kvsim.live.kv_event_ranks import KvEventRanks

    feed = KvEventRanks(address, replay=replay)
    try:
        yield feed
    finally:
        feed.close()


def attach(
    tui: Any, address: str, output: Path | None, *, events: tuple[str | None, str | None], overwrite: bool,
    ascii_only: bool, calm: bool,
) -> None:  # fmt: skip
    """Watch the server at `address` until the person quits, and write the recording to `output`.

    A web server is asked for its metrics, and its KV `events` and their replays are followed, if their addresses are
    given; any other server is listened to for events of its own.

    Raises:
        UsageError: it is no address, or `output` may not be written.
    """
    from kvsim.live.address import page_of

    page = page_of(address)
    if output is not None:
        _check_output(page, output, overwrite=overwrite)
    if page is not None:
        with cache_feed(*events) as cache:
            _watch_metrics(tui, page, output, cache, overwrite=overwrite, ascii_only=ascii_only)
    elif any(events):
        raise UsageError(f"KV events are shown beside the /metrics of a server; no web server answers at {address}.")
    else:
        _watch_events(tui, address, output, overwrite=overwrite, ascii_only=ascii_only, calm=calm)
    if output is not None:
        click.echo(output)


def _check_output(page: str | None, output: Path, *, overwrite: bool) -> None:
    if page is None:
        may_replace(output, "tui", overwrite=overwrite, is_folder=True)
        return
    if output.suffix != ".csv":
        raise UsageError(
            f"metrics tell of no blocks, so they are written as a table: -o should end in .csv, not {output}."
        )
    may_replace(output, "tui", overwrite=overwrite)


def _watch_metrics(
    tui: Any, address: str, output: Path | None, cache: KvEventRanks | None, *, overwrite: bool, ascii_only: bool
) -> None:
    from kvsim.live.metrics import as_csv
    from kvsim.live.metrics_feed import MetricsFeed

    feed = MetricsFeed(address)

    def write_it(output: Path) -> None:
        may_replace(output, "tui", overwrite=overwrite)
        with whole_file(output) as file:
            file.write_text(as_csv(feed.looks()), encoding="utf-8")

    with _kept(output, write_it) as keep:
        try:
            tui.watch_metrics(feed, cache, keep=keep, ascii=ascii_only)
        finally:
            feed.close()
    _say_end(feed.ended)


def _watch_events(
    tui: Any, address: str, output: Path | None, *, overwrite: bool, ascii_only: bool, calm: bool
) -> None:
    from kvsim.live.event_feed import LiveFeed
    from kvsim.recording import write

    feed = LiveFeed(address)
    click.echo(f"attached to {address}; waiting for its first step. Ctrl+C gives up.", err=True)

    def write_it(output: Path) -> None:
        seen = feed.whole()
        if seen is not None:
            with replacing_folder(output, "tui", overwrite=overwrite) as folder:
                write(seen.recording, folder)

    with _kept(output, write_it) as keep:
        try:
            tui.attach(feed, keep=keep, ascii=ascii_only, calm=calm)
        finally:
            feed.close()
    _say_end(feed.ended_before_close)


@contextmanager
def _kept(output: Path | None, write_it: Callable[[Path], None]) -> Iterator[Callable[[], None]]:
    """Write the recording once: when the block ends, or when the yielded function is called."""
    lock, done = Lock(), Event()

    def keep() -> None:
        with lock:
            if output is not None and not done.is_set():
                write_it(output)
                done.set()

    try:
        yield keep
    finally:
        for number in ENDING:  # which may come while it is written
            signal.signal(number, signal.SIG_IGN)
        keep()


def _say_end(sentence: str | None) -> None:
    if sentence is not None:
        echo(message(sentence), err=True)
