"""What the flags of a command that simulates stand for: requests, a machine, an amount of memory, and a policy."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kvsim.cli.machine import (
    FIND,
    GIB,
    adjusted_words,
    caches_prefixes,
    check_at_least_one,
    engine_limits,
    machine_of,
    memory_of,
)
from kvsim.cli.offload import offload_settings
from kvsim.cli.ranges import check_ranges
from kvsim.cli.workload import cut_at, given, is_generated, workload_and_source
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.experiments.ladder import Rung
    from kvsim.hardware import Gpu
    from kvsim.kv_groups import KVCacheLayout
    from kvsim.models import Model
    from kvsim.policies import Policy
    from kvsim.recording import Meta, RecordedRequests, Recording
    from kvsim.simulation import EngineName, Machine
    from kvsim.steptime import StepTimeModel
    from kvsim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to simulate, but for the policy's name."""

    workload: Workload
    gpu: Gpu
    model: Model
    kv_bytes: int
    """Bytes of KV cache on each GPU."""
    block_size: int
    """Tokens of a block of a paged cache."""
    max_model_len: int
    flags: dict[str, Any]

    def policy(self, name: str) -> Policy:
        """The policy called `name` with the settings of the flags."""
        from kvsim.kv_groups.specs import check_block_size
        from kvsim.policies import Contiguous, Paged, Static
        from kvsim.policies.settings import ContiguousSettings, Growth, PagedSettings, Reserve, StaticSettings

        flags = self.flags
        if name == Static.name:
            return Static(
                scheduler=StaticSettings(
                    batch_size=flags["batch_size"],
                    preallocated=flags["cache"] == "static",
                    max_model_len=self.max_model_len,
                    timeout_s=flags["batch_timeout"],
                    sort_by_length=flags["sort_by_length"],
                    memory_guard=not flags["no_memory_guard"],
                )
            )
        scheduler = self._scheduler()
        if name == Contiguous.name:
            return Contiguous(
                scheduler=scheduler,
                cache=ContiguousSettings(
                    reserve=Reserve(flags["reserve"]),
                    fit=flags["fit"],
                    growth=Growth(flags["growth"]),
                    compaction=flags["compaction"],
                    request_level=flags["request_level"],
                ),
            )
        check_block_size(self.model, flags["block_size"])
        return Paged(
            scheduler=scheduler,
            cache=PagedSettings(
                block_size=self.block_size,
                enable_prefix_caching=caches_prefixes(flags, self.model),
                hybrid_manager=not flags["disable_hybrid_kv_cache_manager"],
                watermark=flags["watermark"],
                **offload_settings(flags, self.gpu),
                **self._modelled(),
            ),
        )

    def _modelled(self) -> dict[str, Any]:
        """Settings of the paged cache that no engine was compared with; those not given keep their defaults."""
        names = {
            "swap_gib": "swap_gib",
            "swap_gb_per_s": "swap_gb_per_s",
            "speculative_tokens": "num_speculative_tokens",
            "acceptance_rate": "acceptance_rate",
        }
        flags = {name: self.flags[flag] for flag, name in names.items() if self.flags[flag] is not None}
        for flag, rests_on in (("swap_gb_per_s", "swap_gib"), ("acceptance_rate", "speculative_tokens")):
            if self.flags[flag] is not None and not self.flags[rests_on]:
                raise UsageError(
                    f"--{flag.replace('_', '-')} says nothing without --{rests_on.replace('_', '-')}; give both."
                )
        return flags | {"acceptance_seed": self.flags["seed"]}

    def machine(self, policy: Policy) -> Machine:
        """The machine that `policy` runs on.

        With the flag `times` at `own`, as without it, static batches run on Hugging Face's engine and the others on
        vLLM's; at `one`, every policy has the step times of vLLM's engine, so that a comparison is like for like.
        """
        from kvsim.policies import Static
        from kvsim.simulation import Machine

        captured = isinstance(policy, Static) or not self.flags["enforce_eager"]
        times = self._step_time(policy, captured=captured)
        return Machine(gpu=self.gpu, model=self.model, kv_bytes=self.kv_bytes, step_time=times)

    def _step_time(self, policy: Policy, *, captured: bool = True) -> StepTimeModel:
        """The profile or the machine card that was asked for, or the best that there is; see `kvsim.machines`.

        A profile of another engine than the policy's is left aside: a comparison has several engines.

        Raises:
            UsageError: the profile or card is of another model or machine.
        """
        from kvsim.machines import is_card, step_times
        from kvsim.policies import Static
        from kvsim.profiles import find

        own = isinstance(policy, Static) and self.flags.get("times", "own") == "own"
        engine = f"hf-{self.flags['cache']}" if own else "vllm"
        source = self.flags["profile"]
        if source not in (None, "none") and not is_card(source) and find(source).engine != engine:
            source = None
        num_seqs = None if isinstance(policy, Static) else policy.scheduler.max_num_seqs
        return step_times(self.gpu, self.model, engine, source=source, captured=captured, max_num_seqs=num_seqs)

    def simulate(
        self, policy: Policy, *, progress: Callable[[int, int], None] | None = None, engine: EngineName = "auto"
    ) -> Recording:
        """Run it under one policy."""
        from kvsim.simulation import simulate

        return simulate(
            self.workload,
            policy,
            self.machine(policy),
            refuse_misfits=self.flags["refuse_misfits"],
            check=self.flags["check"],
            progress=progress,
            engine=engine,
            command=shlex.join(["kvsim", *sys.argv[1:]]),
        )

    def ladder(self) -> tuple[Rung, ...]:
        """The rungs of `kvsim compare --ladder` with the limits of the flags."""
        from kvsim.experiments.ladder import rungs

        flags = self.flags
        return rungs(
            self._scheduler(),
            block_size=self.block_size,
            batch_size=flags["batch_size"],
            watermark=flags["watermark"],
        )

    def times_of(self, rung: Rung) -> StepTimeModel:
        """Step times of one engine, vLLM's, launched as captured graphs or kernel by kernel."""
        from dataclasses import replace

        from kvsim.policies import Paged

        return replace(self, flags=self.flags | {"times": "one"})._step_time(Paged(), captured=rung.captured)

    def _scheduler(self) -> Any:
        from kvsim.kv_groups.specs import check_length
        from kvsim.policies.settings import ContinuousSettings, Order

        flags = self.flags
        check_length(self.model, flags["max_model_len"])
        num_seqs, num_tokens = engine_limits(flags, self.gpu, self.max_model_len)
        settings = ContinuousSettings(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_tokens,
            max_model_len=self.max_model_len,
            async_scheduling=not flags["no_async_scheduling"],
            order=Order(flags["order"]),
            enable_chunked_prefill=not flags["no_chunked_prefill"],
            long_prefill_token_threshold=flags["long_prefill_token_threshold"],
        )
        settings.check_starts()
        return settings

    @property
    def notes(self) -> list[str]:
        """Return the settings that vLLM adjusts by itself under the flags."""
        return adjusted_words(self.flags, self.gpu, self.max_model_len)


Requests: TypeAlias = "tuple[Workload, Recording | RecordedRequests | None]"
"""Requests, and what they were recorded with, if they were."""


def build_scenario(
    requests_of: Callable[[dict[str, Any]], Requests] = workload_and_source, /, **flags: Any
) -> Scenario:
    """The scenario that the flags describe; `requests_of` finds its requests.

    Raises:
        UsageError: two flags contradict each other, or one cannot be right.
    """
    from kvsim.hardware import find_gpu

    check_ranges(flags)
    workload, source = requests_of(flags)
    gpu, model = machine_of(flags, None if source is None else source.meta)
    same_machine = source is not None and flags["model"] is None and gpu == find_gpu(source.meta.gpu)
    recorded = source.meta if same_machine and source is not None else None
    kv_bytes, block_size, longest = _memory(flags, gpu, model, recorded)
    recorded_len = _recorded_len(recorded) if recorded is not None else None
    max_model_len = given(longest, recorded_len or model.max_position_embeddings)
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


def _recorded_len(meta: Meta) -> int | None:
    """The longest sequence that a recorded run allowed: a real engine says so itself, a simulation with its policy."""
    length = meta.engine.get("max_model_len", meta.policy.get("max_model_len"))
    return length if isinstance(length, int) else None


def _memory(flags: dict[str, Any], gpu: Gpu, model: Model, recorded: Meta | None) -> tuple[int, int, int | None]:
    """Bytes of the cache (see `Machine.kv_bytes`), tokens of a block, and the longest sequence if that was to be found.

    The bytes are as told, as in the recording, or what the GPU leaves.
    """
    told = ["kv_gib", "num_blocks", "gpu_memory_utilization", "quantization"]
    told += ["tensor_parallel_size", "pipeline_parallel_size"]
    pool = recorded.pool if recorded is not None and all(flags[name] is None for name in told) else None
    if pool is None or pool.num_units is None:
        finds = flags["max_model_len"] == FIND
        budget = memory_of(
            flags,
            gpu,
            model,
            find_max_model_len=finds,
            prefix_caching=caches_prefixes(flags, model),
            hybrid_manager=not flags["disable_hybrid_kv_cache_manager"],
        )
        # Contiguous policies use what whole blocks leave over, so a stated size stays as it is.
        is_whole = flags["kv_gib"] is None or model.pipeline_parallel_size > 1
        kv_bytes = budget.kv_bytes_in_all if is_whole else int(flags["kv_gib"] * GIB)
        return (
            kv_bytes,
            _block_size(flags, model, budget.plan.layout),
            budget.plan.settings.max_model_len if finds else flags["max_model_len"],
        )
    if flags["max_model_len"] == FIND:
        raise UsageError(
            "--max-model-len auto asks what a GPU leaves room for; the recording says how much memory it had."
        )
    from kvsim.kv_groups import CacheSettings, cache_layout

    check_at_least_one(flags, "block_size")
    settings = CacheSettings(max_model_len=model.max_position_embeddings, block_size=flags["block_size"])
    block_size = _block_size(flags, model, cache_layout(model, settings))
    # The pool's units and those before the first: vLLM's null block is memory too.
    return (pool.num_units + pool.first_unit) * pool.bytes_per_unit, block_size, flags["max_model_len"]


def _block_size(flags: dict[str, Any], model: Model, layout: KVCacheLayout) -> int:
    """Tokens of a block as the engine is told: those of several groups follow from it."""
    from kvsim.kv_groups.specs import CacheSettings, smallest_block

    if layout.is_uniform:
        return layout.groups[0].block_size
    stated: int | None = flags["block_size"]
    return stated or smallest_block(model, CacheSettings(max_model_len=model.max_position_embeddings))
