"""What the flags of a machine stand for: a GPU, a model as it is served, and the memory for its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cli.show import echo
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.policies.settings import EngineDefaults
    from kvsim.recording import Meta
    from kvsim.sizing.budget import Budget

GIB = 1 << 30
FIND = -1
"""The value of `--max-model-len` that asks for the longest sequence that fits."""


def tokens_or_auto(value: str | int) -> int:
    """The type of `--max-model-len`: a number of tokens, or -1 for `auto`."""
    text = str(value)
    if text in ("auto", "-1"):
        return FIND
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--max-model-len should be a whole number of at least 1, or auto, not {text}.")
    return int(text)


def machine_of(flags: Mapping[str, Any], meta: Meta | None = None) -> tuple[Gpu, Model]:
    """The GPU, and the model as it is served, that the flags name; those of a recording where they do not.

    Raises:
        UsageError: a name is unknown, or the model cannot be served so.
    """
    from kvsim.hardware import find_gpus
    from kvsim.machines import served_model
    from kvsim.models import find_model, find_quantization, taken_for

    gpu, number = find_gpus(flags["gpu"] or (meta.gpu if meta is not None else "H200"))
    named = flags["model"] or (None if meta is not None else "Meta-Llama-3-8B")
    length = flags.get("max_model_len")
    longest = None if length == FIND else length
    model = served_model(meta) if named is None and meta is not None else find_model(named or "", longest)
    if note := taken_for(named, model) if named else "":
        echo(f"note: {note}", err=True)
    stated = {name: flags[name] for name in ("kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size")}
    if number is not None:
        sizes = [stated[name] or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
        if stated["tensor_parallel_size"] is not None and sizes[0] * sizes[1] != number:
            raise UsageError(
                f"--gpu {flags['gpu']} are {number} GPUs, and --tensor-parallel-size {sizes[0]}"
                + (f" times --pipeline-parallel-size {sizes[1]}" if sizes[1] > 1 else "")
                + f" are {sizes[0] * sizes[1]}; leave one of them out."
            )
        if number % sizes[1]:
            raise UsageError(f"--gpu {flags['gpu']} cannot be divided into --pipeline-parallel-size {sizes[1]}.")
        stated["tensor_parallel_size"] = number // sizes[1]
    if flags["quantization"] is not None:
        stated["quantization"] = find_quantization(flags["quantization"])
    return gpu, model.served(**stated)


def engine_limits(flags: Mapping[str, Any], gpu: Gpu, max_model_len: int) -> tuple[int, int]:
    """The sequences and tokens of a step: as told, or what vLLM's `LLM` class or its server takes on the GPU."""
    told = flags["max_num_seqs"], flags["max_num_batched_tokens"]
    check_at_least_one(flags, "max_num_seqs", "max_num_batched_tokens")
    return _defaults(flags, gpu).limits(*told, max_model_len, chunked=not flags.get("no_chunked_prefill"))


def adjusted_words(flags: Mapping[str, Any], gpu: Gpu, max_model_len: int) -> list[str]:
    """The defaults that vLLM adjusts to the other settings, a sentence each."""
    names, defaults = ("max_num_seqs", "max_num_batched_tokens"), _defaults(flags, gpu).value
    return [
        f"{name} is {value:,}: vLLM adjusts its default of {default:,} to the other limits"
        for name, default, value in zip(names, defaults, engine_limits(flags, gpu, max_model_len), strict=True)
        if flags[name] is None and value != default
    ]


def _defaults(flags: Mapping[str, Any], gpu: Gpu) -> EngineDefaults:
    from kvsim.policies.settings import EngineDefaults

    return EngineDefaults.of(flags["defaults"], gpu.memory_bytes, is_a100=gpu.name.startswith("A100"))


def caches_prefixes(flags: Mapping[str, Any], model: Model) -> bool:
    """Whether prefixes are cached: as told; otherwise they are, but not for models with recurrent layers, as in vLLM.

    Raises:
        UsageError: the flags say both.
    """
    if flags["no_prefix_caching"] and flags["prefix_caching"]:
        raise UsageError("--prefix-caching and --no-prefix-caching contradict each other; give one of them.")
    return not flags["no_prefix_caching"] and bool(flags["prefix_caching"] or not model.recurrent_layers)


def check_at_least_one(flags: Mapping[str, Any], *names: str) -> None:
    """Raise a UsageError if one of the flags that were given is less than 1."""
    for name in names:
        if flags[name] is not None and flags[name] < 1:
            raise UsageError(f"--{name.replace('_', '-')} should be at least 1, not {flags[name]}.")


def memory_of(
    flags: Mapping[str, Any], gpu: Gpu, model: Model, *, prefix_caching: bool | None = None, **settings: Any
) -> Budget:
    """The pool that the flags describe: as told, or what the GPU leaves; `settings` go to `plan_budget`.

    Raises:
        UsageError: two flags contradict each other, or one cannot be right.
        BudgetError: the model and its cache do not fit.
    """
    from kvsim.sizing.budget import plan_budget

    told = [name for name in ("kv_gib", "num_blocks", "gpu_memory_utilization") if flags[name] is not None]
    if len(told) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in told)
        raise UsageError(f"{names} say the same thing; give one of them.")
    check_at_least_one(flags, "block_size", "num_blocks")
    kv_gib = flags["kv_gib"]
    if kv_gib is not None and not 0 < kv_gib < 1e6:
        raise UsageError(f"--kv-gib should be a positive size, not {kv_gib}.")
    share = flags["gpu_memory_utilization"]
    length = settings.get("max_model_len", flags.get("max_model_len"))
    longest = model.max_position_embeddings if length in (None, FIND) else length
    num_seqs, num_tokens = engine_limits(flags, gpu, longest)
    return plan_budget(
        gpu,
        model,
        gpu_memory_utilization=0.92 if share is None else share,
        block_size=flags["block_size"],
        kv_memory_bytes=None if kv_gib is None else int(kv_gib * GIB),
        num_blocks=flags["num_blocks"],
        max_num_batched_tokens=num_tokens,
        max_num_seqs=num_seqs,
        oversize=flags["oversize"],
        enable_prefix_caching=prefix_caching,
        **settings,
    )
