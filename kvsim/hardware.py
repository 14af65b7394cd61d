"""GPU facts: memory, bandwidth and arithmetic of the cards that kvsim knows by name.

Two figures for a card's memory are in use, and mixing them up moves a KV cache by gigabytes: `memory_gb` is printed on
the box; `memory_bytes` is what the driver hands to a program, less ECC and firmware, and what vLLM measures. The latter
comes from the totals that PyTorch prints when it runs out of memory, good to 0.01 GiB; it moves a little with the
driver.

This module knows nothing of models, nor of how fast anything runs on a card.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.contents import TEXT_BYTES, content_of
from kvsim.errors import UnknownNameError, UsageError

GIB = 1 << 30
_TERA = 1e12
_GIGA = 1e9

_AICONFIGURATOR = "github.com/ai-dynamo/aiconfigurator @ 095f58a51c4c : aic-core/src/aiconfigurator_core/systems/"
_NANOCHAT = "github.com/karpathy/nanochat @ 92d63d4e8bb4 : nanochat/common.py (get_peak_flops, get_peak_bandwidth)"
_LLM_VIEWER = "github.com/hahnyuan/LLM-Viewer @ 472f71f1a180 : hardwares/hardware_params.py"
_LLMBOOK = "http://llmbook.apartsin.com/appendices/appendix-g-hardware-compute/section-g.1.html"
_HMC = "https://hmc-tech.com/gpu"
_A4000_T4 = "https://sysrqmts.com/ko/gpus/compare/nvidia-rtx-a4000-vs-nvidia-tesla-t4"
_DEVICE_TOTAL = "memory: device total in public PyTorch out-of-memory messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU. FLOP/s are dense: marketing often doubles them for 2:1 sparsity."""

    name: str
    """A short name, unique in `GPUS`."""
    memory_gb: int
    """The size on the box, a label rather than a measure."""
    memory_bytes: int
    """What the driver reports as the device's total, and so what `gpu_memory_utilization` is a share of."""
    bandwidth_bytes_per_s: float
    """Peak bandwidth of the device's memory."""
    dense_flops: float
    """Peak FLOP/s of the tensor cores in bf16 (fp16 where the card has no bf16)."""
    num_processors: int
    """Streaming multiprocessors, or compute units."""
    boost_hz: float
    """Clock that they reach when neither power nor heat holds them back."""
    architecture: str
    sources: tuple[str, ...]
    """Where the figures were seen."""
    fp8_dense_flops: float | None = None
    """Peak FLOP/s in fp8, or None where the tensor cores have no fp8."""
    from_memory: tuple[str, ...] = ()
    """Figures, and doubts about them, that no source was seen for."""


GPUS: tuple[Gpu, ...] = (
    Gpu(
        name="RTX A4000",
        memory_gb=16,
        memory_bytes=int(15.61 * GIB),
        bandwidth_bytes_per_s=448 * _GIGA,
        dense_flops=76.7 * _TERA,
        num_processors=48,
        boost_hz=1560e6,
        architecture="Ampere GA104",
        sources=(
            "https://www.ecer.com (a reseller's copy of the datasheet: 16 GB, 448 GB/s, tensor 153.4 TFLOPS)",
            "https://cpu-gpu.alldbin.com/graphics-card-comparison/RTX-A40-and-RTX-A4000-comparison.html (448.0 GB/s)",
            f"{_A4000_T4} (48 SMs, 1560 MHz)",
            "https://github.com/DengKaiCQ/VGGT-Long/issues/6 (memory: device total 15.61 GiB)",
        ),
        from_memory=("the 153.4 TFLOPS are with 2:1 sparsity, so dense is 76.7", "ECC is on by default"),
    ),
    Gpu(
        name="T4",
        memory_gb=16,
        memory_bytes=int(14.56 * GIB),
        bandwidth_bytes_per_s=320 * _GIGA,
        dense_flops=65.13 * _TERA,
        num_processors=40,
        boost_hz=1590e6,
        architecture="Turing TU104",
        sources=(
            f"{_A4000_T4} (320.0 GB/s; FP16 65.13 TFLOPS; 40 SMs, 1590 MHz)",
            f"{_DEVICE_TOTAL} (14.56 to 14.74 GiB)",
        ),
        from_memory=("the datasheet says 300 GB/s or 320+", "no bf16 tensor cores: fp16 only"),
    ),
    Gpu(
        name="A100-40G",
        memory_gb=40,
        memory_bytes=42_298_834_944,
        bandwidth_bytes_per_s=1555 * _GIGA,
        dense_flops=312 * _TERA,
        num_processors=108,
        boost_hz=1410e6,
        architecture="Ampere GA100",
        sources=(
            _LLM_VIEWER,
            "https://github.com/bottlerocket-os/bottlerocket/pull/3873 (memory: 42298834944 bytes; 108 SMs)",
        ),
        from_memory=("memory_gb",),
    ),
    Gpu(
        name="A100-80G",
        memory_gb=80,
        memory_bytes=int(79.25 * GIB),
        bandwidth_bytes_per_s=2039 * _GIGA,
        dense_flops=312 * _TERA,
        num_processors=108,
        boost_hz=1410e6,
        architecture="Ampere GA100",
        sources=(
            f"{_AICONFIGURATOR}a100_sxm.yaml (SXM; the PCIe card has 1935 GB/s)",
            _LLM_VIEWER,
            f"{_DEVICE_TOTAL} (79.25 GiB)",
            f"{_HMC}s/nvidia-a100-sxm-vs-nvidia-b200 (108 SMs, 1.41 GHz)",
        ),
    ),
    Gpu(
        name="L4",
        memory_gb=24,
        memory_bytes=int(22.03 * GIB),
        bandwidth_bytes_per_s=300 * _GIGA,
        dense_flops=121 * _TERA,
        fp8_dense_flops=242 * _TERA,
        num_processors=58,
        boost_hz=2040e6,
        architecture="Ada AD104",
        sources=(
            f"{_AICONFIGURATOR}l4.yaml",
            _NANOCHAT,
            f"{_DEVICE_TOTAL} (21.96 to 22.03 GiB)",
            f"{_HMC}s/nvidia-b200-vs-nvidia-l4 (2.04 GHz)",
        ),
        from_memory=("58 SMs: 7424 shaders; the full chip has 60",),
    ),
    Gpu(
        name="L40S",
        memory_gb=48,
        memory_bytes=int(44.40 * GIB),
        bandwidth_bytes_per_s=864 * _GIGA,
        dense_flops=362.05 * _TERA,
        fp8_dense_flops=733 * _TERA,
        num_processors=142,
        boost_hz=2520e6,
        architecture="Ada AD102",
        sources=(
            f"{_AICONFIGURATOR}l40s.yaml",
            _LLMBOOK,
            f"{_DEVICE_TOTAL} (44.39 to 44.42 GiB)",
            f"{_HMC}/nvidia-b200-vs-nvidia-l40s (18176 shaders: 142 SMs, 2520 MHz)",
        ),
    ),
    Gpu(
        name="A10G",
        memory_gb=24,
        memory_bytes=int(22.06 * GIB),
        bandwidth_bytes_per_s=600 * _GIGA,
        dense_flops=70 * _TERA,
        num_processors=80,
        boost_hz=1710e6,
        architecture="Ampere GA102",
        sources=(
            "https://www.baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference/ (24 GB, 600 GB/s)",
            f"{_DEVICE_TOTAL} (21.98 to 22.06 GiB)",
        ),
        from_memory=(
            "80 SMs at 1710 MHz",
            "70 TFLOPS is the figure of AWS G5; the plain A10 has 125",
        ),
    ),
    Gpu(
        name="H100 SXM",
        memory_gb=80,
        memory_bytes=int(79.11 * GIB),
        bandwidth_bytes_per_s=3350 * _GIGA,
        dense_flops=989 * _TERA,
        fp8_dense_flops=1978 * _TERA,
        num_processors=132,
        boost_hz=1980e6,
        architecture="Hopper GH100",
        sources=(
            f"{_AICONFIGURATOR}h100_sxm.yaml",
            _NANOCHAT,
            f"{_LLMBOOK} (990 / 1979)",
            "https://github.com/vllm-project/vllm/issues/27508 (memory: device total 79.11 GiB)",
            f"{_HMC}/nvidia-gb200-vs-nvidia-h100-sxm (16896 shaders: 132 SMs, 1980 MHz)",
        ),
    ),
    Gpu(
        name="H200",
        memory_gb=141,
        memory_bytes=int(139.80 * GIB),
        bandwidth_bytes_per_s=4800 * _GIGA,
        dense_flops=989 * _TERA,
        fp8_dense_flops=1978 * _TERA,
        num_processors=132,
        boost_hz=1980e6,
        architecture="Hopper GH100",
        sources=(
            f"{_AICONFIGURATOR}h200_sxm.yaml",
            _NANOCHAT,
            _LLMBOOK,
            f"{_DEVICE_TOTAL} (139.72 to 139.81 GiB)",
            f"{_HMC}/nvidia-h100-vs-nvidia-h200-sxm-vs-nvidia-gb200 (16896 shaders: 132 SMs, 1980 MHz)",
        ),
    ),
    Gpu(
        name="B200",
        memory_gb=180,
        memory_bytes=int(178.35 * GIB),
        bandwidth_bytes_per_s=7700 * _GIGA,
        dense_flops=2250 * _TERA,
        fp8_dense_flops=4500 * _TERA,
        num_processors=148,
        boost_hz=1980e6,
        architecture="Blackwell GB100",
        sources=(
            f"{_AICONFIGURATOR}b200_sxm.yaml (180 GB, 7.7 TB/s)",
            f"{_NANOCHAT} (8.0 TB/s)",
            f"{_LLMBOOK} (192 GB, 8.0 TB/s)",
            f"{_DEVICE_TOTAL} (178.35 GiB)",
            f"{_HMC}s/nvidia-a100-sxm-vs-nvidia-b200 (148 SMs, 1.98 GHz)",
        ),
    ),
    Gpu(
        name="RTX 4090",
        memory_gb=24,
        memory_bytes=25_250_627_584,
        bandwidth_bytes_per_s=1008 * _GIGA,
        dense_flops=165.2 * _TERA,
        fp8_dense_flops=330.3 * _TERA,
        num_processors=128,
        boost_hz=2520e6,
        architecture="Ada AD102",
        sources=(
            f"{_NANOCHAT} (165.2 TFLOPS; 1.01 TB/s)",
            "github.com/casys-kaist/LLMServingSim : bench/examples/RTX4090/Llama-3.1-8B (1008 GB/s, device total)",
            "https://fpsbench.com/compare/gpu/amd-radeon-pro-duo-vs-nvidia-geforce-rtx-4090 (128 SMs, 2520 MHz)",
        ),
        from_memory=("fp8_dense_flops 330.3, accumulating in fp32",),
    ),
    Gpu(
        name="RTX 3090",
        memory_gb=24,
        memory_bytes=int(23.69 * GIB),
        bandwidth_bytes_per_s=936 * _GIGA,
        dense_flops=71 * _TERA,
        num_processors=82,
        boost_hz=1695e6,
        architecture="Ampere GA102",
        sources=(
            _NANOCHAT,
            "https://github.com/vllm-project/vllm/issues/2140 (memory: device total 23.69 GiB)",
            "https://cuttingedgegamer.com/2022/12/ (82 SMs, 1695 MHz)",
        ),
        from_memory=("memory_gb",),
    ),
    Gpu(
        name="V100",
        memory_gb=32,
        memory_bytes=int(31.73 * GIB),
        bandwidth_bytes_per_s=900 * _GIGA,
        dense_flops=112 * _TERA,
        num_processors=80,
        boost_hz=1380e6,
        architecture="Volta GV100",
        sources=(f"{_LLM_VIEWER} (900 GB/s, 112 TFLOPS: the PCIe card)", f"{_DEVICE_TOTAL} (31.73 GiB)"),
        from_memory=(
            "80 SMs; 1380 MHz is the PCIe card's",
            "memory_gb (16 GB cards exist)",
            "SXM2 has 125 TFLOPS",
            "no bf16 tensor cores: fp16 only",
        ),
    ),
    Gpu(
        name="MI300X",
        memory_gb=192,
        memory_bytes=int(191.98 * GIB),
        bandwidth_bytes_per_s=5300 * _GIGA,
        dense_flops=1307.4 * _TERA,
        fp8_dense_flops=2614.9 * _TERA,
        num_processors=304,
        boost_hz=2100e6,
        architecture="CDNA3",
        sources=(
            f"{_NANOCHAT} (1307.4 TFLOPS, 5.3 TB/s)",
            f"{_LLMBOOK} (192 GB, 5.3 TB/s, 1307 / 2615)",
            f"{_DEVICE_TOTAL} (191.69 to 191.98 GiB)",
            "https://technicalcity.b-cdn.net/fr/video/GeForce-RTX-4090-mobile-vs-Radeon-Instinct-MI300X (2100 MHz)",
        ),
        from_memory=(
            "304 compute units: 19456 shaders",
            "the .9 of 2614.9",
        ),
    ),
)
"""Every GPU that can be named on a command line."""

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
        document = tomllib.loads(content_of(file, TEXT_BYTES).decode())
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
        memory_gb=round(figures["memory_gib"] * GIB / _GIGA),
        memory_bytes=int(figures["memory_gib"] * GIB),
        bandwidth_bytes_per_s=figures["bandwidth_gb_per_s"] * _GIGA,
        dense_flops=figures["dense_tflops"] * _TERA,
        fp8_dense_flops=None if fp8 is None else fp8 * _TERA,
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
