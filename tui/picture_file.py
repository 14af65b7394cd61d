"""A screen as a file: SVG, or PNG where there is a converter."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
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


def png_of(svg: str) -> bytes | None:
    """`svg` as PNG, where this machine has a converter; None where it has none, or it fails."""
    converter = shutil.which("rsvg-convert")
    if converter is None:
        return None
    done = subprocess.run([converter, "--zoom", "2"], input=svg.encode(), capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def write_atomically(content: str | bytes, file: str | os.PathLike[str]) -> Path:
    """Write `content` beside `file` and rename it into place; return where it is."""
    target = Path(file)
    handle, scratch = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode())
        Path(scratch).chmod(0o644)  # mkstemp makes it private; a picture is for sharing
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
    return target
