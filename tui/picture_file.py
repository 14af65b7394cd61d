"""A screen as an SVG file."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import KvsimApp


def render(app: KvsimApp, size: tuple[int, int]) -> str:
    """Run `app` without a terminal until it has drawn itself; return the SVG."""

    async def draw() -> str:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            return svg_of(app)

    return asyncio.run(draw())


def svg_of(app: KvsimApp) -> str:
    """What `app` shows now, as SVG."""
    return app.export_screenshot(simplify=True)


def write_atomically(text: str, file: str | os.PathLike[str]) -> Path:
    """Write `text` beside `file` and rename it into place; return where it is."""
    target = Path(file)
    handle, scratch = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        Path(scratch).chmod(0o644)  # mkstemp makes it private; a picture is for sharing
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    return target
