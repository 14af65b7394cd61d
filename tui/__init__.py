"""The terminal interface: a player over recordings, whoever made them.

It consumes `Recording`s and nothing else. Textual is imported when a function is called, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from kvsim.recording import Recording

    from .comparison import Comparison
    from .feed import Feed
    from .lessons import Guided, Lesson
    from .session import Session

__all__ = ["attach", "run", "screenshot"]


def run(
    shown: Recording | Sequence[Recording] | Lesson,
    *,
    at_s: float | None = None,
    ascii: bool = False,  # noqa: A002 - the flag's name
    runs: Callable[[], Sequence[Recording]] | None = None,
) -> None:
    """Show `shown` in this terminal until the person quits.

    Args:
        shown: a recording, simulated or captured; several, to be compared on one clock; or a lesson.
        at_s: seconds from the first event at which to begin; the beginning if None.
        ascii: draw with plain ASCII. Without it, the `NO_COLOR` variable alone selects glyphs instead of colours.
        runs: what serves the requests of `shown` under every policy, for when somebody wants to compare.

    Raises:
        RecordingError: a recording has no steps.
        LessonError: the lesson cannot be played.
    """
    from .app import KvsimApp  # noqa: PLC0415 - textual costs a third of a second

    KvsimApp(_opened(shown, at_s), ascii=ascii, runs=runs).run()


def attach(feed: Feed, *, ascii: bool = False) -> Recording:  # noqa: A002 - the flag's name
    """Watch a recording that is still growing, until the person quits; return what was seen of it.

    Raises:
        RecordingError: the feed ended before its first step.
    """
    from .app import KvsimApp  # noqa: PLC0415
    from .feed import first_recording  # noqa: PLC0415
    from .session import Session  # noqa: PLC0415

    recording = first_recording(feed)
    KvsimApp(Session(recording), ascii=ascii, feed=feed).run()
    return feed.recording() or recording


def screenshot(
    shown: Recording | Sequence[Recording] | Lesson,
    file: str | os.PathLike[str],
    *,
    at_s: float | None = None,
    size: tuple[int, int] = (120, 40),
    ascii: bool = False,  # noqa: A002 - the flag's name
) -> None:
    """Write what a terminal of `size` (columns, lines) would show to `file`, as SVG.

    The same recording, moment and size give the same bytes. The file is written beside its name and renamed into place.

    Raises:
        RecordingError: a recording has no steps.
        LessonError: the lesson cannot be played.
        OSError: the file cannot be written.
    """
    from .app import KvsimApp  # noqa: PLC0415
    from .picture_file import render, write_atomically  # noqa: PLC0415

    write_atomically(render(KvsimApp(_opened(shown, at_s), ascii=ascii), size), file)


def _opened(shown: Recording | Sequence[Recording] | Lesson, at_s: float | None) -> Session | Comparison | Guided:
    from kvsim.recording import Recording  # noqa: PLC0415

    from .comparison import Comparison  # noqa: PLC0415
    from .lessons import Guided, Lesson  # noqa: PLC0415
    from .session import Session  # noqa: PLC0415

    if isinstance(shown, Recording):
        return Session(shown, at_s=at_s)
    if not isinstance(shown, Lesson):
        return Comparison(shown, at_s=at_s)
    guided = Guided(shown)
    if at_s is not None:
        guided.player.go_to_time(at_s)
    return guided
