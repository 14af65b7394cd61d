"""Measure a whole machine and return its card."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

from kvsim.errors import MissingExtraError, UsageError
from kvsim.steptime.card import Card

SHAPES = (
    *(
        (n, k)
        for k in (1024, 2048, 2560, 3584, 4096, 5120, 8192, 14336, 28672)
        for n in (1024, 2048, 4096, 6144, 10240, 19456, 28672, 57344)
        if 1 << 20 <= n * k <= 28672 * 8192
    ),
    *((8192, k) for k in (1024, 2048, 4096, 5120, 8192, 11008, 14336, 28672)),
    *((4096, 11008), (5120, 13824), (22016, 4096), (22016, 8192)),
    *((49152, 1024), (262144, 2560), (151936, 4096), (128256, 4096), (32000, 4096), (3072, 768), (768, 3072)),
)
"""Shapes of weights (outputs, inputs), from the smallest models to an output projection. 8,192 outputs fill the
processors of an H100 once: the other shapes alone say up to 9 % more for few tokens."""
_FP8_SHAPES = tuple((n, k) for k in (2048, 4096, 8192, 14336) for n in (2048, 4096, 6144, 14336, 28672))
_STREAM_BYTES = 4 << 30
_KERNELS = 200


def measure(num_gpus: int = 1, progress: Callable[[str], None] = lambda _: None) -> Card:
    """Measure this machine; `progress` is called with the name of the next part.

    Raises:
        MissingExtraError: PyTorch is not installed.
        UsageError: there is no GPU, or fewer than `num_gpus`.
    """
    _check_gpus(num_gpus)
    import torch  # noqa: PLC0415

    from kvsim.measure.attention_kernels import measure_attention  # noqa: PLC0415
    from kvsim.measure.links import all_reduce  # noqa: PLC0415
    from kvsim.measure.products import FEW_SIZES, measure_products  # noqa: PLC0415
    from kvsim.measure.timing import launch_s  # noqa: PLC0415

    progress("all-reduce")
    reduce_name, reduced = all_reduce(num_gpus)
    progress("host")
    one_launch_s = launch_s()
    progress("memory and links")
    rates = _memory_and_links()
    progress("matrix products")
    products = {"bfloat16": measure_products(SHAPES)}
    torch.cuda.empty_cache()
    if torch.cuda.get_device_capability() >= (8, 9):
        progress("matrix products in fp8")
        products["fp8"] = measure_products(_FP8_SHAPES, FEW_SIZES, fp8=True)
        torch.cuda.empty_cache()
    progress("attention")
    attention_name, attention = measure_attention()
    return Card(
        gpu=torch.cuda.get_device_name(),
        num_gpus=num_gpus,
        source=f"measured {date.today().isoformat()}, PyTorch {torch.__version__}{_vllm()}; {attention_name}"
        + (f", {reduce_name}" if reduce_name else ""),
        measured=True,
        launch_s=one_launch_s,
        products=products,
        attention=attention,
        all_reduce=reduced,
        **rates,
    )


def _memory_and_links() -> dict[str, Any]:
    """Return the rates of a card that one buffer tells, and the gap between two small kernels."""
    import torch  # noqa: PLC0415

    from kvsim.measure.links import copies  # noqa: PLC0415
    from kvsim.measure.timing import seconds_per_call  # noqa: PLC0415

    data = torch.ones(_STREAM_BYTES // 4, dtype=torch.float32, device="cuda")
    streamed_s = seconds_per_call([data.sum])
    other = torch.empty_like(data)
    copied_s = seconds_per_call([partial(other.copy_, data)])
    del data, other
    small = torch.zeros(8, device="cuda")
    gap_s = seconds_per_call([partial(small.add_, 1.0)] * _KERNELS)
    to_gpu, to_host = copies()
    torch.cuda.empty_cache()
    return {
        "read_bytes_per_s": _STREAM_BYTES / streamed_s,
        "copy_bytes_per_s": 2 * _STREAM_BYTES / copied_s,
        "kernel_s": gap_s,
        "to_gpu_bytes_per_s": to_gpu,
        "to_host_bytes_per_s": to_host,
    }


def _check_gpus(num_gpus: int) -> None:
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("Measuring a machine", "hf") from error
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < max(num_gpus, 1):
        raise UsageError(
            f"this machine has {found or 'no'} GPU{'s' * (found != 1)} that PyTorch sees, and "
            f"--tensor-parallel-size {num_gpus} needs {num_gpus}; run kvsim measure where they are."
        )


def _vllm() -> str:
    try:
        return f", vLLM {importlib.metadata.version('vllm')}"
    except importlib.metadata.PackageNotFoundError:
        return ""
