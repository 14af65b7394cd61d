"""Files that a person saves: the screen as a picture, its numbers as a table."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kvsim.errors import UsageError

from .export.picture_file import NO_CONVERTER, drawn, png_of, save_new, svg_of
from .export.table import as_csv

if TYPE_CHECKING:
    from .screens.host import Host
    from .screens.playback import PlaybackScreen


def render(app: Host, size: tuple[int, int]) -> str:
    """Run `app` without a terminal until it has drawn itself; return the SVG."""

    async def draw() -> str:
        async with app.run_test(size=size) as pilot:
            await drawn(pilot)
            return svg_of(app.screen, app.symbols)

    return asyncio.run(draw())


def save_picture(app: Host, playback: PlaybackScreen) -> None:
    """Save what is on the screen as SVG in the current folder."""
    _save(app, playback, svg_of(app.screen, app.symbols), "svg")


def save_png(app: Host, playback: PlaybackScreen) -> None:
    """Save it as PNG; as SVG, with advice, where there is no converter."""
    svg = svg_of(app.screen, app.symbols)

    def keep(png: bytes | None) -> None:
        if png is not None:
            _save(app, playback, png, "png")
        else:
            _save(app, playback, svg, "svg", f" {NO_CONVERTER}")

    app.aside(lambda: png_of(svg), keep, "Converting the picture")


def save_numbers(app: Host, playback: PlaybackScreen) -> None:
    """Save the numbers on the screen as CSV."""
    _save(app, playback, as_csv(playback.sessions()), "csv")


def _save(app: Host, playback: PlaybackScreen, content: str | bytes, ending: str, remark: str = "") -> None:
    try:
        target = save_new(content, playback.file_name(), ending)
    except UsageError as error:
        app.notify(str(error), severity="error", markup=False)
    else:
        app.notify(f"Saved {target}.{remark}", timeout=10 if remark else 5, markup=False)
