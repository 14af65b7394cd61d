"""vLLM server: GPU, model, settings and replicas, and the flags that start it.

The pool follows from the settings (`kvsim.sizing.budget`), and so do the step times (`kvsim.machines`) and the
simulated policy. If the pool was recorded, its difference from the computed pool is added to every computed pool.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from kvsim.engine.host.tiered import TIERED
from kvsim.engine.paged.kv_cache import PAGED
from kvsim.errors import BudgetError, UsageError, described, shortened
from kvsim.fitting.checkpoint import command_of
from kvsim.fitting.searched_server import NamedLimit, SearchedServer
from kvsim.hardware import Gpu
from kvsim.kv_groups import CacheSettings, cache_layout
from kvsim.kv_groups.specs import smallest_block
from kvsim.machines import step_times
from kvsim.models import Model
from kvsim.policies import Paged
from kvsim.policies.drafter import pool_settings
from kvsim.policies.settings import ContinuousSettings, EngineDefaults, PagedSettings
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.setting_fields import check_instance, check_parts, is_finite, is_whole, values_of, whole_number
from kvsim.simulation import Disaggregation, Machine
from kvsim.sizing.budget import Budget, plan_budget
from kvsim.steptime import TYPICAL, Pace, RankTimes, Roofline, at_pace

if TYPE_CHECKING:
    from kvsim.engine.memory import MemoryManager
    from kvsim.steptime import StepTimeModel


_MANY_SEQS = 512
"""Value of `max_num_seqs` from which a larger one does not change step times."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Server(SearchedServer, ContinuousSettings):
    """vLLM server, and the number of its replicas behind one queue. Limits that are left out have vLLM's defaults."""

    _batch_limit, _length_limit = "max_num_seqs", "max_model_len"
    gpu_memory_utilization: float = 0.92
    block_size: int | None = None
    """Number of tokens in a block; None for vLLM's choice."""
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    cache: PagedSettings = field(default_factory=PagedSettings)
    """Settings of the offload to host memory, and `hybrid_manager`.

    The block size, prefix caching and watermark in `cache` are ignored, because the server has fields for them.
    """
    in_process: bool = False
    """True if the engine runs in the process of its caller."""
    num_blocks: int | None = None
    """Value of `num_gpu_blocks_override`, null block included; None for the computed number."""
    unaccounted_bytes: int = 0
    """Bytes by which a recorded pool is larger than the computed one, on each GPU; negative if it is smaller."""
    apart: Disaggregation | None = None
    pace: Pace = TYPICAL
    """Factors on host and GPU times, measured in a recording of this machine; 1 without a recording."""

    def __post_init__(self) -> None:
        SearchedServer.__post_init__(self)
        ContinuousSettings.__post_init__(self)
        self._check_fields()
        longest = self.max_model_len or self.model.max_position_embeddings
        num_seqs, num_tokens = EngineDefaults.of("server", self.gpu, self.vllm).limits(
            self.max_num_seqs, self.max_num_batched_tokens, longest, chunked=self.enable_chunked_prefill
        )
        limits = {"max_num_seqs": num_seqs, "max_num_batched_tokens": num_tokens, "max_model_len": longest}
        for name, limit in limits.items():
            object.__setattr__(self, name, limit)

    def _check_fields(self) -> None:
        """Check the fields that are no settings of the scheduler, and convert numbers of NumPy."""
        share = self.gpu_memory_utilization
        if not (is_finite(share) and 0 < share <= 1):
            raise UsageError(
                f"gpu_memory_utilization is {shortened(share)}; it must be a number above 0 and at most 1."
            )
        check_parts(self, cache=PagedSettings, pace=Pace)
        check_instance("apart", self.apart, Disaggregation | None, "a Disaggregation or None")
        check_instance("in_process", self.in_process, bool, "True or False")
        if not is_whole(self.unaccounted_bytes):
            raise UsageError(f"unaccounted_bytes should be an integer, not {described(self.unaccounted_bytes)}.")
        for name, factor in self.pace._asdict().items():
            if not (is_finite(factor) and factor > 0):
                raise UsageError(f"the {name} of pace should be a number above 0, not {described(factor)}.")
        if self.num_blocks is not None:
            object.__setattr__(self, "num_blocks", whole_number("num_blocks", self.num_blocks))
        block_size = {} if self.block_size is None else {"block_size": self.block_size}
        own: dict[str, Any] = {
            "enable_prefix_caching": self.enable_prefix_caching,
            "watermark": self.watermark,
            **block_size,
        }
        checked = PagedSettings(**own)
        for name in own:
            object.__setattr__(self, name, getattr(checked, name))

    @property
    def token_limit(self) -> NamedLimit:
        """Limit of the tokens in one step: `max_num_batched_tokens`."""
        return NamedLimit("max_num_batched_tokens", self.max_num_batched_tokens)

    @property
    def memory(self) -> MemoryManager:
        """Kind of memory of the simulated engine, on which its machine code depends."""
        return TIERED if self.cache.kv_offloading_size > 0 else PAGED

    def on_gpu(self, gpu: Gpu) -> Self:
        """Return this server on another GPU, without the factors and step times of the former machine."""
        return replace(self, gpu=gpu, times=None, pace=TYPICAL)

    def num_requests_of(self, num_tokens: int) -> int:
        """Return the number of requests of `num_tokens` tokens that the pool holds at once."""
        return self.budget().max_sequences(num_tokens)

    def pool_words(self, num_units: int) -> str:
        """Describe `num_units` blocks of the pool, such as "1,234 blocks"."""
        return f"{num_units:,} blocks"

    def budget(self) -> Budget:
        """Return the memory budget, without `unaccounted_bytes`."""
        return _budget(self)

    def machine(self) -> Machine:
        """Return the machine of one replica."""
        budget = self.budget()
        kv_bytes = budget.kv_bytes + self.unaccounted_bytes
        if kv_bytes < 2 * budget.bytes_per_block:
            raise BudgetError(f"nothing is left on {self.gpu.name} for the KV cache of {self.model.name}.")
        return Machine(gpu=self.gpu, model=self.model, kv_bytes=kv_bytes, step_time=self.step_time())

    def policy(self) -> Paged:
        """Return the policy `paged` with the settings of this server.

        Raises:
            UsageError: vLLM would not start with these settings.
        """
        scheduler = ContinuousSettings(**values_of(self))
        scheduler.check_starts()
        return Paged(
            scheduler=scheduler,
            cache=replace(
                self.cache,
                block_size=self._block_size(),
                enable_prefix_caching=self.enable_prefix_caching,
                watermark=self.watermark,
            ),
        )

    def starting(self) -> Self:
        """Return this server. If vLLM would not start, `max_model_len` is reduced to the longest that fits."""
        try:
            self.budget()
        except BudgetError:
            longest = _planned(self, find_max_model_len=True).plan.settings.max_model_len
            return replace(self, max_model_len=longest)
        return self

    def command(self) -> str:
        """Return the command that starts one replica, or a sentence that no checkpoint is known."""
        return command_of(["vllm", "serve"], self.model, self.name, self._settings())

    def _settings(self) -> list[str]:
        """Return the flags for the limits, and all other flags that differ from vLLM's defaults."""
        model, size, blocks = self.model, self.model.tensor_parallel_size, self.num_blocks
        extra = self._offload_settings() if self.cache.kv_offloading_size else {}
        values = {
            "--tensor-parallel-size": f"{size}" if size > 1 else "",
            "--data-parallel-size": f"{model.data_parallel_size}" if model.data_parallel_size > 1 else "",
            "--gpu-memory-utilization": f"{self.gpu_memory_utilization:g}" if blocks is None else "",
            "--num-gpu-blocks-override": f"{blocks}" if blocks is not None else "",
            "--max-num-seqs": f"{self.max_num_seqs}",
            "--max-num-batched-tokens": f"{self.max_num_batched_tokens}",
            "--max-model-len": f"{self.max_model_len}",
            "--kv-cache-dtype": model.kv_cache_dtype.removeprefix("auto"),
            "--block-size": f"{self.block_size or ''}",
            "--kv-offloading-size": f"{self.cache.kv_offloading_size:g}" if self.cache.kv_offloading_size else "",
            "--kv-transfer-config": json.dumps({"kv_connector_extra_config": extra}) if extra else "",
            "--watermark": f"{self.watermark:g}" if self.watermark else "",
            "--long-prefill-token-threshold": f"{self.long_prefill_token_threshold or ''}",
            "--speculative-config": self.speculative_config,
            "--max-loras": f"{self.max_loras}" if self.enable_lora else "",
            "--max-lora-rank": f"{self.max_lora_rank}" if self.enable_lora else "",
            "--max-cpu-loras": f"{self.max_cpu_loras}" if self.max_cpu_loras not in (None, self.max_loras) else "",
        }
        caches_unasked = not model.recurrent_layers
        switches = {
            "--no-enable-chunked-prefill": not self.enable_chunked_prefill,
            "--enable-prefix-caching": self.enable_prefix_caching and not caches_unasked,
            "--no-enable-prefix-caching": caches_unasked and not self.enable_prefix_caching,
            "--disable-hybrid-kv-cache-manager": not self.cache.hybrid_manager,
            "--no-async-scheduling": not self.async_scheduling,
            "--enforce-eager": not self.captured,
            "--enable-expert-parallel": model.enable_expert_parallel,
            "--enable-lora": self.enable_lora,
        }
        flags = [part for flag, value in values.items() if value for part in (flag, value)]
        return flags + [flag for flag, is_set in switches.items() if is_set]

    def _offload_settings(self) -> dict[str, Any]:
        """Return the settings of host memory that differ from vLLM's defaults, by vLLM's names."""
        cache, usual = self.cache, PagedSettings()
        found: dict[str, Any] = {}
        if cache.kv_offloading_block_size not in (0, cache.block_size):
            found["block_size"] = cache.kv_offloading_block_size
        if cache.kv_offloading_eviction is not usual.kv_offloading_eviction:
            found["eviction_policy"] = cache.kv_offloading_eviction.value
        if cache.kv_offloading_prompt_only != usual.kv_offloading_prompt_only:
            found["offload_prompt_only"] = cache.kv_offloading_prompt_only
        return found

    def _block_size(self) -> int:
        """Return the engine's block size in tokens, from which those of several KV cache groups are derived."""
        settings = CacheSettings(max_model_len=self.max_model_len, block_size=self.block_size)
        layout = cache_layout(self.model, settings)
        return (
            layout.groups[0].block_size
            if layout.is_uniform
            else self.block_size or smallest_block(self.model, settings)
        )

    def step_time(self) -> StepTimeModel:
        """Return the model of step times. Its label states where they come from."""
        num_seqs = min(self.max_num_seqs, _MANY_SEQS)
        usual = _step_times(self.gpu, self.model, self.times, self.captured, num_seqs, self.in_process)
        if self.pace == TYPICAL:
            return usual
        factors = f"host times {self.pace.host:.2f} and GPU times {self.pace.gpu:.2f} by the recording"
        return paced(usual, self.pace, label=f"{usual.label}; {factors}")


@lru_cache(maxsize=64)
def _step_times(
    gpu: Gpu, model: Model, source: str | None, captured: bool, max_num_seqs: int, in_process: bool
) -> StepTimeModel:
    return step_times(
        gpu, model, "vllm", source=source, captured=captured, max_num_seqs=max_num_seqs, in_process=in_process
    )


def paced(times: StepTimeModel, pace: Pace, label: str = "") -> StepTimeModel:
    """Return `times` multiplied by the factors of `pace`. A custom model of step times is returned unchanged.

    `label` replaces the label of the result; empty keeps it.
    """
    coefficients = times.times if isinstance(times, WatchedProfile) else times
    if isinstance(times, RankTimes):
        slower = tuple(pace.gpu * group_s for group_s in times.group_s)
        return replace(times, own=at_pace(pace, times.own), group_s=slower, label=label or times.label)
    if not isinstance(coefficients, Roofline):
        return times
    return replace(at_pace(pace, coefficients), label=label or times.label)


@lru_cache(maxsize=1024)
def _budget(server: Server) -> Budget:
    return _planned(server)


def _planned(server: Server, *, find_max_model_len: bool = False) -> Budget:
    return plan_budget(
        server.gpu,
        server.model,
        pool_settings(
            server,
            server.model,
            captured=server.captured,
            gpu_memory_utilization=server.gpu_memory_utilization,
            max_num_seqs=server.max_num_seqs,
            max_model_len=server.max_model_len,
            find_max_model_len=find_max_model_len,
            block_size=server.block_size,
            enable_prefix_caching=server.enable_prefix_caching,
            hybrid_manager=server.cache.hybrid_manager,
            num_blocks=server.num_blocks,
        ),
    )
