"""`kvsim tui --attach`: watch a live server, and record what was observed.

If the server has a page of metrics (/metrics), these are polled and saved as a table (.csv). Otherwise it must publish
kvsim's events, which are saved as a recording.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import flag, with_options
from kvsim.cli.show import echo
from kvsim.display.text import message
from kvsim.errors import UsageError
from kvsim.files.atomic import whole_file
from kvsim.files.overwriting import may_replace, may_write, replacing_folder
from kvsim.files.scratch import ENDING_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvsim.live.kv_event_ranks import KvEventRanks


kv_events_options = with_options(
    flag(
        "--kv-events",
        metavar="ADDRESS",
        requires=("attach",),
        help="Follow the KV events that vLLM or SGLang publishes beside its /metrics, at tcp://HOST:PORT or PORT; "
        "PORT-PORT for the consecutive ports of data-parallel ranks.",
    ),
    flag(
        "--kv-events-replay",
        metavar="ADDRESS",
        requires=("kv_events",),
        help="Address of the server's replay_endpoint, which sends events that --kv-events missed.",
    ),
)
"""Decorator that adds the flags for the KV events that a server publishes beside its metrics."""


@contextmanager
def kv_event_ranks(address: str | None, replay: str | None) -> Iterator[KvEventRanks | None]:
    """Yield an object that follows the KV events of each data-parallel rank of the server at `address`; None without an
    address.

    `replay` is the address from which missed events are fetched. If it is None, they stay missing.
    """
    if address is None:
        yield None
        return
    from kvsim.live.kv_event_ranks import KvEventRanks

    ranks = KvEventRanks(address, replay=replay)
    try:
        yield ranks
    finally:
        ranks.close()


def attach(
    tui: Any, address: str, output: Path | None, *, kv_events: str | None, kv_events_replay: str | None,
    overwrite: bool, ascii_only: bool, calm: bool,
) -> None:  # fmt: skip
    """Watch the server at `address` until the user quits, and write what was observed to `output`.

    If the server has no page of metrics (/metrics), it must publish kvsim's own events (KVSIM_PUBLISH).

    Args:
        tui: the package `kvsim_tui`.
        address: address of the server.
        output: file or folder to write; None writes nothing.
        kv_events: address of the server's KV events; None without them. Only for a server with a page of metrics.
        kv_events_replay: address from which missed KV events are fetched; None if they stay missing.
        overwrite: True to replace any existing output.
        ascii_only: True to draw with plain characters.
        calm: True to draw one frame a second, for slow links.
    """
    from kvsim.live.address import page_of

    metrics_url = page_of(address)
    if output is not None:
        _check_output(metrics_url, output, overwrite=overwrite)
    if metrics_url is not None:
        with kv_event_ranks(kv_events, kv_events_replay) as ranks:
            is_written = _watch_metrics(tui, metrics_url, output, ranks, overwrite=overwrite, ascii_only=ascii_only)
    elif kv_events:
        raise UsageError(f"KV events are shown beside the /metrics of a server; no web server answers at {address}.")
    else:
        is_written = _watch_events(tui, address, output, overwrite=overwrite, ascii_only=ascii_only, calm=calm)
    if is_written:
        click.echo(output)
    elif output is not None:
        echo(f"{output} was not written: the server sent no step.", err=True)


def _check_output(metrics_url: str | None, output: Path, *, overwrite: bool) -> None:
    if metrics_url is None:
        may_replace(output, "tui", overwrite=overwrite, is_folder=True)
        return
    if output.suffix != ".csv":
        raise UsageError(
            f"metrics do not name blocks, so they are written as a table; -o should end in .csv, not {output}."
        )
    may_write(output, "tui", overwrite=overwrite)


def _watch_metrics(
    tui: Any, metrics_url: str, output: Path | None, ranks: KvEventRanks | None, *, overwrite: bool, ascii_only: bool
) -> bool:
    """Watch the page of metrics at `metrics_url`; return True if `output` was written.

    `ranks` follows the KV events of the server's data-parallel ranks; None if they are not watched.
    """
    from kvsim.live.metrics import as_csv
    from kvsim.live.metrics_feed import MetricsFeed

    feed = MetricsFeed(metrics_url)

    def write_table(file: Path) -> bool:
        # Checked again: another program may have created the file since the start, which can be hours ago.
        may_replace(file, "tui", overwrite=overwrite)
        with whole_file(file) as scratch:
            scratch.write_text(as_csv(feed.polls()), encoding="utf-8")
        return True

    with _saved_at_end(output, write_table) as result:
        try:
            tui.watch_metrics(feed, ranks, keep=result.save, ascii=ascii_only)
        finally:
            feed.close()
    _print_end(feed.ended)
    return result.is_written


def _watch_events(
    tui: Any, address: str, output: Path | None, *, overwrite: bool, ascii_only: bool, calm: bool
) -> bool:
    """Watch a server that publishes kvsim's events; return True if `output` was written.

    If `output` is None, nothing is written.
    """
    from kvsim.live.event_feed import LiveFeed
    from kvsim.recording import write

    feed = LiveFeed(address)
    click.echo(f"attached to {address}; waiting for its first step. Ctrl+C gives up.", err=True)

    def write_recording(folder: Path) -> bool:
        observed = feed.whole()
        if observed is None:
            return False
        with replacing_folder(folder, "tui", overwrite=overwrite) as scratch:
            write(observed.recording, scratch)
        return True

    with _saved_at_end(output, write_recording) as result:
        try:
            tui.attach(feed, keep=result.save, ascii=ascii_only, calm=calm)
        finally:
            feed.close()
    _print_end(feed.ended_before_close)
    return result.is_written


class _Result:
    """File or folder that is written once, even if several threads save it."""

    def __init__(self, output: Path | None, write: Callable[[Path], bool]) -> None:
        """Prepare to write to `output`; if it is None, `save` does nothing.

        `write` writes to a path, and returns False if there is nothing to write.
        """
        self.is_written = False
        self._output, self._write, self._lock = output, write, Lock()

    def save(self) -> None:
        with self._lock:
            if self._output is not None and not self.is_written:
                self.is_written = self._write(self._output)


@contextmanager
def _saved_at_end(output: Path | None, write: Callable[[Path], bool]) -> Iterator[_Result]:
    """Yield a result that is saved when the `with` block ends, unless it was saved before."""
    result = _Result(output, write)
    try:
        yield result
    finally:
        # A closed terminal often sends several signals; the second should not interrupt the writing.
        former = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
        try:
            result.save()
        finally:  # what this process starts later inherits ignored signals
            for number, handler in former.items():
                signal.signal(number, handler)


def _print_end(reason: str | None) -> None:
    if reason is not None:
        echo(message(reason), err=True)
