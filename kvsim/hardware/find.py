"""GPUs by name, or from a file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kvsim.errors import UnknownNameError, UsageError
from kvsim.hardware.gpu import GPUS, Gpu, read_gpu
from kvsim.setting_fields import check_instance

_NAMES = "a name such as 'H200', or the path of a .toml file"
_VENDORS = frozenset(("nvidia", "amd", "geforce", "tesla", "instinct", "gpu", "workstation", "edition"))
_FORMS = frozenset(("sxm", "sxm2", "sxm4", "sxm5", "sxm6", "hbm2", "hbm2e", "hbm3", "hbm3e"))
_REQUIRED = frozenset(("pcie", "pro", "nvl"))
"""Words of a GPU's name that must not be left out: "H100" does not mean the card that is listed as "H100 PCIe"."""
_SEVERAL = re.compile(r"(\d{1,4})\s*[x×*]\s*(\D.*)", re.IGNORECASE)


def find_gpus(name: str) -> tuple[Gpu, int | None]:
    """Parse a name such as "4xH100". Return the GPU and the number of GPUs; None if the name states no number.

    Raises:
        UnknownNameError: the name matches no listed GPU, or more than one.
        UsageError: the number is 0, the file cannot be read, or it describes no GPU.
    """
    check_instance("a GPU", name, str, _NAMES)
    several = _SEVERAL.fullmatch(name.strip())
    if several is None:
        return find_gpu(name), None
    if int(several[1]) < 1:
        raise UsageError(f"{name!r} are no GPUs; their number must be at least 1.")
    return find_gpu(several[2]), int(several[1])


def find_gpu(name: str) -> Gpu:
    """Return the listed GPU called `name`, such as "H200" or "nvidia-a100-sxm4-80gb", or the GPU in a file.

    Upper and lower case are the same, and the vendor may be left out. Every word of `name` must occur in the listed
    name. "A100" could be two cards and is refused. "H100" is the SXM card; the other cards are only found as "H100
    PCIe" and "H100 NVL". A `name` that ends in `.toml` is the path of a file for `read_gpu`.

    Raises:
        UnknownNameError: the name matches no listed GPU, or more than one.
        UsageError: the file cannot be read, or describes no GPU.
    """
    check_instance("a GPU", name, str, _NAMES)
    if name.endswith(".toml"):
        return read_gpu(Path(name).expanduser())
    words = _words(name)
    matches = [
        gpu for gpu in GPUS if _matches(words, _words(f"{gpu.name} {gpu.memory_gb}gb"), _words(gpu.architecture))
    ]
    matches = matches or [gpu for gpu in GPUS if _joined(gpu.name) == _joined(name)]
    if len(matches) == 1:
        return matches[0]
    raise UnknownNameError("GPU", name, [gpu.name for gpu in matches or GPUS], listed_by="kvsim size --list")


def _joined(name: str) -> str:
    """Return the letters and digits of a name without its vendor, so that "RTX 4090" and "rtx4090" are equal."""
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in _VENDORS)


def _matches(words: frozenset[str], of_gpu: frozenset[str], of_architecture: frozenset[str]) -> bool:
    """Tell whether `words` name the listed GPU with the words `of_gpu` and `of_architecture` for its architecture."""
    return words <= of_gpu | of_architecture and of_gpu & _REQUIRED <= words and bool(words & of_gpu)


@cache
def _words(name: str) -> frozenset[str]:
    """Return the words of a GPU's name, without vendors and board types such as "SXM". Memory sizes become "80gb"."""
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return frozenset(re.sub(r"^(\d+)gi?b?$", r"\1gb", word) for word in words) - _VENDORS - _FORMS
