"""`Gpu`: the data sheet of one kind of GPU, from which cache sizes and uncalibrated step times follow."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Data sheet of one kind of GPU. FLOP/s are for dense matrices; advertised ones are often doubled for sparsity."""

    name: str
    """A short name, unique in `GPUS`."""
    memory_gb: int
    """Nominal size in GB, as printed on the box. It only names the card; sizes are computed from `memory_bytes`."""
    memory_bytes: int
    """Total bytes that the driver reports; vLLM's `gpu_memory_utilization` is a share of this total."""
    bandwidth_bytes_per_s: float
    """Peak bandwidth of the device's memory."""
    dense_flops: float
    """Peak FLOP/s of the tensor cores in bf16, or in fp16 if the card has no bf16."""
    num_processors: int
    """Number of streaming multiprocessors, or of compute units."""
    boost_hz: float
    """Clock in Hz, when neither power nor temperature limits it."""
    architecture: str
    sources: tuple[str, ...]
    """Sources of the figures."""
    streamed_share: float | None = None
    """Measured share of the peak bandwidth at which long data is read; None if no source states it."""
    fp8_dense_flops: float | None = None
    """Peak FLOP/s in fp8; None if the tensor cores have no fp8."""

    def __repr__(self) -> str:
        rates = f"{self.bandwidth_bytes_per_s / GIGA:,.0f} GB/s, {self.dense_flops / TERA:,.0f} TFLOP/s in bf16"
        return f"<Gpu {self.name}: {self.memory_bytes / GIB:.2f} GiB, {rates}>"
