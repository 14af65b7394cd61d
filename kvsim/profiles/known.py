"""Find a profile by name, or the profile that comes with kvsim for a GPU, model and engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kvsim.errors import UnknownNameError
from kvsim.hardware import Gpu
from kvsim.models import Model
from kvsim.profiles.file import load
from kvsim.profiles.profile import Profile, keeps_types, listed_name

_FOLDER = Path(__file__).parent / "calibrated"


def shipped() -> tuple[Profile, ...]:
    """Return the profiles that come with kvsim."""
    return tuple(_shipped(file) for file in sorted(_FOLDER.glob("*.toml")))


@cache
def _shipped(file: Path) -> Profile:
    """Return the profile in `file`, and keep it in memory, because a sweep needs it for every run."""
    return load(file)


def find(name: str) -> Profile:
    """Return a profile by its path, or by the name of one that comes with kvsim.

    Raises:
        UnknownNameError: there is no such file, and no such profile.
    """
    if Path(name).is_file():
        return load(name)
    file = _FOLDER / f"{name}.toml"
    if not file.is_file():
        raise UnknownNameError("profile", name, [known.stem for known in _FOLDER.glob("*.toml")])
    return _shipped(file)


def is_shipped(name: str) -> bool:
    """Tell whether `name` is that of a profile that comes with kvsim, and no file has this name."""
    return not Path(name).is_file() and (_FOLDER / f"{name}.toml").is_file()


def match(gpu: Gpu, model: Model, engine: str, *, tensor_parallel_size: int = 1) -> Profile | None:
    """Return the profile for exactly this GPU, model shape, engine and tensor-parallel size; None if kvsim has none.

    It is also None if weights are quantized or the cache has another type than the model, because no profile of kvsim
    was fitted to such recordings.
    """
    if not keeps_types(model):
        return None
    wanted = (gpu.name, listed_name(model), engine, tensor_parallel_size)
    return next(
        (item for item in shipped() if (item.gpu, item.model, item.engine, item.tensor_parallel_size) == wanted), None
    )
