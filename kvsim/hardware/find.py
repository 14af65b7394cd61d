"""A GPU by the name that a person gives it, or from a file."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import UnknownNameError, UsageError
from kvsim.files.contents import TOML_BYTES, content_of
from kvsim.hardware.gpu import GIB, GIGA, TERA, Gpu
from kvsim.hardware.listed import GPUS

_VENDORS = frozenset(("nvidia", "amd", "geforce", "tesla", "instinct", "gpu"))
_FORMS = frozenset(("sxm", "sxm2", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"))


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, in any case, with or without its vendor: "H200", "NVIDIA H200", "nvidia-a100-sxm4-80gb".

    Every word that tells cards apart must be one of the listed GPU's own: "A100" alone could be two cards, and
    "H100 PCIe" is slower than the H100 listed, so both are refused. A name that ends in `.toml` is a file that
    `read_gpu` reads.

    Raises:
        UnknownNameError: if no listed GPU, or more than one, goes by that name.
        UsageError: if the file cannot be read, or describes no GPU.
    """
    if name.endswith(".toml"):
        return read_gpu(Path(name).expanduser())
    words = _words(name)
    matches = [gpu for gpu in GPUS if words <= _words(f"{gpu.name} {gpu.memory_gb}gb")]
    if len(matches) == 1:
        return matches[0]
    raise UnknownNameError("GPU", name, [gpu.name for gpu in matches or GPUS], listed_by="kvsim size --list")


@cache
def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return frozenset(re.sub(r"^(\d+)gi?b?$", r"\1gb", word) for word in words) - _VENDORS - _FORMS


_KEYS = {
    "memory_gib": "what the driver reports, in GiB",
    "bandwidth_gb_per_s": "peak bandwidth of the memory, in GB/s",
    "dense_tflops": "dense TFLOP/s in bf16",
    "num_processors": "streaming multiprocessors",
    "boost_mhz": "their clock, in MHz",
}


def read_gpu(file: Path) -> Gpu:
    """A GPU of one's own, from a TOML file.

    The keys are `name`, `memory_gib`, `bandwidth_gb_per_s`, `dense_tflops`, `num_processors` and `boost_mhz`, and,
    where they are known, `fp8_dense_tflops` and `architecture` (such as "Hopper GH100", which decides how latent
    attention cuts its cache into blocks).

    Raises:
        UsageError: if the file cannot be read, or a key is missing or cannot be right; the message says which.
    """
    try:
        document = tomllib.loads(content_of(file, TOML_BYTES).decode())
    except OSError as error:
        raise UsageError(f"the GPU {file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the GPU {file} is not TOML: {error}.") from error
    figures = {key: _figure(document, key, what, file) for key, what in _KEYS.items()}
    fp8 = _figure(document, "fp8_dense_tflops", "in fp8", file) if "fp8_dense_tflops" in document else None
    for key, default in (("name", None), ("architecture", "")):
        if not isinstance(document.get(key, default), str):
            raise UsageError(f"the GPU {file} says {key} = {document.get(key)!r}; it must be a text.")
    return Gpu(
        name=document["name"],
        memory_gb=round(figures["memory_gib"] * GIB / GIGA),
        memory_bytes=int(figures["memory_gib"] * GIB),
        bandwidth_bytes_per_s=figures["bandwidth_gb_per_s"] * GIGA,
        dense_flops=figures["dense_tflops"] * TERA,
        fp8_dense_flops=None if fp8 is None else fp8 * TERA,
        num_processors=max(1, round(figures["num_processors"])),
        boost_hz=figures["boost_mhz"] * 1e6,
        architecture=document.get("architecture", ""),
        sources=(str(file),),
    )


def _figure(document: dict[str, Any], key: str, what: str, file: Path) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        said = f"says {key} = {value!r}" if key in document else f"does not say {key}"
        raise UsageError(f"the GPU {file} {said}; it must be a positive number: {what}.")
    return float(value)
