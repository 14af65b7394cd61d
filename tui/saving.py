"""Files that the user saves from a screen: a picture, or a table of its numbers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kvsim.errors import UsageError

from .export.picture_file import png_of, save_new, svg_of, wait_until_drawn

if TYPE_CHECKING:
    from .screens.app_interface import AppInterface
    from .screens.playback import PlaybackScreen


def render(app: AppInterface, size: tuple[int, int]) -> str:
    """Run `app` without a terminal until it has drawn its screen; return the screen as SVG."""

    async def draw() -> str:
        async with app.run_test(size=size) as pilot:
            await wait_until_drawn(pilot)
            return svg_of(app.screen, app.symbols)

    return asyncio.run(draw())


def save(app: AppInterface, playback: PlaybackScreen, kind: str) -> None:
    """Save the screen ("svg", "png") or its numbers ("csv") in a new file in the current folder.

    Without a converter for PNG that works, save an SVG file and show a notification.
    """
    if kind == "csv":
        _save(app, playback, playback.csv_text(), kind)
        return
    svg = svg_of(app.screen, app.symbols)
    if kind == "svg":
        _save(app, playback, svg, kind)
        return

    def convert() -> bytes | UsageError:
        try:
            return png_of(svg)
        except UsageError as error:
            return error

    def keep(converted: bytes | UsageError) -> None:
        if isinstance(converted, UsageError):
            _save(app, playback, svg, "svg", f" {converted}")
        else:
            _save(app, playback, converted, kind)

    app.run_in_thread(convert, keep, "Converting the picture")


def _save(app: AppInterface, playback: PlaybackScreen, content: str | bytes, ending: str, remark: str = "") -> None:
    try:
        target = save_new(content, playback.file_name(), ending)
    except UsageError as error:
        app.notify(str(error), severity="error", markup=False)
    else:
        app.notify(f"Saved {target}.{remark}", timeout=10 if remark else 5, markup=False)
