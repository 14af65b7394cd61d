"""Data sheets of GPUs, for sizes of caches and for step times of GPUs without measurements."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import UsageError, described, shortened
from kvsim.files.values import is_number, read_toml
from kvsim.setting_fields import check_instance, is_finite, whole_number

GIB = 1 << 30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Data sheet of one type of GPU.

    FLOP/s are for dense matrices. Vendors often advertise twice as many, for sparse matrices.
    """

    name: str
    """Short name of the GPU, unique in `GPUS`."""
    memory_gb: int
    """Nominal size in GB, as printed on the box. It only names the card; sizes are computed from `memory_bytes`."""
    memory_bytes: int
    """Number of bytes of memory that the driver reports. vLLM's `gpu_memory_utilization` is a share of this total."""
    bandwidth_bytes_per_s: float
    """Peak bandwidth of the memory, in bytes per second."""
    dense_flops: float
    """Peak FLOP/s of the tensor cores in bf16, or in fp16 if the card has no bf16."""
    num_processors: int
    """Number of streaming multiprocessors, or of compute units."""
    boost_hz: float
    """Clock rate in Hz if neither power nor temperature limits it."""
    architecture: str
    """Generation and chip, such as "Hopper GH100"; empty if unknown."""
    sources: tuple[str, ...]
    """Sources of the figures, such as web addresses of data sheets."""
    streamed_share: float | None = None
    """Measured share of the peak bandwidth at which large tensors are read, 0 to 1; None if not measured."""
    fp8_dense_flops: float | None = None
    """Peak FLOP/s of the tensor cores in fp8; None if they have no fp8."""

    def __post_init__(self) -> None:
        """Check the names and the figures.

        Raises:
            UsageError: a name is no text, or a figure is no number above 0.
        """
        for name in ("name", "architecture"):
            check_instance(f"{name} of a Gpu", getattr(self, name), str, "a text")
        for name in ("memory_bytes", "num_processors"):
            whole_number(f"{name} of a Gpu", getattr(self, name))
        for name in ("bandwidth_bytes_per_s", "dense_flops", "boost_hz"):
            if not (is_finite(value := getattr(self, name)) and value > 0):
                raise UsageError(f"{name} of a Gpu should be a number above 0, not {described(value)}.")

    def __repr__(self) -> str:
        rates = f"{self.bandwidth_bytes_per_s / GIGA:,.0f} GB/s, {self.dense_flops / TERA:,.0f} TFLOP/s in bf16"
        return f"<Gpu {self.name}: {self.memory_bytes / GIB:.2f} GiB, {rates}>"


_KEYS = {
    "memory_gib": (0.25, 16_384, "what the driver reports, in GiB"),
    "bandwidth_gb_per_s": (1, 1_000_000, "peak bandwidth of the memory, in GB/s"),
    "dense_tflops": (0.01, 1_000_000, "dense TFLOP/s in bf16"),
    "num_processors": (1, 100_000, "streaming multiprocessors, a whole number"),
    "boost_mhz": (10, 100_000, "their clock, in MHz"),
    "fp8_dense_tflops": (0.01, 1_000_000, "dense TFLOP/s in fp8, where the card has it"),
}
"""Keys of a GPU file with a number: smallest valid value, largest valid value, meaning."""
_TEXTS = {"name": "a short name", "architecture": 'a text such as "Hopper GH100"'}
"""Keys of a GPU file with a text, and their meanings."""
_OPTIONAL = ("fp8_dense_tflops", "architecture")


def read_gpu(file: Path) -> Gpu:
    """Read a GPU from a TOML file.

    The required keys are `name`, `memory_gib`, `bandwidth_gb_per_s`, `dense_tflops`, `num_processors` and `boost_mhz`.
    The optional keys are `fp8_dense_tflops` and `architecture`. The architecture, such as "Hopper GH100", decides how
    many tokens a block has in MLA layers.

    Raises:
        UsageError: the file cannot be read, or a key is missing, unknown or out of range. All errors are listed.
    """
    document = read_toml(file, "the GPU")
    if wrong := _wrong(document):
        raise UsageError(f"the GPU file {file} has errors: {'; '.join(wrong)}.")
    return _gpu(document, (str(file),))


def _gpu(fields: dict[str, Any], sources: tuple[str, ...]) -> Gpu:
    memory_bytes = fields.get("memory_bytes") or int(fields["memory_gib"] * GIB)
    fp8 = fields.get("fp8_dense_tflops")
    return Gpu(
        name=fields["name"],
        memory_gb=fields.get("memory_gb", round(memory_bytes / GIGA)),
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=fields["bandwidth_gb_per_s"] * GIGA,
        dense_flops=fields["dense_tflops"] * TERA,
        fp8_dense_flops=None if fp8 is None else fp8 * TERA,
        num_processors=int(fields["num_processors"]),
        boost_hz=fields["boost_mhz"] * 1e6,
        architecture=fields.get("architecture", ""),
        streamed_share=fields.get("streamed_share"),
        sources=sources,
    )


def _wrong(document: dict[str, Any]) -> list[str]:
    found = []
    for key, (lowest, highest, meaning) in _KEYS.items():
        value = document.get(key)
        if not is_number(value, lowest, highest) or (key == "num_processors" and value % 1):
            found += _problem(document, key, f"a number from {lowest:g} to {highest:,} ({meaning})")
    for key, meaning in _TEXTS.items():
        value = document.get(key)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            found += _problem(document, key, meaning)
    fp8, bf16 = document.get("fp8_dense_tflops"), document.get("dense_tflops")
    if not found and fp8 is not None and fp8 < bf16:
        found.append(f"fp8_dense_tflops = {fp8:g} is less than dense_tflops = {bf16:g}")
    known = {*_KEYS, *_TEXTS}
    if unknown := sorted(map(shortened, document.keys() - known)):
        found.append(f"there is no {' or '.join(unknown)} among the keys {', '.join(sorted(known))}")
    return found


def _problem(document: dict[str, Any], key: str, expected: str) -> list[str]:
    """Describe the error in `key`; an empty list if `key` is missing and optional."""
    if key in document:
        return [f"{key} = {shortened(document[key])} must be {expected}"]
    return [] if key in _OPTIONAL else [f"{key} is missing, {expected}"]


def gpu_template() -> str:
    """Return the text of an example GPU file. It has every key with its meaning, and the values of a listed GPU."""
    example = next(gpu for gpu in GPUS if gpu.fp8_dense_flops and gpu.architecture)
    values: dict[str, Any] = {
        "name": example.name,
        "memory_gib": round(example.memory_bytes / GIB, 2),
        "bandwidth_gb_per_s": example.bandwidth_bytes_per_s / GIGA,
        "dense_tflops": example.dense_flops / TERA,
        "num_processors": example.num_processors,
        "boost_mhz": example.boost_hz / 1e6,
        "fp8_dense_tflops": (example.fp8_dense_flops or 0) / TERA,
        "architecture": example.architecture,
    }
    meanings = _TEXTS | {key: meaning for key, (_, _, meaning) in _KEYS.items()}
    lines = [f"# A GPU for --gpu FILE.toml. The figures are those of the {example.name}: replace them."]
    for key, value in values.items():
        written = f'"{value}"' if isinstance(value, str) else f"{value:g}"
        lines.append(f"{key} = {written}  # {meanings[key]}{' (may be left out)' if key in _OPTIONAL else ''}")
    return "\n".join(lines)


GPUS = tuple(
    _gpu(fields, tuple(fields["sources"]))
    for fields in tomllib.loads(Path(__file__).with_name("listed.toml").read_text(encoding="utf-8"))["gpu"]
)
"""GPUs that `--gpu` finds by name."""
