"""The terminal interface: plays recordings of simulated and of real engines, frame by frame.

These functions are the only entry to the package. They import Textual when they are called, because that import takes a
third of a second, and commands without a screen do not need it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from kvsim.live.kv_event_ranks import KvEventRanks
    from kvsim.live.metrics_feed import MetricsFeed
    from kvsim.recording import Recording

    from .lessons import Guided, Lesson
    from .live.feed import Feed
    from .playback.compared_runs import ComparedRuns
    from .playback.fleet_servers import FleetServers
    from .playback.session import Session
    from .screens.opening import OpeningProgress

    Shown: TypeAlias = Recording | Sequence[Recording] | Lesson | FleetServers
    """Everything that the interface can play."""

_MAX_ROWS_COUNTED_FIRST = 200_000
"""Largest number of steps plus memory operations of a recording whose slots are counted before playback begins.

The slots of a longer recording are counted after its first picture has been drawn.
"""

__all__ = ["attach", "fleet_of", "open_fleet", "run", "screenshot", "watch_metrics"]


def fleet_of(recordings: Sequence[Recording], folders: Sequence[str] = ()) -> FleetServers:
    """Return the servers of a fleet on one clock.

    Args:
        recordings: one recording for each server.
        folders: names of the servers' folders, as `kvsim run -o` chooses them. By default, each is the index in
            `recordings`.

    Raises:
        RecordingError: no server has steps.
    """
    from .playback.fleet_servers import FleetServers, shown_name  # noqa: PLC0415 - pulls in numpy

    names = folders or [str(number) for number in range(len(recordings))]
    return FleetServers.of(recordings, [shown_name(name) for name in names])


def open_fleet(folders: Sequence[Path], report: Callable[[int, int], None] | None = None) -> FleetServers:
    """Read the recordings of a fleet. Each folder has the recording of one server, and gives the server its name.

    Args:
        folders: the folders with the recordings.
        report: called after each folder, with the number of servers that have been read and the number of folders.

    Raises:
        RecordingError: a recording cannot be read, or no server has steps.
    """
    from kvsim.recording import read, read_outlines  # noqa: PLC0415

    from .playback.fleet_servers import FleetServer, FleetServers, shown_name  # noqa: PLC0415

    servers = []
    for folder, outline in zip(folders, read_outlines(folders), strict=True):
        servers.append(FleetServer(outline, shown_name(folder.name), partial(read, folder)))
        if report is not None:
            report(len(servers), len(folders))
    return FleetServers(servers)


def run(
    shown: Shown | Callable[[OpeningProgress], Shown],
    *,
    at_s: float | None = None,
    ascii: bool = False,  # noqa: A002 - the flag's name
    calm: bool = False,
    runs: Callable[[], Sequence[Recording]] | None = None,
    ample: Callable[[], Sequence[float]] | None = None,
) -> None:
    """Show `shown` in this terminal until the user quits.

    Args:
        shown: a recording, simulated or captured; several recordings, to compare on one clock; a fleet; a lesson; or
            a function that returns one of these. The function runs in a thread while the terminal shows its progress.
        at_s: seconds from the first event at which to begin. By default, a single recording begins shortly before its
            most interesting moment, a fleet at its busiest moment, and compared runs and lessons at the first frame.
        ascii: draw states as ASCII characters. If False, draw them as colours, or as Unicode glyphs if the environment
            variable `NO_COLOR` is set.
        calm: draw one frame a second, for slow links.
        runs: simulates the requests of `shown` under every policy; called when the user asks for a comparison.
        ample: returns the output tokens per second that each of the compared recordings would reach with unlimited
            memory, in the order of `shown`; called in a thread during playback.

    Raises:
        RecordingError: a recording has no steps, or there is none.
        LessonError: the lesson cannot be played.
    """
    from .app import KvsimApp  # noqa: PLC0415 - textual costs a third of a second
    from .screens.defects import play  # noqa: PLC0415

    def open_it(report: OpeningProgress) -> Session | ComparedRuns | FleetServers | Guided:
        made = shown(report) if callable(shown) else shown
        report.begin("opening")
        return _opened(made, at_s, live=True)

    app = KvsimApp(open_it, ascii=ascii, calm=calm, runs=runs, ample=ample)
    play(app)
    if app.failure is not None:
        raise app.failure


def attach(
    feed: Feed,
    *,
    keep: Callable[[], None],
    ascii: bool = False,  # noqa: A002 - the flag's name
    calm: bool = False,
) -> None:
    """Watch a recording that is still growing, until the user quits.

    Args:
        feed: source of the new steps.
        keep: called if a signal ends the program, to save what was recorded.
        ascii: draw with plain ASCII.
        calm: draw one frame a second, for slow links.

    Raises:
        RecordingError: the feed ended before its first step.
        DefectError: the interface failed.
    """
    from .app import KvsimApp  # noqa: PLC0415
    from .live.feed import first_excerpt  # noqa: PLC0415
    from .live.past import Past  # noqa: PLC0415
    from .screens.defects import play  # noqa: PLC0415

    play(KvsimApp(Past().open(first_excerpt(feed)), ascii=ascii, calm=calm, feed=feed), keep)


def watch_metrics(
    feed: MetricsFeed,
    cache: KvEventRanks | None = None,
    *,
    keep: Callable[[], None],
    ascii: bool = False,  # noqa: A002
) -> None:
    """Watch a server through its Prometheus metrics until the user quits.

    Args:
        feed: source of the metrics.
        cache: feeds of the KV events of the server's ranks; None if the events are not followed.
        keep: called if a signal ends the program, to save what was recorded.
        ascii: draw with plain ASCII.

    Raises:
        DefectError: the interface failed.
    """
    from .live.metrics_app import MetricsApp  # noqa: PLC0415
    from .screens.defects import play  # noqa: PLC0415

    play(MetricsApp(feed, cache, ascii=ascii), keep)


def screenshot(
    shown: Shown,
    file: str | os.PathLike[str],
    *,
    at_s: float | None = None,
    size: tuple[int, int] = (120, 40),
    ascii: bool = False,  # noqa: A002 - the flag's name
    ample: Callable[[], Sequence[float]] | None = None,
) -> None:
    """Draw the interface in a terminal of `size` (columns, lines), and write the picture to `file`.

    The file is an SVG, or a PNG if its name ends in `.png`. The same recording, time and size give the same bytes. The
    file is written whole or not at all.

    Args:
        shown: a recording; several recordings, to compare; a lesson; or a fleet.
        file: path of the picture.
        at_s: seconds from the first event. None shows the most interesting moment of a single recording, a comparison
            when its fastest run is half done, a fleet at its busiest moment, and a lesson at the first frame.
        size: columns and lines of the terminal.
        ascii: draw with plain ASCII.
        ample: as for `run`.

    Raises:
        RecordingError: a recording has no steps, or there is none.
        LessonError: the lesson cannot be played.
        UsageError: the file cannot be written, or is a PNG and there is no converter or the converter fails.
    """
    from .app import KvsimApp  # noqa: PLC0415
    from .export.picture_file import png_of, save  # noqa: PLC0415
    from .playback.compared_runs import ComparedRuns  # noqa: PLC0415
    from .saving import render  # noqa: PLC0415

    opened = _opened(shown, at_s)
    if ample is not None and isinstance(opened, ComparedRuns):
        opened.set_ample_throughput(ample())
    svg = render(KvsimApp(opened, ascii=ascii), size)
    is_png = os.fspath(file).lower().endswith(".png")
    save(png_of(svg) if is_png else svg, file, made_by="tui")


def _opened(shown: Shown, at_s: float | None, *, live: bool = False) -> Session | ComparedRuns | FleetServers | Guided:
    """Open `shown` at `at_s` seconds from the first event.

    `live` is True for playback, False for a still picture. If `at_s` is None, it selects the default of `run` or that
    of `screenshot`.
    """
    from kvsim.recording import Recording  # noqa: PLC0415

    from .facts.telling import begin_story, judged, story_of  # noqa: PLC0415
    from .playback.compared_runs import ComparedRuns  # noqa: PLC0415
    from .playback.session import Session  # noqa: PLC0415

    if isinstance(shown, Recording):
        session = Session(
            shown, at_s=at_s, count_later=live and len(shown.steps) + len(shown.memory) > _MAX_ROWS_COUNTED_FIRST
        )
        is_given = at_s is not None
        session.story = judged(session, story_of(session)) if is_given else begin_story(session, playing=live)
        return session
    from .playback.fleet_servers import FleetServers  # noqa: PLC0415

    if isinstance(shown, FleetServers):
        if at_s is not None:
            shown.player.go_to_time(at_s)
        return shown
    from .lessons import Guided, Lesson  # noqa: PLC0415 - they bring the simulator along

    if not isinstance(shown, Lesson):
        comparison = ComparedRuns(shown, at_s=at_s)
        # During playback the runs drift apart by themselves. A still shows them when the fastest run is half done.
        comparison.player.playing = live and at_s is None
        if not live and at_s is None:
            comparison.show_halfway()
        return comparison
    guided = Guided(shown)
    if at_s is not None:
        guided.player.go_to_time(at_s)
    return guided
