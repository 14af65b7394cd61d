"""What a person takes away: the screen as a picture, its numbers as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import UsageError

from .numbers import as_csv
from .picture_file import NO_CONVERTER, png_of, save, svg_of

if TYPE_CHECKING:
    from .app import KvsimApp


def save_picture(app: KvsimApp) -> None:
    """Save what is on the screen as SVG in the current folder."""
    _save(app, svg_of(app), "svg")


def save_png(app: KvsimApp) -> None:
    """Save it as PNG; as SVG, with advice, where there is no converter."""
    svg = svg_of(app)

    def keep(png: bytes | None) -> None:
        if png is not None:
            _save(app, png, "png")
        else:
            _save(app, svg, "svg", f" {NO_CONVERTER}")

    app.aside(lambda: png_of(svg), keep, "Converting the picture")


def save_numbers(app: KvsimApp) -> None:
    """Save the numbers on the screen as CSV."""
    _save(app, as_csv(app.stage.sessions()), "csv")


def _save(app: KvsimApp, content: str | bytes, ending: str, remark: str = "") -> None:
    try:
        target = save(content, f"{app.stage.file_name()}.{ending}")
    except UsageError as error:
        app.notify(str(error), severity="error", markup=False)
    else:
        app.notify(f"Saved {target}.{remark}", timeout=10 if remark else 5, markup=False)
