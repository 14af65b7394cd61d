"""The terminal interface: a player over one recording, whoever made it.

It consumes a `Recording` and nothing else. Textual is imported when a function is called, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from kvsim.recording import Recording

__all__ = ["run", "screenshot"]


def run(recording: Recording, *, at_s: float | None = None, ascii: bool = False) -> None:  # noqa: A002 - the flag's name
    """Show `recording` in this terminal until the person quits.

    Args:
        recording: what to show, simulated or captured.
        at_s: seconds from the first event at which to begin; the beginning if None.
        ascii: draw with plain ASCII. Without it, the `NO_COLOR` variable alone selects glyphs instead of colours.

    Raises:
        RecordingError: the recording has no steps.
    """
    from .app import KvsimApp  # noqa: PLC0415 - textual costs a third of a second
    from .session import Session  # noqa: PLC0415

    KvsimApp(Session(recording, at_s=at_s), ascii=ascii).run()


def screenshot(
    recording: Recording,
    file: str | os.PathLike[str],
    *,
    at_s: float | None = None,
    size: tuple[int, int] = (120, 40),
    ascii: bool = False,  # noqa: A002 - the flag's name
) -> None:
    """Write what a terminal of `size` (columns, lines) would show to `file`, as SVG.

    The same recording, moment and size give the same bytes. The file is written beside its name and renamed into place.

    Raises:
        RecordingError: the recording has no steps.
        OSError: the file cannot be written.
    """
    from .app import KvsimApp  # noqa: PLC0415
    from .picture_file import render, write_atomically  # noqa: PLC0415
    from .session import Session  # noqa: PLC0415

    app = KvsimApp(Session(recording, at_s=at_s), ascii=ascii)
    write_atomically(render(app, size), file)
