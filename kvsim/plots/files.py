"""Pictures on disk: the same bytes for the same picture, nothing half-written, and the words beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError
from kvsim.files.atomic import whole_file
from kvsim.files.overwriting import describes, description, may_replace

if TYPE_CHECKING:
    import os

    from kvsim.plots.style import Picture

_METADATA: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("Software", {}),
    ".svg": ("Creator", {"Date": None}),
    ".pdf": ("Creator", {"Producer": None, "CreationDate": None}),
}
"""Field in which a file says what describes it, by ending. No dates and no versions: a picture changes only when what
it shows does.
"""


def file_type(path: str | os.PathLike[str]) -> str:
    """The extension of a figure's file, with its dot.

    Raises:
        UsageError: it is none that a figure can be written as.
    """
    kind = Path(path).suffix.lower()
    if kind not in _METADATA:
        raise UsageError(f"{path} ends in {kind or 'nothing'}; a figure is written as {', '.join(_METADATA)}.")
    return kind


def may_save(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> None:
    """Make sure that `kvsim COMMAND` may write a figure to `path`, and its text beside it.

    Raises:
        UsageError: something is there that another command or program wrote, and `overwrite` is not allowed.
    """
    file_type(path)
    may_replace(path, command, overwrite=overwrite)
    words = _words_of(Path(path))
    if not describes(words, Path(path)):
        may_replace(words, command, overwrite=overwrite)


def save(picture: Picture, path: str | os.PathLike[str], *, titled: bool = True, made_by: str = "plot") -> Path:
    """Write `picture` as PNG, SVG or PDF, by the extension of `path`, and its text as `NAME.alt.txt` beside it.

    Without `titled`, the title and its room go to the panels: a caption says it. `made_by` is the drawing command.

    Raises:
        UsageError: the extension is none of the three, or the file cannot be written.
    """
    target, kind = Path(path), file_type(path)
    if not titled:
        picture.drop_title()
    where, others = _METADATA[kind]
    # The text takes its name last: a figure without its text is drawn again, a text without a figure is a riddle.
    text = f"{picture.alt_text}\n".encode()
    with whole_file(_words_of(target)) as words:
        words.write_bytes(text)
        with whole_file(target, made_by=made_by) as drawn:
            picture.write(drawn, kind[1:], {where: description(text)} | others)
    return target


def _words_of(target: Path) -> Path:
    return target.with_suffix(".alt.txt")
