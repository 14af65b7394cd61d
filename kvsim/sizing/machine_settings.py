"""Settings of a machine: the model, the GPU, and the memory for the KV cache.

The command line makes its flags from these fields, and `kvsim.machine` its keyword arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.setting_fields import check_settings, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.models import Model

_OF_MODEL = (
    "kv_cache_dtype", "quantization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "enable_expert_parallel", "decode_context_parallel_size",
)  # fmt: skip
"""Settings of a machine that change the served model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """Settings of a GPU, or several, that serve a model."""

    model: Any = setting(
        None,
        "Listed model (see kvsim size --list), config.json, or its folder.",
        unit="MODEL",
        shown="the recording's, or Llama-3-8B",
    )
    gpu: Any = setting(
        None,
        "Listed GPU (see kvsim size --list), or a TOML file of your own.",
        unit="GPU",
        shown="the recording's, or H200",
    )
    tensor_parallel_size: int | None = setting(None, "Tensor-parallel size.", unit="N", shown="1", at_least=1)
    pipeline_parallel_size: int | None = setting(None, "Pipeline-parallel size.", unit="N", shown="1", at_least=1)
    data_parallel_size: int | None = setting(
        None,
        "Data-parallel size: number of ranks, each with its own scheduler and cache. Ranks of a mixture of experts "
        "share the experts.",
        unit="N",
        shown="1",
        at_least=1,
    )
    enable_expert_parallel: bool = setting(False, "Put whole experts on each GPU, not a part of every expert.")
    decode_context_parallel_size: int | None = setting(
        None,
        "GPUs of a tensor-parallel group that divide the tokens of each sequence's cache.",
        "--decode-context-parallel-size",
        "-dcp",
        unit="N",
        shown="1",
        at_least=1,
    )
    quantization: str | None = setting(
        None, "Type of the weights: none, fp8, awq, gptq, mxfp4 and others.", unit="METHOD", shown="the model's"
    )
    kv_cache_dtype: str | None = setting(
        None, "Type of the KV cache: auto, fp8 or another of vLLM's.", unit="TYPE", shown="auto"
    )
    kv_gib: float | None = setting(
        None,
        "KV-cache size on each GPU, in GiB.",
        unit="GIB",
        shown="the recording's, or what the GPU leaves",
        above=0,
        below=1_000_000,
    )
    num_blocks: int | None = setting(
        None,
        "KV-cache size in blocks, vLLM's null block included.",
        "--num-blocks",
        "--num-gpu-blocks-override",
        unit="N",
        at_least=1,
        at_most=1 << 40,
    )
    gpu_memory_utilization: float | None = setting(
        None, "Share of the GPU's memory that vLLM may use.", unit="SHARE", shown="0.92", above=0, at_most=1
    )
    mem_fraction_static: float | None = setting(
        None,
        "Share of the memory free before loading that weights and cache may use, as in SGLang.",
        unit="SHARE",
        above=0,
        below=1,
    )
    oversize: bool = setting(False, "Allow a model and a cache that are too large for the GPU's memory.")
    enforce_eager: bool = setting(False, "Launch kernels one by one, without captured graphs.")
    times: Any = setting(
        None,
        "Step times: a profile or a machine card, by file or name; none: the data sheet alone; kernels: kernel tables "
        "of the extra kvsim[kernels].",
        "--profile",
        unit="PROFILE",
        shown="the one that matches",
    )

    def __post_init__(self) -> None:
        check_settings(self)


def served_with(model: Model, settings: Mapping[str, Any]) -> Model:
    """Return `model` with the parallelism, cache type and quantization in `settings`.

    A setting that is missing, None or False does not change `model`.
    """
    from kvsim.models import find_quantization  # noqa: PLC0415  the command line needs the fields without the models

    stated: dict[str, Any] = {name: settings.get(name) for name in _OF_MODEL}
    stated = {name: value for name, value in stated.items() if value is not None and value is not False}
    if "quantization" in stated:
        stated["quantization"] = find_quantization(stated["quantization"])
    return model.served(**stated)
