"""Find the recordings that come with kvsim, in the installed package or beside it in a checkout."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kvsim.errors import UnknownNameError

_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "traces", _PACKAGE.parent / "traces")


def shipped_names() -> list[str]:
    """Return the names of the recordings that come with kvsim."""
    return sorted({folder.parent.name for place in _PLACES for folder in place.glob("*/meta.json")})


def is_shipped(folder: Path) -> bool:
    """Tell whether the recording in `folder` comes with kvsim, whose tests have checked it."""
    return folder.resolve().parent in _PLACES


def find(name: str) -> Path:
    """Return the folder of a recording. `name` is its path, or the name of a recording that comes with kvsim.

    Raises:
        UnknownNameError: there is no such path or name.
    """
    path = Path(name)
    with suppress(OSError):  # a name too long for a file is only an unknown name
        if path.exists():
            return path
    # "traces/NAME" names a shipped recording from any directory, as it does in a checkout.
    shipped_name = path.name if path.parent in (Path(), Path("traces")) else name
    if shipped_name not in shipped_names():
        raise UnknownNameError("recording", name, shipped_names(), listed_by="kvsim info")
    return next(place / shipped_name for place in _PLACES if (place / shipped_name / "meta.json").is_file())
