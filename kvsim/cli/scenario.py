"""Setup of a simulation that its flags describe: requests, machine, memory and policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kvsim.cli.machine_flags import (
    AUTO_LENGTH,
    GIB,
    caches_prefixes,
    engine_limits,
    gib_of_slots,
    limit_notes,
    machine_of,
    memory_of,
)
from kvsim.cli.options import settings_from
from kvsim.cli.show import command_line
from kvsim.cli.workload import cut_at, is_generated, workload_and_source
from kvsim.errors import UsageError
from kvsim.policies.releases import DEFAULT_RELEASE
from kvsim.policies.settings import PrefixEviction
from kvsim.setting_fields import settings_in, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.experiments.rungs import Rung
    from kvsim.hardware import Gpu
    from kvsim.kv_groups import KVCacheLayout
    from kvsim.models import Model
    from kvsim.policies import AnyPolicy, ContinuousSettings, Paged, PagedSettings, Radix, RadixSettings
    from kvsim.recording import Meta, RecordedRequests, Recording
    from kvsim.simulation import EngineName, Machine
    from kvsim.steptime import StepTimeModel
    from kvsim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Setup of a simulation: requests, machine, memory, and the flags from which a policy is made."""

    workload: Workload
    gpu: Gpu
    model: Model
    kv_bytes: int
    """Bytes of the KV cache on one GPU. With pipeline stages, the sum over the stages, one GPU of each."""
    block_size: int
    """Number of tokens in a block of a paged cache."""
    max_model_len: int
    flags: dict[str, Any]

    def policy(self, name: str) -> AnyPolicy:
        """Return the policy called `name`, or the policy in the Python file `name`, with the settings of the flags.

        If a Python file changes a setting from its default, that value holds as if a flag stated it.

        Raises:
            UsageError: the server does not start with these settings, or a flag and the file have the same setting.
        """
        from kvsim.policies import Contiguous, Radix, Static
        from kvsim.policies.custom import check_hooks, is_policy_file, policy_from_file
        from kvsim.policies.settings import OF_PAGED, ContiguousSettings, StaticSettings

        if name == Static.name:
            return Static(scheduler=settings_from(StaticSettings, self.flags, max_model_len=self.max_model_len))
        if name == Radix.name:
            return self._radix()
        if name == Contiguous.name:
            others = {key: None if key in OF_PAGED else value for key, value in self.flags.items()}
            scheduler = replace(self, flags=others)._scheduler()
            return Contiguous(scheduler=scheduler, cache=settings_from(ContiguousSettings, self.flags))
        if not is_policy_file(name):
            return self._paged()
        custom = policy_from_file(name)
        check_hooks(custom)
        of_scheduler, of_cache = (_changed(each, self.flags, name) for each in (custom.scheduler, custom.cache))
        paged = replace(self, flags={**self.flags, **of_scheduler, **of_cache})._paged()
        custom.scheduler, custom.cache = replace(paged.scheduler, **of_scheduler), replace(paged.cache, **of_cache)
        return custom

    def _paged(self) -> Paged:
        from kvsim.kv_groups.specs import check_block_size
        from kvsim.policies import Paged

        scheduler = self._scheduler()
        check_block_size(self.model, self.flags["block_size"])
        return Paged(scheduler=scheduler, cache=paged_settings(self.flags, self.gpu, self.model, self.block_size))

    def _radix(self) -> Radix:
        """Return SGLang's policy. Settings without a flag have SGLang's defaults for the GPU and the model."""
        from kvsim.kv_groups.sglang_pools import PoolBytes
        from kvsim.policies import Radix, SGLangSettings
        from kvsim.sizing.sglang_budget import DEFAULT_RATIO, check_chunk, default_running_requests, defaults_on

        given = {name: value for name, value in self.flags.items() if value is not None}
        num_slots = PoolBytes.of(self.model).num_slots(self.kv_bytes, given.get("swa_full_tokens_ratio", DEFAULT_RATIO))
        running = {"max_running_requests": default_running_requests(num_slots, self.max_model_len)}
        flags = defaults_on(self.gpu, self.model) | running | given
        scheduler = settings_from(SGLangSettings, flags, context_length=self.max_model_len)
        cache = radix_cache(flags, self.gpu)
        if "page_size" not in given:  # a given size stays, also where SGLang would not start
            check_chunk(scheduler.chunked_prefill_size, cache.page_size)
        return Radix(scheduler=scheduler, cache=cache)

    def machine(self, policy: AnyPolicy) -> Machine:
        """Return the machine that `policy` runs on, with its step times.

        All policies have vLLM's step times, except static batches, which have those of Hugging Face. In comparisons of
        policies, --times may give vLLM's step times to static batches, too.
        """
        from kvsim.policies import Static
        from kvsim.simulation import Machine

        captured = isinstance(policy, Static) or not self.flags["enforce_eager"]
        times = self._step_time(policy, captured=captured)
        return Machine(gpu=self.gpu, model=self.model, kv_bytes=self.kv_bytes, step_time=times)

    def _step_time(self, policy: AnyPolicy, *, captured: bool = True) -> StepTimeModel:
        """Return the step times of the profile or machine card that the flags name. If they name none, return the best
        that kvsim has for the machine.

        `captured` is True if steps run as CUDA graphs. A profile of an engine other than the policy's is refused; with
        --times own, it is ignored.
        """
        from kvsim.machines import KERNELS, is_card, step_times
        from kvsim.policies import Radix, Static
        from kvsim.profiles import find

        is_hf = isinstance(policy, Static) and self.flags.get("clock", "own") == "own"
        engine = f"hf-{self.flags['preallocated'] or 'dynamic'}" if is_hf else "vllm"
        source = self.flags["times"]
        if self.flags.get("clock") != "own":
            pass  # a profile of another engine is refused by `step_times`
        elif source == KERNELS:
            source = source if engine == "vllm" else None
        elif source not in (None, "none") and not is_card(source) and find(source).engine != engine:
            source = None
        num_seqs = None if isinstance(policy, Static | Radix) else policy.scheduler.max_num_seqs
        return step_times(self.gpu, self.model, engine, source=source, captured=captured, max_num_seqs=num_seqs)

    def simulate(
        self, policy: AnyPolicy, *, progress: Callable[[int, int], None] | None = None, engine: EngineName = "auto"
    ) -> Recording:
        """Simulate the requests under `policy`."""
        from kvsim.simulation import simulate

        return simulate(
            self.workload,
            policy,
            self.machine(policy),
            refuse_misfits=self.flags["refuse_misfits"],
            check=self.flags["check"],
            progress=progress,
            engine=engine,
            command=command_line(),
        )

    def ladder(self) -> tuple[Rung, ...]:
        """Return the servers that `kvsim compare --ladder` compares, with the limits of the flags."""
        from kvsim.experiments.rungs import rungs
        from kvsim.policies.settings import PagedSettings, StaticSettings

        return rungs(
            self._scheduler(),
            block_size=self.block_size,
            batch_size=settings_from(StaticSettings, self.flags).batch_size,
            watermark=settings_from(PagedSettings, self.flags).watermark,
        )

    def times_of(self, rung: Rung) -> StepTimeModel:
        """Return vLLM's step times for one of the servers of `compare --ladder`; they depend on its CUDA graphs."""
        from kvsim.policies import Paged

        return replace(self, flags=self.flags | {"clock": "one"})._step_time(Paged(), captured=rung.captured)

    def _scheduler(self) -> ContinuousSettings:
        from kvsim.kv_groups.specs import check_length
        from kvsim.policies.settings import ContinuousSettings

        check_length(self.model, self.flags["max_model_len"])
        num_seqs, num_tokens = engine_limits(self.flags, self.gpu, self.max_model_len)
        settings = settings_from(
            ContinuousSettings,
            self.flags,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_tokens,
            max_model_len=self.max_model_len,
            acceptance_seed=self.flags["seed"],
        )
        settings.check_starts()
        return settings

    @property
    def notes(self) -> list[str]:
        """Sentences on defaults that vLLM changes because of the other settings, and on optimal eviction."""
        words = limit_notes(self.flags, self.gpu, self.max_model_len)
        if self.flags["eviction"] == PrefixEviction.OPTIMAL.value:
            words.append("optimal eviction knows all requests: a bound for rules of eviction, which no server reaches")
        return words


def _changed(settings: Any, flags: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return the values in `settings` that differ from their defaults, by name.

    `settings` are those of a custom policy, whose Python `file` is named in errors.

    Raises:
        UsageError: such a setting is given as a flag, too.
    """
    kind: Any = type(settings)
    # Defaults depend on the release, which the file may state.
    values = values_of(settings)
    release = {"vllm": values["vllm"]} if values.get("vllm", DEFAULT_RELEASE) != DEFAULT_RELEASE else {}
    defaults = kind(**release)
    changed = release | {name: value for name, value in values.items() if value != getattr(defaults, name)}
    for each in settings_in(kind):
        if each.name in changed and flags.get(each.name) is not None:
            flag = each.setting.flags[0]
            raise UsageError(f"{flag} has no effect: the policy in {file} sets {each.name}; leave one out.")
    return changed


def paged_settings(flags: dict[str, Any], gpu: Gpu, model: Model, block_size: int) -> PagedSettings:
    """Return the settings of the paged cache that the flags describe.

    The speed of the link to host memory is that of the flag; otherwise that of the machine card, otherwise the default.
    """
    from kvsim.policies.settings import PagedSettings

    known: dict[str, Any] = {"block_size": block_size, "enable_prefix_caching": caches_prefixes(flags, model)}
    return settings_from(PagedSettings, flags, **known, **_link_of(flags, gpu, "kv_offloading_size"))


def radix_cache(flags: dict[str, Any], gpu: Gpu) -> RadixSettings:
    """Return the settings of SGLang's cache that the flags describe.

    The speed of the link to host memory is that of the flag; otherwise that of the machine card, otherwise the default.

    Raises:
        UsageError: a setting is invalid, or requires another that is not given.
    """
    from kvsim.policies import RadixSettings

    link = _link_of(flags, gpu, "enable_hierarchical_cache")
    return settings_from(RadixSettings, flags, **{name: link[name] for name in link if name in _SPEEDS})


_SPEEDS = ("load_gb_per_s", "store_gb_per_s")
"""Names of the settings for the speed of the link from and to host memory."""
_HOST_TIERS = ("kv_offloading_size", "enable_hierarchical_cache")
"""Settings that give a server host memory for its cache: vLLM's, and SGLang's."""


def _link_of(flags: dict[str, Any], gpu: Gpu, tier: str) -> dict[str, float]:
    """Return the settings of the link to host memory; empty if `tier`, the setting that gives host memory, is off.

    Raises:
        UsageError: the speed of the link is given, and no host memory.
    """
    from kvsim.machines import card_named, card_of, host_link

    speed = flags.get("kv_offloading_gb_per_s")
    if speed is not None and not any(flags.get(name) for name in _HOST_TIERS):
        raise UsageError(
            "--kv-offloading-gb-per-s requires --kv-offloading-size or --enable-hierarchical-cache; give one."
        )
    if not flags.get(tier):
        return {}
    link = host_link(card_named(flags.get("times")) or card_of(gpu))
    return link if speed is None else link | dict.fromkeys(_SPEEDS, speed)


_SIZES = ("kv_gib", "num_blocks", "gpu_memory_utilization", "mem_fraction_static")
"""Flags that state the size of the KV cache."""
_OF_WEIGHTS = ("quantization", "tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size")
"""Flags that change how many bytes the weights, or the KV of a token, take on one GPU."""


def _may_use_recorded_size(flags: Mapping[str, Any]) -> bool:
    """Tell whether no flag changes the size of the cache, so that a recorded size can be used."""
    return all(flags[name] is None for name in _SIZES + _OF_WEIGHTS)


def _is_sized_by_sglang(model: Model) -> bool:
    """Tell whether SGLang's rules determine the number of slots for a model. Its policy refuses all other models."""
    return model.pipeline_parallel_size == 1 and not model.recurrent_layers


Requests: TypeAlias = "tuple[Workload, Recording | RecordedRequests | None]"
"""Requests, and the recording that they come from; None if they come from none."""


def build_scenario(
    requests_of: Callable[[dict[str, Any]], Requests] = workload_and_source,
    /,
    *,
    only_policy: str | None = None,
    **flags: Any,
) -> Scenario:
    """Build the scenario that the flags describe. `requests_of` returns the requests for the flags.

    `only_policy` is the name of the simulated policy; None if several are compared. If neither a flag nor the recording
    of the requests (on the same GPU and model) states the memory, a single policy gets the memory that its own engine
    takes by default. Several policies all get the memory of vLLM.
    """
    from kvsim.hardware import find_gpu
    from kvsim.policies import Radix

    workload, source = requests_of(flags)
    gpu, model = machine_of(flags, None if source is None else source.meta)
    same_machine = source is not None and flags["model"] is None and gpu == find_gpu(source.meta.gpu)
    recorded = source.meta if same_machine and source is not None else None
    has_size = any(flags[name] is not None for name in _SIZES)
    has_size |= recorded is not None and _may_use_recorded_size(flags)
    follows_sglang = only_policy == Radix.name and not has_size and _is_sized_by_sglang(model)
    if flags["mem_fraction_static"] is not None or follows_sglang:
        # SGLang reserves less memory beside the cache than vLLM, so its pool is oversized by vLLM's rules.
        flags |= {"kv_gib": gib_of_slots(flags, gpu, model), "mem_fraction_static": None, "oversize": True}
    kv_bytes, block_size, longest = _memory(flags, gpu, model, recorded)
    max_model_len = longest or (recorded and recorded.max_model_len) or model.max_position_embeddings
    if is_generated(flags) and max_model_len > 1 and not flags["refuse_misfits"]:
        workload = cut_at(workload, max_model_len, stated=longest is not None)
    return Scenario(
        workload=workload,
        gpu=gpu,
        model=model,
        kv_bytes=kv_bytes,
        block_size=block_size,
        max_model_len=max_model_len,
        flags=flags,
    )


def _memory(flags: dict[str, Any], gpu: Gpu, model: Model, recorded: Meta | None) -> tuple[int, int, int | None]:
    """Return the size of the cache in bytes, the block size in tokens, and max_model_len (None: the default).

    The size of the cache is that of the flags; otherwise that of the recording, otherwise what the GPU's memory leaves.
    """
    pool = recorded.pool if recorded is not None and _may_use_recorded_size(flags) else None
    if pool is None or pool.num_units is None:
        finds = flags["max_model_len"] == AUTO_LENGTH
        budget = memory_of(flags, gpu, model)
        # Contiguous policies also use the rest that is no whole block, so a stated size is not rounded down.
        is_whole = flags["kv_gib"] is None or model.pipeline_parallel_size > 1
        kv_bytes = budget.kv_bytes_of_stages if is_whole else int(flags["kv_gib"] * GIB)
        return (
            kv_bytes,
            _block_size(flags, model, budget.plan.layout),
            budget.plan.settings.max_model_len if finds else flags["max_model_len"],
        )
    if flags["max_model_len"] == AUTO_LENGTH:
        raise UsageError(
            "--max-model-len auto is for memory that kvsim computes, and this recording states its memory; give a "
            "number of tokens."
        )
    from kvsim.kv_groups import CacheSettings, cache_layout

    settings = CacheSettings(max_model_len=model.max_position_embeddings, block_size=flags["block_size"])
    block_size = _block_size(flags, model, cache_layout(model, settings))
    assert recorded is not None
    return recorded.kv_bytes, block_size, flags["max_model_len"]


def _block_size(flags: dict[str, Any], model: Model, layout: KVCacheLayout) -> int:
    """Return the setting `block_size` in tokens, from which the block sizes of several KV cache groups are derived."""
    from kvsim.kv_groups.specs import CacheSettings, smallest_block

    if layout.is_uniform:
        return layout.groups[0].block_size
    stated: int | None = flags["block_size"]
    return stated or smallest_block(model, CacheSettings(max_model_len=model.max_position_embeddings))
