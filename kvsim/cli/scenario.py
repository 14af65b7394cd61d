"""What the flags of a command that simulates stand for: requests, a machine, an amount of memory, and a policy."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.cli.workload import given, workload_and_source
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.hardware import Gpu
    from kvsim.ladder import Rung
    from kvsim.models import Model
    from kvsim.policies import Policy
    from kvsim.recording import Meta, Recording
    from kvsim.simulation import Machine
    from kvsim.steptime import StepTimeModel
    from kvsim.workload import Workload

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What to simulate, but for the policy's name."""

    workload: Workload
    gpu: Gpu
    model: Model
    kv_bytes: int
    max_model_len: int
    flags: dict[str, Any]

    def policy(self, name: str) -> Policy:
        """The policy called `name` with the settings of the flags."""
        from kvsim.policies import Contiguous, Paged, Static
        from kvsim.scheduling.settings import ContiguousSettings, Growth, PagedSettings, Reserve, StaticSettings

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
        return Paged(
            scheduler=scheduler,
            cache=PagedSettings(
                block_size=flags["block_size"],
                enable_prefix_caching=not flags["no_prefix_caching"],
                watermark=flags["watermark"],
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
        from kvsim.simulation import Machine

        return Machine(gpu=self.gpu, model=self.model, kv_bytes=self.kv_bytes, step_time=self._step_time(policy))

    def _step_time(self, policy: Policy, *, captured: bool = True) -> StepTimeModel:
        """The profile that was asked for, carried to another GPU if need be, or the shipped one that matches.

        A roofline, uncalibrated, where there is none, and for an engine that the profile is not of. Profiles are
        watched, so that what was simulated can say whether it left the range that was fitted.

        Raises:
            UsageError: the profile is of another model.
        """
        from kvsim.extrapolation import Watched
        from kvsim.policies import Static
        from kvsim.profiles import carried, find, match
        from kvsim.steptime import Roofline

        cache = self.flags["cache"]
        own = isinstance(policy, Static) and self.flags.get("times", "own") == "own"
        engine = f"hf-{cache}" if own else "vllm"
        if self.flags["profile"] and self.flags["profile"] != "none":
            chosen = find(self.flags["profile"])
            if chosen.engine == engine:
                fitted = carried(chosen, self.gpu, self.model, engine)
                return Watched(fitted, None if captured else fitted.times.uncaptured())
        profile = None if self.flags["profile"] == "none" else match(self.gpu, self.model, engine)
        if profile is not None:
            return Watched(profile, None if captured else profile.times.uncaptured())
        if own:
            return Roofline.for_hugging_face(self.gpu, self.model, cache=cache)
        return Roofline.for_gpu(self.gpu, self.model, enforce_eager=not captured)

    def simulate(self, policy_name: str, *, progress: Callable[[int, int], None] | None = None) -> Recording:
        """Run it under one policy."""
        from kvsim.simulation import simulate

        policy = self.policy(policy_name)
        return simulate(
            self.workload,
            policy,
            self.machine(policy),
            refuse_misfits=self.flags["refuse_misfits"],
            check=self.flags["check"],
            progress=progress,
            command=shlex.join(["kvsim", *sys.argv[1:]]),
        )

    def ladder(self) -> tuple[Rung, ...]:
        """The rungs of `kvsim compare --ladder` with the limits of the flags."""
        from kvsim.ladder import rungs

        flags = self.flags
        return rungs(
            self._scheduler(),
            block_size=flags["block_size"],
            batch_size=flags["batch_size"],
            watermark=flags["watermark"],
        )

    def times_of(self, rung: Rung) -> StepTimeModel:
        """Step times of one engine, vLLM's, launched as captured graphs or kernel by kernel."""
        from dataclasses import replace

        from kvsim.policies import Paged

        return replace(self, flags=self.flags | {"times": "one"})._step_time(Paged(), captured=rung.captured)

    def _scheduler(self) -> Any:
        from kvsim.scheduling.settings import ContinuousSettings, EngineDefaults, Order

        flags = self.flags
        defaults = EngineDefaults.of(flags["defaults"], self.gpu.memory_bytes, is_a100=self.gpu.name.startswith("A100"))
        return ContinuousSettings(
            max_num_seqs=given(flags["max_num_seqs"], defaults.max_num_seqs),
            max_num_batched_tokens=given(flags["max_num_batched_tokens"], defaults.max_num_batched_tokens),
            max_model_len=self.max_model_len,
            async_scheduling=not flags["no_async_scheduling"],
            order=Order(flags["order"]),
            enable_chunked_prefill=not flags["no_chunked_prefill"],
            long_prefill_token_threshold=flags["long_prefill_token_threshold"],
        )


def build_scenario(**flags: Any) -> Scenario:
    """The scenario that the flags describe.

    Raises:
        UsageError: two flags contradict each other, or one cannot be right.
    """
    from kvsim.hardware import find_gpu
    from kvsim.models import Model, find_model

    workload, source = workload_and_source(flags)
    if source is None:
        gpu, model = find_gpu(flags["gpu"] or "H200"), find_model(flags["model"] or "Meta-Llama-3-8B")
    else:
        gpu = find_gpu(flags["gpu"] or source.meta.gpu)
        model = find_model(flags["model"]) if flags["model"] else Model.from_shape(source.meta.model)
    same_machine = source is not None and flags["model"] is None and gpu == find_gpu(source.meta.gpu)
    kv_bytes = _kv_bytes(flags, gpu, model, source if same_machine else None)
    recorded_len = _recorded_len(source.meta) if source is not None and same_machine else None
    max_model_len = given(flags["max_model_len"], recorded_len or model.max_position_embeddings)
    return Scenario(
        workload=workload, gpu=gpu, model=model, kv_bytes=kv_bytes, max_model_len=max_model_len, flags=flags
    )


def _recorded_len(meta: Meta) -> int | None:
    """The longest sequence that a recorded run allowed: a real engine says so itself, a simulation with its policy."""
    length = meta.engine.get("max_model_len", meta.policy.get("max_model_len"))
    return length if isinstance(length, int) else None


def _kv_bytes(flags: dict[str, Any], gpu: Gpu, model: Model, source: Recording | None) -> int:
    """Memory for keys and values: as told, as in the recording, or what the GPU leaves."""
    from kvsim.budget import plan_budget

    told = [name for name in ("kv_gib", "num_blocks", "gpu_memory_utilization") if flags[name] is not None]
    if len(told) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in told)
        raise UsageError(f"{names} say the same thing; give one of them.")
    if flags["block_size"] < 1:
        raise UsageError(f"--block-size should be at least 1, not {flags['block_size']}.")
    block_bytes = flags["block_size"] * model.kv_bytes_per_token
    if flags["kv_gib"] is not None:
        if not 0 < flags["kv_gib"] < 1e6:
            raise UsageError(f"--kv-gib should be a positive size, not {flags['kv_gib']}.")
        return int(flags["kv_gib"] * GIB)
    if flags["num_blocks"] is not None:
        if flags["num_blocks"] < 1:
            raise UsageError(f"--num-blocks should be at least 1, not {flags['num_blocks']}.")
        return int(flags["num_blocks"] * block_bytes)
    pool = source.meta.pool if source is not None else None
    if flags["gpu_memory_utilization"] is None and pool is not None and pool.num_units is not None:
        # The pool's units and those before the first: vLLM's null block is memory too.
        return (pool.num_units + pool.first_unit) * pool.bytes_per_unit
    return plan_budget(
        gpu,
        model,
        gpu_memory_utilization=0.92 if flags["gpu_memory_utilization"] is None else flags["gpu_memory_utilization"],
        block_size=flags["block_size"],
    ).kv_bytes
