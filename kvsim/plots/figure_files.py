"""Writing figures to files: deterministic bytes, atomic writes, and a text description beside each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.files.atomic import whole_file
from kvsim.files.overwriting import check_ending, describes, description, may_replace, may_write

if TYPE_CHECKING:
    import os

    from kvsim.plots.picture import Picture

_METADATA: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("Software", {}),
    ".svg": ("Creator", {"Date": None}),
    ".pdf": ("Creator", {"Producer": None, "CreationDate": None}),
}
"""Name of the metadata field for the description, and values of other fields, by file extension. Dates and versions are
left out, so that equal pictures are equal files.
"""


def file_type(path: str | os.PathLike[str]) -> str:
    """Return the lower-case extension of a figure's file, with its dot."""
    check_ending(path, "a figure", *_METADATA)
    return Path(path).suffix.lower()


def may_save(path: str | os.PathLike[str], command: str, *, overwrite: bool) -> None:
    """Check that `kvsim COMMAND` may write a figure to `path`, and the text that describes the figure beside it.

    Raises:
        UsageError: a file of another command or program exists, and `overwrite` is False; or there is no such folder.
    """
    file_type(path)
    may_write(path, command, overwrite=overwrite)
    target = Path(path)
    words = _words_of(target)
    # The same figure as PNG, SVG and PDF has one text.
    if not any(describes(words, figure) for figure in (target, *map(target.with_suffix, _METADATA))):
        may_replace(words, command, overwrite=overwrite)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Choices for the file of a figure that do not change its data."""

    title: str | None = None
    """Title of the figure; empty for no title, None for the sentence that states the result."""
    source: bool = True
    """True to keep the last line, which names the source of the data."""
    dpi: int | None = None
    """Pixels per inch in PNG; None for the default of the purpose."""
    transparent: bool = False
    svg_text: bool = False
    """True to keep text in SVG as text, which looks the same only if its font is installed."""


def save(
    picture: Picture, path: str | os.PathLike[str], *, options: FileOptions | None = None, made_by: str = "plot"
) -> Path:
    """Write `picture` as PNG, SVG or PDF, by the extension of `path`, and its description as `NAME.alt.txt` beside it.

    `made_by` is the command that draws the picture.

    Raises:
        UsageError: the extension is another one, or the file cannot be written.
    """
    target, kind = Path(path), file_type(path)
    options = options or FileOptions()
    if options.title is not None:
        picture.set_title(options.title)
    if not options.source:
        picture.drop_source()
    if options.dpi is not None:
        picture.set_dpi(options.dpi)
    where, others = _METADATA[kind]
    # The text is renamed last, so that a text never exists without its figure.
    text = f"{picture.alt_text}\n".encode()
    with whole_file(_words_of(target)) as words:
        words.write_bytes(text)
        with whole_file(target, made_by=made_by) as drawn:
            picture.write(
                drawn,
                kind[1:],
                {where: description(text)} | others,
                transparent=options.transparent,
                svg_text=options.svg_text,
            )
    return target


def _words_of(target: Path) -> Path:
    return target.with_suffix(".alt.txt")
