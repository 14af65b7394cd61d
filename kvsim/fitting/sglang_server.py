"""SGLang server: GPU, model, arguments and replicas, and the command that starts it.

`kvsim.sizing.sglang_budget` computes its slots, and the policy `radix` simulates it. Its steps have the times of vLLM's
host and kernels, because SGLang's own were not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from kvsim.engine.initialization import memory_of
from kvsim.errors import BudgetError, UsageError, shortened
from kvsim.fitting.checkpoint import command_of
from kvsim.fitting.searched_server import NamedLimit, SearchedServer
from kvsim.hardware import Gpu
from kvsim.kv_groups.sglang_pools import PoolBytes
from kvsim.machines import step_times
from kvsim.models import Model
from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.setting_fields import check_parts, is_finite, python_setting, settings_in, values_of
from kvsim.simulation import Machine
from kvsim.sizing.activations import peak_activations
from kvsim.sizing.sglang_budget import (
    SlotBudget,
    check_chunk,
    default_fraction,
    default_running_requests,
    defaults_on,
    least_reserve,
    page_sizes,
    plan_slots,
)

if TYPE_CHECKING:
    from kvsim.engine.memory import MemoryManager

_CACHE_TYPES = {"auto": "", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "bfloat16": "bf16"}
"""SGLang's name of a cache type, by kvsim's name; empty for SGLang's default. Types that SGLang lacks are left out."""
_BY_ENVIRONMENT = (
    "init_new_token_ratio", "min_new_token_ratio_factor", "new_token_ratio_decay_steps", "retract_decode_steps",
    "clip_max_new_tokens_estimation", "disable_consecutive_prefill_overlap", "swa_eviction_interval",
)  # fmt: skip
"""Settings that SGLang reads from environment variables, such as SGLANG_RETRACT_DECODE_STEPS."""
_OF_PRIORITIES = ("fcfs", "lof")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SGLangServer(SearchedServer, SGLangSettings):
    """SGLang server, and the number of its replicas behind one queue.

    The arguments have SGLang's names and meaning. Those that are left out have SGLang's defaults. The default of
    `mem_fraction_static` follows from the GPU, the size of a chunk and the number of GPUs.
    """

    _batch_limit, _length_limit = "max_running_requests", "context_length"
    max_running_requests: int = python_setting(None, "Requests that run at once; None: by the pool.", at_least=1)
    context_length: int = python_setting(None, "Longest sequence in tokens; None: the model's.", at_least=8)
    chunked_prefill_size: int = python_setting(
        None, "Tokens of prompts in one step; None: by the GPU.", at_least=-1, at_most=1 << 31
    )
    mem_fraction_static: float | None = None
    page_size: int = field(default=None)  # type: ignore[assignment]
    """Number of slots that are allocated together; None for the page of SGLang's attention kernel on this GPU."""
    disable_radix_cache: bool = False
    cache: RadixSettings = field(default_factory=RadixSettings)
    """Settings of the cache. Its `page_size` and `disable_radix_cache` are ignored: they are fields of the server."""

    def __post_init__(self) -> None:
        SearchedServer.__post_init__(self)
        share = self.mem_fraction_static
        if share is not None and not is_finite(share):
            raise UsageError(f"mem_fraction_static is {shortened(share)}; it must be above 0 and below 1.")
        check_parts(self, cache=RadixSettings)
        defaults: dict[str, Any] = {
            "context_length": self.model.max_position_embeddings,
            **defaults_on(self.gpu, self.model),
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        cache = replace(self.cache, page_size=self.page_size, disable_radix_cache=self.disable_radix_cache)
        object.__setattr__(self, "cache", cache)
        if self.max_running_requests is None:
            object.__setattr__(self, "max_running_requests", self._default_running_requests)
        SGLangSettings.__post_init__(self)

    @property
    def fraction(self) -> float:
        """Value of `mem_fraction_static`: the stated one, or SGLang's default."""
        stated = self.mem_fraction_static
        return default_fraction(self.gpu, self.model, self.token_limit.value) if stated is None else stated

    @property
    def token_limit(self) -> NamedLimit:
        """Limit of prompt tokens in a step: `chunked_prefill_size`; `max_prefill_tokens` if prompts are not cut."""
        if self.chunked_prefill_size > 0:
            return NamedLimit("chunked_prefill_size", self.chunked_prefill_size)
        return NamedLimit("max_prefill_tokens", self.max_prefill_tokens)

    @property
    def full_words(self) -> str:
        """Second half of a sentence that begins with "6,400 slots hold 3 requests": why further requests wait."""
        return (
            "; a request waits until there is room for its prompt, its whole limit, and the share of the running "
            "answers that admission expects (schedule_conservativeness)"
        )

    @property
    def caveat(self) -> str:
        """Sentence about the step times, which are vLLM's."""
        return "SGLang's pace was not measured: steps take the time of vLLM's host and kernels."

    @property
    def memory(self) -> MemoryManager:
        """Kind of memory of the simulated engine, on which its machine code depends."""
        return memory_of(self.policy())

    @property
    def spare_bytes(self) -> int:
        """Bytes that weights, slots and an estimate of the largest step leave. SGLang does not measure that step."""
        try:
            left = self.budget().free_later_bytes
        except BudgetError:
            return 0  # the outcome has the reason
        activations, _ = peak_activations(self.model, self.token_limit.value, self.max_running_requests)
        return left - activations - least_reserve(self.gpu, self.model)

    def on_gpu(self, gpu: Gpu) -> Self:
        """Return this server on another GPU, with the page size of the attention kernels there."""
        sizes = page_sizes(gpu, self.model)
        page_size = self.page_size if not sizes or self.page_size in sizes else sizes[0]
        return replace(self, gpu=gpu, times=None, page_size=page_size)

    def budget(self) -> SlotBudget:
        """Return the memory budget of each GPU, with SGLang's share `fraction`."""
        return _budget(self.gpu, self.model, self.fraction, self.page_size)

    def machine(self) -> Machine:
        """Return the machine of one replica."""
        times = step_times(self.gpu, self.model, "vllm", source=self.times, captured=self.captured)
        return Machine(gpu=self.gpu, model=self.model, kv_bytes=self.budget().kv_bytes, step_time=times)

    def policy(self) -> Radix:
        """Return the policy `radix` with the arguments of this server.

        Raises:
            UsageError: SGLang would not start with these arguments.
        """
        self._check_arguments()
        return Radix(scheduler=SGLangSettings(**values_of(self)), cache=self.cache)

    def num_requests_of(self, num_tokens: int) -> int:
        """Return the number of requests of `num_tokens` tokens that the slots hold at once."""
        slots = self.policy().num_slots(self.budget().kv_bytes, PoolBytes.of(self.model))
        return slots // (-(-num_tokens // self.page_size) * self.page_size)

    def pool_words(self, num_units: int) -> str:
        """Describe `num_units` pages of the pool, such as "6,400 slots in pages of 64"."""
        slots = f"{num_units * self.page_size:,} slots"
        return slots if self.page_size == 1 else f"{slots} in pages of {self.page_size}"

    def command(self) -> str:
        """Return the command that starts one replica, or a sentence that no checkpoint is known."""
        program = [*self._environment(), "python", "-m", "sglang.launch_server", "--model-path"]
        return command_of(program, self.model, self.name, self._arguments())

    def _arguments(self) -> list[str]:
        """Return the arguments for the limits, and all other arguments that differ from SGLang's defaults."""
        size = self.model.tensor_parallel_size
        found = [] if size == 1 else ["--tp-size", f"{size}"]
        found += ["--mem-fraction-static", f"{self.fraction:g}"]
        for name, value in (self.batch_limit, ("chunked_prefill_size", self.chunked_prefill_size), self.length_limit):
            found += [_flag(name), f"{value}"]
        if cache_type := _CACHE_TYPES.get(self.model.kv_cache_dtype):
            found += ["--kv-cache-dtype", cache_type]
        if self.page_size != 1:
            found += ["--page-size", f"{self.page_size}"]
        found += ["--disable-radix-cache"] * self.disable_radix_cache + ["--disable-cuda-graph"] * (not self.captured)
        for name, value in self._stated().items():
            if name not in _BY_ENVIRONMENT:
                found += [_flag(name)] if value is True else [_flag(name), f"{value}"]
        return found

    def _environment(self) -> list[str]:
        stated = self._stated()
        return [f"SGLANG_{name.upper()}={stated[name]}" for name in _BY_ENVIRONMENT if name in stated]

    def _stated(self) -> dict[str, Any]:
        """Return the settings of scheduler and cache that differ from SGLang's defaults, by name.

        Settings that `_arguments` always states are left out.
        """
        limits = {"max_running_requests", "chunked_prefill_size", "context_length"}
        left_out = limits | {"page_size", "disable_radix_cache", "load_gb_per_s", "store_gb_per_s"}
        return {
            each.name: getattr(settings, each.name)
            for kind, settings in ((SGLangSettings, self), (RadixSettings, self.cache))
            for each in settings_in(kind)
            if each.name not in left_out and getattr(settings, each.name) != each.default
        }

    @property
    def _default_running_requests(self) -> int:
        try:
            return default_running_requests(self.budget().num_slots, self.context_length)
        except BudgetError:
            return SGLangSettings().max_running_requests

    def _check_arguments(self) -> None:
        """Raise a `UsageError` for what SGLang refuses when it starts, and for what kvsim does not follow."""
        model, page = self.model, self.page_size
        pages, longest = page_sizes(self.gpu, model), model.max_position_embeddings
        by_priority = self.enable_priority_scheduling
        wrong = {
            f"{model.name} keeps recurrent states, which kvsim does not follow in SGLang; take --policy paged.": bool(
                model.recurrent_layers
            ),
            "--data-parallel-size is vLLM's; give --replicas for more servers of SGLang.": model.data_parallel_size > 1,
            f"SGLang has no cache of the type {model.kv_cache_dtype}; take {', '.join(_CACHE_TYPES)}.": (
                model.kv_cache_dtype not in _CACHE_TYPES
            ),
            f"SGLang does not serve {model.name} with --context-length {self.context_length}: its configuration allows "
            f"{longest:,} tokens; take that or less.": self.context_length > longest,
            f"SGLang's attention kernels for {model.name} on {self.gpu.name} have pages of "
            f"{', '.join(map(str, sorted(pages)))} slots, not {page}; change --page-size.": (
                bool(pages) and page not in pages
            ),
            f"SGLang serves by priority with --schedule-policy fcfs or lof, not {self.schedule_policy}.": (
                by_priority and self.schedule_policy not in _OF_PRIORITIES
            ),
            f"mem_fraction_static is {self.fraction:g}; it must be above 0 and below 1.": not 0 < self.fraction < 1,
            "SGLang retracts by priority only if it serves by priority; set enable_priority_scheduling.": (
                self.retraction_policy == "priority" and not by_priority
            ),
        }
        for sentence, is_so in wrong.items():
            if is_so:
                raise UsageError(sentence)
        check_chunk(self.chunked_prefill_size, page)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@lru_cache(maxsize=1024)
def _budget(gpu: Gpu, model: Model, fraction: float, page_size: int) -> SlotBudget:
    return plan_slots(gpu, model, mem_fraction_static=fraction, page_size=page_size)
