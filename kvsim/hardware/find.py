"""A GPU by the name that a person gives it, or from a file."""

from __future__ import annotations

import math
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import UnknownNameError, UsageError, shortened
from kvsim.files.contents import TOML_BYTES, content_of
from kvsim.hardware.gpu import GIB, GIGA, TERA, Gpu
from kvsim.hardware.listed import GPUS

_VENDORS = frozenset(("nvidia", "amd", "geforce", "tesla", "instinct", "gpu", "workstation", "edition"))
_FORMS = frozenset(("sxm", "sxm2", "sxm4", "sxm5", "sxm6", "hbm2", "hbm2e", "hbm3", "hbm3e"))
_TELLING = frozenset(("pcie", "pro"))
"""Words that a name must have if its card has them."""
_SEVERAL = re.compile(r"(\d{1,4})\s*[x×*]\s*(\D.*)", re.IGNORECASE)


def find_gpus(name: str) -> tuple[Gpu, int | None]:
    """The GPU of a name such as "4xH100", and how many there are; None where the name does not say.

    Raises:
        UnknownNameError: as `find_gpu`.
        UsageError: as `find_gpu`, or there are none.
    """
    several = _SEVERAL.fullmatch(name.strip())
    if several is None:
        return find_gpu(name), None
    if int(several[1]) < 1:
        raise UsageError(f"{name!r} are no GPUs; their number must be at least 1.")
    return find_gpu(several[2]), int(several[1])


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case, with or without its vendor: "H200", "NVIDIA H200", "nvidia-a100-sxm4-80gb".

    Every word that tells cards apart must be one of the listed GPU's own: "A100" alone could be two cards, and is
    refused; "H100" is the SXM card, since the slower one is only found as "H100 PCIe". A name that ends in `.toml` is a
    file that `read_gpu` reads.

    Raises:
        UnknownNameError: if no listed GPU, or more than one, goes by that name.
        UsageError: if the file cannot be read, or describes no GPU.
    """
    if name.endswith(".toml"):
        return read_gpu(Path(name).expanduser())
    words = _words(name)
    matches = [
        gpu for gpu in GPUS if _goes_by(words, _words(f"{gpu.name} {gpu.memory_gb}gb"), _words(gpu.architecture))
    ]
    if len(matches) == 1:
        return matches[0]
    raise UnknownNameError("GPU", name, [gpu.name for gpu in matches or GPUS], listed_by="kvsim size --list")


def _goes_by(words: frozenset[str], own: frozenset[str], architecture: frozenset[str]) -> bool:
    return words <= own | architecture and own & _TELLING <= words and bool(words & own)


@cache
def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return frozenset(re.sub(r"^(\d+)gi?b?$", r"\1gb", word) for word in words) - _VENDORS - _FORMS


_KEYS = {
    "memory_gib": (0.25, 16_384, "what the driver reports, in GiB"),
    "bandwidth_gb_per_s": (1, 1_000_000, "peak bandwidth of the memory, in GB/s"),
    "dense_tflops": (0.01, 1_000_000, "dense TFLOP/s in bf16"),
    "num_processors": (1, 100_000, "streaming multiprocessors, a whole number"),
    "boost_mhz": (10, 100_000, "their clock, in MHz"),
    "fp8_dense_tflops": (0.01, 1_000_000, "dense TFLOP/s in fp8, where the card has it"),
}
"""Numbers of a GPU file: the least and the most that a card could have, and what they are."""
_TEXTS = {"name": "a short name", "architecture": 'a text such as "Hopper GH100"'}
_OPTIONAL = ("fp8_dense_tflops", "architecture")


def read_gpu(file: Path) -> Gpu:
    """A GPU of one's own, from a TOML file.

    The keys are `name`, `memory_gib`, `bandwidth_gb_per_s`, `dense_tflops`, `num_processors` and `boost_mhz`, and,
    where they are known, `fp8_dense_tflops` and `architecture` (such as "Hopper GH100", which decides how latent
    attention cuts its cache into blocks).

    Raises:
        UsageError: if the file cannot be read, or a key is missing, unknown or cannot be right; all are named at once.
    """
    try:
        document = tomllib.loads(content_of(file, TOML_BYTES).decode())
    except OSError as error:
        raise UsageError(f"the GPU {file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the GPU {file} is not TOML: {error}.") from error
    if wrong := _wrong(document):
        raise UsageError(f"the GPU {file} says what cannot be used: {'; '.join(wrong)}.")
    fp8 = document.get("fp8_dense_tflops")
    return Gpu(
        name=document["name"],
        memory_gb=round(document["memory_gib"] * GIB / GIGA),
        memory_bytes=int(document["memory_gib"] * GIB),
        bandwidth_bytes_per_s=document["bandwidth_gb_per_s"] * GIGA,
        dense_flops=document["dense_tflops"] * TERA,
        fp8_dense_flops=None if fp8 is None else fp8 * TERA,
        num_processors=int(document["num_processors"]),
        boost_hz=document["boost_mhz"] * 1e6,
        architecture=document.get("architecture", ""),
        sources=(str(file),),
    )


def _wrong(document: dict[str, Any]) -> list[str]:
    """All that is wrong with the keys of a GPU file."""
    found = []
    for key, (least, most, what) in _KEYS.items():
        value = document.get(key)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not least <= number <= most or (key == "num_processors" and number % 1):
            found += _said(document, key, f"a number from {least:g} to {most:,} ({what})")
    for key, what in _TEXTS.items():
        value = document.get(key)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            found += _said(document, key, what)
    fp8, bf16 = document.get("fp8_dense_tflops"), document.get("dense_tflops")
    if not found and fp8 is not None and fp8 < bf16:
        found.append(f"fp8_dense_tflops = {fp8:g} is less than dense_tflops = {bf16:g}")
    known = {*_KEYS, *_TEXTS}
    if unknown := sorted(map(shortened, document.keys() - known)):
        found.append(f"there is no {' or '.join(unknown)} among the keys {', '.join(sorted(known))}")
    return found


def _said(document: dict[str, Any], key: str, right: str) -> list[str]:
    if key in document:
        return [f"{key} = {shortened(document[key])} must be {right}"]
    return [] if key in _OPTIONAL else [f"{key} is missing, {right}"]
