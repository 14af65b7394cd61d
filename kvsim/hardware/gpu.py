"""Facts about a GPU: memory, bandwidth and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU. FLOP/s are dense: marketing often doubles them for 2:1 sparsity."""

    name: str
    """A short name, unique in `GPUS`."""
    memory_gb: int
    """The size on the box, a label rather than a measure."""
    memory_bytes: int
    """Bytes that the driver reports as the device's total: `gpu_memory_utilization` is a share of it."""
    bandwidth_bytes_per_s: float
    """Peak bandwidth of the device's memory."""
    dense_flops: float
    """Peak FLOP/s of the tensor cores in bf16 (fp16 where the card has no bf16)."""
    num_processors: int
    """Streaming multiprocessors, or compute units."""
    boost_hz: float
    """Clock in Hz, when neither power nor temperature limits it."""
    architecture: str
    sources: tuple[str, ...]
    """Sources of the figures."""
    streamed_share: float | None = None
    """Share of the peak bandwidth that streaming was measured to reach; None where no source says."""
    fp8_dense_flops: float | None = None
    """Peak FLOP/s in fp8, or None where the tensor cores have no fp8."""

    def __repr__(self) -> str:
        rates = f"{self.bandwidth_bytes_per_s / GIGA:,.0f} GB/s, {self.dense_flops / TERA:,.0f} TFLOP/s in bf16"
        return f"<Gpu {self.name}: {self.memory_bytes / GIB:.2f} GiB, {rates}>"
