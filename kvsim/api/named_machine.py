"""Machines by name, such as "H200/Llama-3-8B": a GPU, a model, the memory left for its cache, and step times."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kvsim.errors import UsageError, described
from kvsim.hardware import GIB, Gpu, find_gpu, find_gpus
from kvsim.kv_groups.specs import check_length
from kvsim.machines import is_card, served_model, step_times
from kvsim.models import Model, find_model
from kvsim.policies import Static
from kvsim.policies.drafter import pool_settings
from kvsim.policies.releases import DEFAULT_RELEASE, defaults_of, number_of
from kvsim.policies.settings import ContinuousSettings, EngineDefaults
from kvsim.recording import Recording
from kvsim.setting_fields import check_instance, whole_number
from kvsim.simulation import Machine
from kvsim.sizing.budget import plan_budget
from kvsim.sizing.machine_settings import MachineSettings, served_with
from kvsim.sizing.sglang_budget import plan_slots
from kvsim.steptime.card import load_card

if TYPE_CHECKING:
    from kvsim.policies import AnyPolicy
    from kvsim.steptime import StepTimeModel

MachineLike: TypeAlias = Machine | Recording | str
"""Machine: an object, a recording of one, or "GPU/MODEL", such as "4xH100/Llama-3.1-70B-Instruct"."""
DEFAULT_MACHINE = "H200/Meta-Llama-3-8B"


def machine(
    gpu: str | Gpu | Recording | os.PathLike[str] = DEFAULT_MACHINE,
    model: str | Model | os.PathLike[str] | None = None,
    *,
    engine: str = "vllm",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None,
    vllm: str = DEFAULT_RELEASE,
    **settings: Any,
) -> Machine:
    """Return a machine, a GPU that serves a model, with its memory for keys and values and its step times.

    Args:
        gpu: the name of a GPU (with "2x" in front for two that share the model), "GPU/MODEL", the file of a machine
            card made by `kvsim measure`, or a recording with GPU, model and memory.
        model: a listed model, or a `config.json` or its folder; left out if `gpu` names it, as "2xH100/Qwen3-32B".
        engine: engine of the step times: "vllm", "hf-dynamic" or "hf-static".
        max_num_seqs: largest number of sequences in a step; more leave less memory to the cache. Default: vLLM's.
        max_num_batched_tokens: largest number of tokens in a step; more leave less memory. Default: vLLM's.
        max_model_len: longest sequence in tokens, for policies without such a limit. Default: that of the model.
        vllm: release of vLLM whose defaults and memory sizing apply.
        settings: settings of `kvsim.sizing.machine_settings.MachineSettings`, such as `kv_gib`, `num_blocks`,
            `tensor_parallel_size` or `times`, which may also be a custom `kvsim.StepTimeModel`.

    Raises:
        UnknownNameError: no GPU or model is listed under that name.
        UsageError: a setting is invalid.
        BudgetError: the model does not fit, or leaves no room for a cache.
    """
    known = sorted(each.name for each in fields(MachineSettings))
    for name in settings:
        if name not in known:
            raise UsageError(f"{name} is no setting of a machine; there are {', '.join(known)}.")
    stated = MachineSettings(**settings)
    check_instance("engine", engine, str, "a name such as 'vllm'")
    number_of(vllm)  # refuses what is no release
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    for name, limit in (limits | {"max_model_len": max_model_len}).items():
        if limit is not None:
            whole_number(name, limit)
    if isinstance(gpu, Recording):
        return replace(
            _of_recording(gpu, stated.times, engine, captured=not stated.enforce_eager), max_model_len=max_model_len
        )
    card, served, source = _card_and_model(gpu, model, stated)
    check_length(served, max_model_len)
    defaults = EngineDefaults.of("llm", card, vllm)
    kv_bytes = _kv_bytes(
        card, served, stated, max_model_len=max_model_len, vllm=vllm,
        max_num_seqs=max_num_seqs or defaults.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or defaults.max_num_batched_tokens,
    )  # fmt: skip
    times = _times(source, card, served, engine, captured=not stated.enforce_eager, max_num_seqs=max_num_seqs)
    return Machine(gpu=card, model=served, kv_bytes=kv_bytes, step_time=times, max_model_len=max_model_len)


def _card_and_model(
    gpu: str | Gpu | os.PathLike[str], model: str | Model | os.PathLike[str] | None, stated: MachineSettings
) -> tuple[Gpu, Model, Any]:
    """Return the GPU, the model with the settings of `stated`, and the source of their step times.

    The source is a name, a file or a `StepTimeModel`. It is None if neither `stated` nor `gpu` has one; kvsim then
    chooses the best that it has.
    """
    source, tensor_parallel_size = stated.times, stated.tensor_parallel_size
    if not isinstance(gpu, Gpu):
        if not isinstance(gpu, str | os.PathLike):
            wanted = f'a Machine, a recording of one, or a text such as "{DEFAULT_MACHINE}"'
            raise UsageError(f"a machine is {wanted}, not {described(gpu)}.")
        text = os.fspath(gpu)
        if is_card(text):
            gpu, source = find_gpu(load_card(text).gpu), source or text
        else:
            if model is None:
                text, _, model = text.partition("/")
            gpu, tensor_parallel_size = _gpus(text, stated)
    if not model:
        raise UsageError(f'a machine is a GPU and a model, such as "{DEFAULT_MACHINE}"; name the model as well.')
    check_instance("a model", model, Model | str | os.PathLike, "a name such as 'Llama-3-8B', a path or a Model")
    found = model if isinstance(model, Model) else find_model(os.fspath(model))
    settings = {each.name: getattr(stated, each.name) for each in fields(stated)}
    return gpu, served_with(found, settings | {"tensor_parallel_size": tensor_parallel_size}), source


def _kv_bytes(
    gpu: Gpu,
    model: Model,
    stated: MachineSettings,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int | None,
    vllm: str,
) -> int:
    """Return the bytes of KV cache on one GPU of each pipeline stage, summed over the stages.

    These are the bytes that `stated` gives, or else the memory that is left on the GPU.
    """
    sizes = [name for name in ("kv_gib", "num_blocks", "mem_fraction_static") if getattr(stated, name) is not None]
    if len(sizes) > 1:
        raise UsageError(f"{' and '.join(sizes)} set the same value; give only one.")
    scheduler = ContinuousSettings(max_num_batched_tokens=max_num_batched_tokens, vllm=vllm)
    kv_bytes = int(stated.kv_gib * GIB) if stated.kv_gib is not None else None
    if stated.mem_fraction_static is not None:
        kv_bytes = plan_slots(gpu, model, mem_fraction_static=stated.mem_fraction_static).kv_bytes
    budget = plan_budget(
        gpu,
        model,
        pool_settings(
            scheduler,
            model,
            captured=not stated.enforce_eager,
            gpu_memory_utilization=stated.gpu_memory_utilization or defaults_of(vllm).gpu_memory_utilization,
            kv_memory_bytes=kv_bytes,
            num_blocks=stated.num_blocks,
            oversize=stated.oversize or stated.mem_fraction_static is not None,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
        ),
    )
    # Contiguous policies also use the rest that is no whole block, so a stated size is not rounded down.
    return budget.kv_bytes_of_stages if kv_bytes is None or model.pipeline_parallel_size > 1 else kv_bytes


def machine_for(
    given: MachineLike | None, source: Recording | None, policy: AnyPolicy | str, vllm: str = DEFAULT_RELEASE
) -> Machine:
    """Return the machine `given`. With a name, it has the step times of the engine that runs `policy`.

    If `given` is None, return the machine of `source`, the recording of the requests; without a recording, that of
    `DEFAULT_MACHINE`.
    """
    if isinstance(given, Machine):
        return given
    name = policy if isinstance(policy, str) else policy.name
    engine = "hf-dynamic" if name == Static.name else "vllm"
    return machine(given or source or DEFAULT_MACHINE, engine=engine, vllm=vllm)


def _gpus(text: str, settings: MachineSettings) -> tuple[Gpu, int | None]:
    """Return the GPU that `text` names, and the tensor-parallel size.

    If `text` gives a number of GPUs, the size is this number divided by the number of data-parallel ranks. Otherwise it
    is that of `settings`, which may be None.
    """
    (gpu, number), stated, num_ranks = find_gpus(text), settings.tensor_parallel_size, settings.data_parallel_size or 1
    if number is None:
        return gpu, stated
    if stated not in (None, number // num_ranks) or number % num_ranks:
        ranks = f" in each of {num_ranks} ranks" if num_ranks > 1 else ""
        conflict = (
            f", and tensor_parallel_size is {stated}{ranks}" if stated else f", which {num_ranks} ranks cannot share"
        )
        raise UsageError(f"{text} are {number} GPUs{conflict}; give only one.")
    return gpu, number // num_ranks


def _of_recording(
    recording: Recording, times: str | os.PathLike[str] | StepTimeModel | None, engine: str, *, captured: bool
) -> Machine:
    meta = recording.meta
    gpu, model, pool = find_gpu(meta.gpu), served_model(meta), meta.pool
    if pool.num_units is None:
        raise UsageError(
            f"{recording.name} has no pool, only a growing cache, so it does not say how much memory a machine has; "
            "name a GPU and a model instead."
        )
    return Machine(
        gpu=gpu,
        model=model,
        kv_bytes=meta.kv_bytes,
        step_time=_times(times, gpu, model, engine, captured=captured and not meta.engine.get("enforce_eager")),
    )


def _times(
    source: str | os.PathLike[str] | StepTimeModel | None,
    gpu: Gpu,
    model: Model,
    engine: str,
    *,
    captured: bool,
    max_num_seqs: int | None = None,
) -> StepTimeModel:
    if source is None or isinstance(source, str | os.PathLike):
        name = None if source is None else os.fspath(source)
        return step_times(gpu, model, engine, source=name, captured=captured, max_num_seqs=max_num_seqs)
    return source
