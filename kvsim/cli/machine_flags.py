"""GPU, model and memory budget that the flags of a machine describe."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from kvsim.cli.options import settings_from
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
AUTO_LENGTH = "auto"
"""Value of `--max-model-len` that asks for the longest sequence that fits."""


def tokens_or_auto(value: str | int) -> int | str:
    """Return the value of `--max-model-len`: a number of tokens, or `AUTO_LENGTH` for auto and -1."""
    text = str(value)
    if text in ("auto", "-1"):
        return AUTO_LENGTH
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--max-model-len should be a whole number of at least 1, or auto, not {text}.")
    return int(text)


def machine_of(flags: Mapping[str, Any], meta: Meta | None = None) -> tuple[Gpu, Model]:
    """Return the GPU and the model of the flags. Where there is no flag, they are those of the recording's `meta`."""
    from kvsim.hardware import find_gpus
    from kvsim.machines import served_model
    from kvsim.models import find_model, taken_for
    from kvsim.sizing.machine_settings import served_with

    gpu, number = find_gpus(flags["gpu"] or (meta.gpu if meta is not None else "H200"))
    named = flags["model"] or (None if meta is not None else "Meta-Llama-3-8B")
    length = flags.get("max_model_len")
    longest = None if length == AUTO_LENGTH else length
    model = served_model(meta) if named is None and meta is not None else find_model(named or "", longest)
    if note := taken_for(named, model) if named else "":
        echo(f"note: {note}", err=True)
    share = {} if number is None else {"tensor_parallel_size": _tensor_parallel_size(number, flags)}
    return gpu, served_with(model, {**flags, **share})


_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def _tensor_parallel_size(number: int, flags: Mapping[str, Any]) -> int:
    """Return the tensor-parallel size of a server with `number` GPUs, given its pipeline and data-parallel sizes.

    Raises:
        UsageError: the sizes do not agree with `number`.
    """
    sizes = {f"--{name.replace('_', '-')}": flags[name] for name in _SIZES if flags[name] is not None}
    product = prod(sizes.values())
    if flags["tensor_parallel_size"] is not None and product != number:
        words = " times ".join(f"{flag} {size}" for flag, size in sizes.items())
        raise UsageError(f"--gpu {flags['gpu']} are {number} GPUs, and {words} are {product}; leave one out.")
    others = product // (flags["tensor_parallel_size"] or 1)
    if number % others:
        words = " times ".join(f"{flag} {size}" for flag, size in sizes.items() if "tensor" not in flag)
        raise UsageError(f"--gpu {flags['gpu']} cannot be divided into {words}; give a multiple of these.")
    return int(number // others)


def engine_limits(flags: Mapping[str, Any], gpu: Gpu, max_model_len: int) -> tuple[int, int]:
    """Return max_num_seqs and max_num_batched_tokens of the flags, or vLLM's defaults on the GPU."""
    stated = flags["max_num_seqs"], flags["max_num_batched_tokens"]
    is_chunked = flags.get("enable_chunked_prefill") is not False
    return _defaults(flags, gpu).limits(*stated, max_model_len, chunked=is_chunked)


def limit_notes(flags: Mapping[str, Any], gpu: Gpu, max_model_len: int) -> list[str]:
    """Return a sentence for each default limit that vLLM adjusts to the other settings.

    If kvsim does not know the release, the first sentence names the known release whose rules are used.
    """
    from kvsim.policies.releases import DEFAULT_RELEASE, nearest_words

    names, defaults = ("max_num_seqs", "max_num_batched_tokens"), _defaults(flags, gpu).value
    return nearest_words(flags["vllm"] or DEFAULT_RELEASE) + [
        f"--{name.replace('_', '-')} is {value:,}: vLLM adjusts its default of {default:,} to the other limits"
        for name, default, value in zip(names, defaults, engine_limits(flags, gpu, max_model_len), strict=True)
        if flags[name] is None and value != default
    ]


def _defaults(flags: Mapping[str, Any], gpu: Gpu) -> EngineDefaults:
    from kvsim.policies.releases import DEFAULT_RELEASE
    from kvsim.policies.settings import EngineDefaults

    return EngineDefaults.of(flags["defaults"] or "llm", gpu, flags["vllm"] or DEFAULT_RELEASE)


def caches_prefixes(flags: Mapping[str, Any], model: Model) -> bool:
    """Tell whether prefixes are cached. As in vLLM, this is off by default for a model with recurrent layers."""
    stated: bool | None = flags["enable_prefix_caching"]
    return not model.recurrent_layers if stated is None else stated


def gib_of_slots(flags: Mapping[str, Any], gpu: Gpu, model: Model) -> float:
    """Return the GiB that SGLang has for KV slots with the given --mem-fraction-static."""
    from kvsim.sizing.sglang_budget import plan_slots

    _check_one_size(flags)
    share = flags["mem_fraction_static"]
    return plan_slots(gpu, model, mem_fraction_static=share, page_size=flags.get("page_size")).kv_bytes / GIB


def _check_one_size(flags: Mapping[str, Any]) -> None:
    sizes = ("kv_gib", "num_blocks", "gpu_memory_utilization", "mem_fraction_static")
    names = [f"--{name.replace('_', '-')}" for name in sizes if flags[name] is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} say the same thing; give only one.")


def memory_of(flags: Mapping[str, Any], gpu: Gpu, model: Model, *, max_model_len: int | None = None) -> Budget:
    """Return the memory budget that the flags describe. If no flag states the size of the pool, the pool takes what the
    other terms leave.

    `max_model_len` is the longest sequence, in tokens, that the pool must have room for; None: that of the model. It
    does not change the limits of the scheduler, which follow from --max-model-len.
    """
    from kvsim.policies import ContinuousSettings
    from kvsim.policies.drafter import pool_settings
    from kvsim.policies.releases import DEFAULT_RELEASE, defaults_of
    from kvsim.sizing.budget import plan_budget

    _check_one_size(flags)
    kv_gib = flags["kv_gib"]
    share = flags["gpu_memory_utilization"]
    finds = flags["max_model_len"] == AUTO_LENGTH
    longest = model.max_position_embeddings if finds else flags["max_model_len"] or model.max_position_embeddings
    num_seqs, num_tokens = engine_limits(flags, gpu, longest)
    release = flags["vllm"] or DEFAULT_RELEASE
    names = ("async_scheduling", "speculative_config", "enable_lora", "max_loras", "max_lora_rank")
    given = {name: flags.get(name) for name in names}
    scheduler = settings_from(ContinuousSettings, given, max_num_batched_tokens=num_tokens, vllm=release)
    return plan_budget(
        gpu,
        model,
        pool_settings(
            scheduler,
            model,
            captured=not flags.get("enforce_eager"),
            gpu_memory_utilization=defaults_of(release).gpu_memory_utilization if share is None else share,
            block_size=flags["block_size"],
            kv_memory_bytes=None if kv_gib is None else int(kv_gib * GIB),
            num_blocks=flags["num_blocks"],
            max_num_seqs=num_seqs,
            oversize=bool(flags["oversize"]),
            enable_prefix_caching=caches_prefixes(flags, model),
            hybrid_manager=flags["hybrid_manager"] is not False,
            max_model_len=max_model_len,
            find_max_model_len=finds,
        ),
    )


def title_of(gpu: Gpu, model: Model) -> str:
    """Return a title that names the model, its quantization (if it has one) and the GPUs."""
    served = [f"{model.quantization.method} weights"] if model.quantization else []
    served += [f"{model.kv_cache_dtype} KV cache"] if model.kv_cache_dtype != "auto" else []
    number = model.num_gpus * model.data_parallel_size
    gpus = f"{number} x {gpu.name}" if number > 1 else gpu.name
    return f"{model.name} on {gpus}" + (f" ({', '.join(served)})" if served else "")
