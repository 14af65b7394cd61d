"""Writes a screen to a file: SVG, or PNG if a converter is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvsim.errors import UsageError, reason_of, shortened
from kvsim.files.atomic import whole_file

from .svg import svg_of_lines

if TYPE_CHECKING:
    from textual.pilot import Pilot
    from textual.screen import Screen

    from ..look.states import Symbols

_NO_CONVERTER: Final = (
    "PNG needs rsvg-convert: install librsvg2-bin (Debian, Ubuntu), librsvg2-tools (Fedora) or librsvg (Homebrew)."
)
_MAX_PAUSES: Final = 100
_CONVERSION_S: Final = 60.0
"""Longest time in seconds for a conversion, which takes about a second."""


async def wait_until_drawn(pilot: Pilot[None]) -> None:
    """Wait until the screen is drawn, but no longer than `_MAX_PAUSES` turns of the event loop."""
    for _ in range(_MAX_PAUSES):
        await pilot.pause()
        # The key line is drawn last.
        if not pilot.app.screen.query("KeyLine").exclude(".-told"):
            break
    await pilot.pause()


def svg_of(screen: Screen[Any], symbols: Symbols) -> str:
    """Return `screen` as SVG, with the background colour of `symbols`."""
    # Textual has no public method that returns the lines of a screen.
    return svg_of_lines(screen._compositor.render_strips(), symbols.palette.void)


def png_of(svg: str) -> bytes:
    """Return `svg` as PNG.

    Raises:
        UsageError: no converter is installed, or the converter fails or does not end.
    """
    converter = shutil.which("rsvg-convert")
    if converter is None:
        raise UsageError(_NO_CONVERTER)
    try:
        done = subprocess.run(
            [converter, "--zoom", "2"], input=svg.encode(), capture_output=True, check=True, timeout=_CONVERSION_S
        )
    except OSError as error:
        raise UsageError(f"{converter} cannot be run: {reason_of(error)}; an SVG needs no converter.") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{converter} did not end within {_CONVERSION_S:g} seconds; an SVG needs no converter."
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = f": {shortened(said[-1], 200)}" if said else ""
        raise UsageError(
            f"{converter} failed with exit status {error.returncode}{reason}; an SVG needs no converter."
        ) from error
    return done.stdout


def save(content: str | bytes, file: str | os.PathLike[str], *, made_by: str = "") -> Path:
    """Write `content` to `file`, whole or not at all; return the path.

    An existing file is replaced. `made_by` is the kvsim command with which the file is marked, so that later commands
    recognize it as kvsim's; empty for no mark.

    Raises:
        UsageError: the file cannot be written.
    """
    with whole_file(file, made_by=made_by) as scratch:
        scratch.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Path(file)


def save_new(content: str | bytes, stem: str, ending: str) -> Path:
    """Write `content` to a new file in the current folder; return the path.

    The file is STEM.ENDING, or STEM-2.ENDING and so on if that exists already.
    """
    file, number = Path(f"{stem}.{ending}"), 1
    while os.path.lexists(file):
        number += 1
        file = Path(f"{stem}-{number}.{ending}")
    return save(content, file)
