"""Server that the flags of `kvsim fit` describe: vLLM's or SGLang's."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvsim.cli.options import settings_from
from kvsim.errors import BudgetError, UsageError
from kvsim.policies import Paged, Radix

if TYPE_CHECKING:
    from kvsim.fitting import SearchedServer, Server, SGLangServer
    from kvsim.recording import Meta
    from kvsim.simulation import Servers

_BY_SHARE = "give --mem-fraction-static"
_SINGLE_RUN_FLAGS = dict.fromkeys(("check", "refuse_misfits"), "leave it out, or use kvsim run")
"""Flags that only a single simulation has, with the advice that is printed if `kvsim fit` is given one."""
_NOT_SEARCHED = {
    Paged.name: {
        "swap_gib": "leave it out, or use kvsim run",
        "kv_gib": "leave it out, or use kvsim run",
        "mem_fraction_static": "give --gpu-memory-utilization, or --policy radix",
        "oversize": "leave it out, or use kvsim run",
        "pipeline_parallel_size": "leave it out, or use kvsim size",
        "order": "leave it out, or use kvsim run",
        **_SINGLE_RUN_FLAGS,
    },
    Radix.name: {
        "kv_gib": _BY_SHARE,
        "num_blocks": _BY_SHARE,
        "gpu_memory_utilization": _BY_SHARE,
        "block_size": "give --page-size",
        "oversize": "leave it out",
        "pipeline_parallel_size": "leave it out, or take --policy paged",
        "decode_context_parallel_size": "leave it out, or take --policy paged",
        "data_parallel_size": "give --replicas",
        "enable_expert_parallel": "leave it out, or take --policy paged",
        **_SINGLE_RUN_FLAGS,
    },
}
"""Flags that `kvsim fit` does not accept, by policy. The value of a flag is the advice that is printed."""


def server_of(flags: dict[str, Any], fleet: Servers, meta: Meta | None = None) -> SearchedServer:
    """Return the server that the flags describe. Limits without a flag have the engine's defaults.

    Without --gpu and --model, both are those of `meta`, the metadata of the recorded requests.
    """
    _check_searched(flags)
    server_from = _sglang_server if flags["policy"] == Radix.name else _vllm_server
    server = server_from(flags, fleet, meta)
    with suppress(BudgetError):  # the search reports a model that does not fit; only wrong flags are refused here
        server.machine()
    return server


def _vllm_server(flags: dict[str, Any], fleet: Servers, meta: Meta | None) -> Server:
    from kvsim.cli.machine_flags import AUTO_LENGTH, engine_limits, machine_of
    from kvsim.cli.scenario import paged_settings
    from kvsim.fitting import Server
    from kvsim.kv_groups.specs import check_block_size, check_length
    from kvsim.policies.releases import defaults_of
    from kvsim.policies.settings import ContinuousSettings
    from kvsim.setting_fields import values_of
    from kvsim.simulation import Disaggregation

    gpu, model = machine_of(flags, meta)
    length, share = flags["max_model_len"], flags["gpu_memory_utilization"]
    if length == AUTO_LENGTH:  # auto: the model's longest
        length = None
    check_length(model, length)
    check_block_size(model, flags["block_size"])
    longest = length or model.max_position_embeddings
    num_seqs, num_tokens = engine_limits(flags, gpu, longest)
    limits = {"max_num_seqs": num_seqs, "max_num_batched_tokens": num_tokens, "max_model_len": longest}
    scheduler = settings_from(ContinuousSettings, flags, **limits, acceptance_seed=flags["seed"])
    cache = paged_settings(flags, gpu, model, flags["block_size"] or 16)
    return Server(
        gpu=gpu,
        model=model,
        gpu_memory_utilization=defaults_of(scheduler.vllm).gpu_memory_utilization if share is None else share,
        block_size=flags["block_size"],
        enable_prefix_caching=cache.enable_prefix_caching,
        watermark=cache.watermark,
        cache=cache,
        captured=not flags["enforce_eager"],
        num_blocks=flags["num_blocks"],
        name=flags["model"] or "",
        replicas=fleet.number,
        apart=fleet if isinstance(fleet, Disaggregation) else None,
        times=flags["times"],
        **values_of(scheduler),
    )


def _sglang_server(flags: dict[str, Any], fleet: Servers, meta: Meta | None) -> SGLangServer:
    from kvsim.cli.machine_flags import AUTO_LENGTH, machine_of
    from kvsim.cli.scenario import radix_cache
    from kvsim.fitting import SGLangServer
    from kvsim.simulation import Disaggregation

    if isinstance(fleet, Disaggregation):
        raise UsageError("prefill and decode servers of SGLang are not modelled; leave out --prefill and --decode, or "
                         "take --policy paged.")  # fmt: skip
    gpu, model = machine_of(flags, meta)
    server = settings_from(
        SGLangServer,
        flags,
        gpu=gpu,
        model=model,
        context_length=None if flags["max_model_len"] == AUTO_LENGTH else flags["max_model_len"],
        mem_fraction_static=flags["mem_fraction_static"],
        page_size=flags["page_size"],
        disable_radix_cache=flags["disable_radix_cache"] or False,
        cache=radix_cache(flags, gpu),
        captured=not flags["enforce_eager"],
        name=flags["model"] or "",
        replicas=fleet.number,
        times=flags["times"],
    )
    server.policy()  # checks the settings
    return server


def _check_searched(flags: dict[str, Any]) -> None:
    if flags["eviction"] == "optimal":
        raise UsageError("--eviction optimal is a bound that no server reaches; leave it out.")
    for name, instead in _NOT_SEARCHED[flags["policy"]].items():
        if flags[name] and (name, flags[name]) != ("order", "fcfs"):  # the default may be given
            raise UsageError(f"--{name.replace('_', '-')} is not searched by kvsim fit; {instead}.")
