"""Measure all parts of a machine card in turn, for `kvsim measure`."""

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
"""Shapes (outputs, inputs) of the weights that are measured: layers of small and large models, and output projections
to the vocabulary.

Shapes with 8,192 outputs are added, because their products occupy all processors of an H100 exactly once. Without these
shapes, the predicted time of steps with few tokens would be up to 9 % too long.
"""
_FP8_SHAPES = tuple((n, k) for k in (2048, 4096, 8192, 14336) for n in (2048, 4096, 6144, 14336, 28672))
"""Shapes of weights (outputs, inputs) that are measured in fp8."""
_STREAM_BYTES = 4 << 30
"""Bytes of the buffer that is read and copied to measure the rates of the GPU's memory."""
_SMALL_KERNELS = 200
"""Number of small kernels in the graph that measures the time from one kernel to the next."""
_FP8_CAPABILITY = (8, 9)
"""Smallest CUDA compute capability with fp8 tensor cores (Ada)."""


def measure(num_gpus: int = 1, progress: Callable[[str], None] = lambda _: None) -> Card:
    """Measure the card of this machine; `progress` is called with the name of each part before it is measured.

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
    memory_and_links = _memory_and_links()
    progress("matrix products")
    products = {"bfloat16": measure_products(SHAPES)}
    torch.cuda.empty_cache()
    if torch.cuda.get_device_capability() >= _FP8_CAPABILITY:
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
        **memory_and_links,
    )


def _memory_and_links() -> dict[str, Any]:
    """Return fields of a card: the rates of GPU memory and of the link to the host, and the time of a small kernel."""
    import torch  # noqa: PLC0415

    from kvsim.measure.links import host_copy_rates  # noqa: PLC0415
    from kvsim.measure.timing import seconds_per_call  # noqa: PLC0415

    data = torch.ones(_STREAM_BYTES // 4, dtype=torch.float32, device="cuda")
    streamed_s = seconds_per_call([data.sum])
    other = torch.empty_like(data)
    copied_s = seconds_per_call([partial(other.copy_, data)])
    del data, other
    small = torch.zeros(8, device="cuda")
    small_kernel_s = seconds_per_call([partial(small.add_, 1.0)] * _SMALL_KERNELS)
    to_gpu, to_host = host_copy_rates()
    torch.cuda.empty_cache()
    return {
        "read_bytes_per_s": _STREAM_BYTES / streamed_s,
        "copy_bytes_per_s": 2 * _STREAM_BYTES / copied_s,  # every byte is read and written
        "kernel_s": small_kernel_s,
        "to_gpu_bytes_per_s": to_gpu,
        "to_host_bytes_per_s": to_host,
    }


def _check_gpus(num_gpus: int) -> None:
    try:
        import torch  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("Measuring a machine", "hf") from error
    num_visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_visible < max(num_gpus, 1):
        raise UsageError(
            f"this machine has {num_visible or 'no'} GPU{'s' * (num_visible != 1)} that PyTorch sees, and "
            f"--tensor-parallel-size {num_gpus} needs {num_gpus}; run kvsim measure on a machine that has them."
        )


def _vllm() -> str:
    """Return the version of vLLM as a clause for `Card.source`; empty if vLLM is not installed."""
    try:
        return f", vLLM {importlib.metadata.version('vllm')}"
    except importlib.metadata.PackageNotFoundError:
        return ""
