"""Pictures on disk: the same bytes for the same picture, nothing half-written, and the words beside it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError
from kvsim.plots.style import style

if TYPE_CHECKING:
    import os

    from kvsim.plots.style import Picture

_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Creator": "kvsim", "Date": None},
    ".pdf": {"Creator": "kvsim", "Producer": None, "CreationDate": None},
}
"""No dates and no versions: a picture changes only when what it shows does."""


def file_type(path: str | os.PathLike[str]) -> str:
    """The extension of a figure's file, with its dot.

    Raises:
        UsageError: it is none that a figure can be written as.
    """
    kind = Path(path).suffix.lower()
    if kind not in _METADATA:
        raise UsageError(f"{path} ends in {kind or 'nothing'}; a figure is written as {', '.join(_METADATA)}.")
    return kind


def save(picture: Picture, path: str | os.PathLike[str], *, titled: bool = True) -> Path:
    """Write `picture` as PNG, SVG or PDF, by the extension of `path`, and its text as `NAME.alt.txt` beside it.

    Without `titled`, the title and its room go to the panels: a caption says it.

    Raises:
        UsageError: the extension is none of the three, or the file cannot be written.
    """
    target, kind = Path(path), file_type(path)
    if not titled:
        picture.drop_title()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            drawn, words = Path(scratch, target.name), Path(scratch, "alt.txt")
            with style(picture.purpose):  # ticks and hashes are made while drawing
                picture.settle()
                picture.savefig(drawn, format=kind[1:], metadata=_METADATA[kind])
            words.write_text(picture.alt_text + "\n", encoding="utf-8")
            words.replace(target.with_suffix(".alt.txt"))
            drawn.replace(target)
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}; choose a folder that exists and may be written."
        ) from error
    return target
