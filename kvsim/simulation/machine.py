"""The machine of a run, and the pool of KV memory that a policy has on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.engine.coefficients import coefficients_of
from kvsim.errors import BudgetError, UsageError, described, shortened
from kvsim.hardware import GIB, Gpu
from kvsim.kv_groups import CacheSettings, KVCacheLayout, bytes_per_block, cache_layout
from kvsim.kv_groups.grouping import hashed_by_mode
from kvsim.kv_groups.sglang_pools import PoolBytes
from kvsim.models import Model
from kvsim.models.layers import Layer
from kvsim.policies import AnyPolicy, Contiguous, Paged, Pipeline, Policy, Radix, Static, base_of, limited
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.drafter import drafter_of
from kvsim.policies.releases import DEFAULT_RELEASE, defaults_of, rules_of
from kvsim.policies.settings import EngineDefaults
from kvsim.recording import Pool
from kvsim.recording.model import MAX_UNITS, WindowPool
from kvsim.setting_fields import check_instance, is_finite, whole_number
from kvsim.steptime import COEFFICIENTS, StepTimeModel


def _check_coefficients(times: StepTimeModel) -> None:
    """Check that all coefficients of the step times are numbers."""
    for stage in coefficients_of(times):
        for name in COEFFICIENTS:
            value = getattr(stage, name)
            for number in value if isinstance(value, tuple) and name == "of_size_s" else (value,):
                if not is_finite(number):
                    raise UsageError(f"{name} of the step times should be a finite number, not {described(number)}.")
        if not stage.full_seqs > 0:
            raise UsageError(f"full_seqs of the step times should be above 0, not {shortened(stage.full_seqs)}.")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Machine:
    """The GPU of a run, the model with its parallelism, the memory of its KV cache, and the step times."""

    gpu: Gpu
    model: Model
    kv_bytes: int
    """Bytes of the KV cache on one GPU. With pipeline stages, the sum over the stages, one GPU of each."""
    step_time: StepTimeModel
    max_model_len: int | None = None
    """Maximum tokens of a sequence for policies without a limit of their own. None: the model's limit."""

    def __post_init__(self) -> None:
        """Check the types; convert a number of NumPy.

        Raises:
            UsageError: a value is of another type, or a number is out of range.
        """
        check_instance("gpu", self.gpu, Gpu, "a Gpu, as find_gpu returns it")
        check_instance("model", self.model, Model, "a Model, as find_model returns it")
        if not isinstance(getattr(self.step_time, "label", None), str):
            raise UsageError(f"step_time should be a StepTimeModel, not {described(self.step_time)}.")
        _check_coefficients(self.step_time)
        object.__setattr__(self, "kv_bytes", whole_number("kv_bytes", self.kv_bytes, at_least=0))
        if self.max_model_len is not None:
            object.__setattr__(self, "max_model_len", whole_number("max_model_len", self.max_model_len))

    def __repr__(self) -> str:
        num_gpus = self.model.num_gpus * self.model.data_parallel_size
        gpus = f"{num_gpus}x" if num_gpus > 1 else ""
        return (
            f"<Machine: {gpus}{self.gpu.name}, {self.model.name}, {self.kv_bytes / GIB:.2f} GiB of KV, "
            f"times: {self.step_time.label.partition(';')[0]}>"
        )

    def limited(self, policy: AnyPolicy) -> Policy:
        """Return `policy`, or if it is a custom policy, the built-in policy on which it is based. Limits that a policy
        other than `Radix` leaves out get vLLM's defaults for this machine.
        """
        defaults = EngineDefaults.of("llm", self.gpu, release_of(base_of(policy)))
        return limited(policy, self.max_sequence_tokens, defaults)

    @property
    def max_sequence_tokens(self) -> int:
        """Maximum tokens of a sequence, prompt and answer together, for a policy without a limit of its own."""
        return self.max_model_len or self.model.max_position_embeddings

    def layout(self, policy: AnyPolicy) -> KVCacheLayout | None:
        """Return the layout of the model's KV cache in the blocks of `policy`; None if the policy has no blocks.

        Raises:
            UsageError: vLLM could not serve the model with such blocks.
        """
        base = self.limited(policy)
        if not isinstance(base, Paged):
            return None
        settings = CacheSettings(
            max_model_len=base.max_model_len,
            max_num_batched_tokens=base.scheduler.max_num_batched_tokens,
            block_size=_tokens_on_each_gpu(self.model, base.cache.block_size),
            enable_prefix_caching=base.cache.enable_prefix_caching,
            keeps_every_state=defaults_of(base.scheduler.vllm).keeps_every_state,
            hybrid_manager=base.cache.hybrid_manager and not base.cache.uniform_cache,
            uniform=base.cache.uniform_cache,
            draft_layers=self.draft_layers(base),
        )
        stage_bytes = bytes_per_block(self.model, settings)
        layout = replace(cache_layout(self.model, settings), bytes_per_block=sum(stage_bytes))
        if isinstance(policy, CustomPolicy) and policy.allocator is not None and not layout.is_uniform:
            raise UsageError(
                f"{self.model.name} has layers of several kinds, and the allocator of {policy.name!r} allocates units "
                "of one; take a model whose layers are alike, or leave the memory to vLLM's cache."
            )
        if base.cache.enable_prefix_caching:
            if rules_of(base.scheduler.vllm).hashes_aligned_states:
                layout = hashed_by_mode(layout)
            _check_hashes(self.model, layout)
        return layout

    def draft_layers(self, policy: Paged) -> tuple[Layer, ...]:
        """Return the layers of the draft model, which have a KV cache too; empty without a draft model.

        Raises:
            UsageError: the draft model is not known, or kvsim does not simulate drafts for this model.
        """
        config = policy.scheduler.drafting
        if config is None:
            return ()
        if self.model.recurrent_layers:
            raise UsageError(f"kvsim does not follow drafts of a model with recurrent layers, as {self.model.name} has;"
                             " leave --speculative-config out.")  # fmt: skip
        drafter = drafter_of(config, self.model)
        return () if drafter is None else drafter.layers

    def pool(self, policy: AnyPolicy) -> Pool:
        """Return the pool of KV memory that `policy` has on the machine.

        Raises:
            BudgetError: not even one unit fits, or more than `MAX_UNITS` do.
            UsageError: vLLM could not serve the model with such blocks.
        """
        layout = self.layout(policy)
        if layout is None:
            _check_tokens(self.model, policy)
        unit_tokens = policy.unit_tokens if layout is None else layout.scheduler_block_size
        bytes_per_unit = unit_tokens * self.model.kv_bytes_per_token if layout is None else layout.bytes_per_block
        num_units, first_unit, windows = self.kv_bytes // bytes_per_unit, 0, None
        if isinstance(base_of(policy), Paged):  # block 0 is the null block: it takes memory and is never allocated
            num_units, first_unit = num_units - 1, 1
        elif isinstance(policy, Radix):  # page 0 is a dummy too, beside the memory of the pool
            first_unit, layers = 1, PoolBytes.of(self.model)
            bytes_per_unit = unit_tokens * layers.full_bytes
            num_units = policy.num_slots(self.kv_bytes, layers) // unit_tokens
            windows = _window_pool(policy, num_units, layers)
        if num_units < 1:
            raise BudgetError(
                f"{self.kv_bytes} bytes of KV memory hold no usable unit of {unit_tokens} tokens of "
                f"{self.model.name}, which takes {bytes_per_unit} bytes; give it more memory."
            )
        if num_units > MAX_UNITS:
            raise BudgetError(
                f"{self.kv_bytes} bytes of KV memory are {num_units:,} units of {unit_tokens} tokens of "
                f"{self.model.name}, and a pool may have {MAX_UNITS:,}; give it less memory or larger units."
            )
        return Pool(
            unit_tokens=unit_tokens,
            num_units=num_units,
            first_unit=first_unit,
            bytes_per_unit=bytes_per_unit,
            groups=layout.groups if layout is not None and (layout.has_windows or not layout.is_uniform) else (),
            windows=windows,
        )


def _window_pool(policy: Radix, num_units: int, layers: PoolBytes) -> WindowPool | None:
    """Return SGLang's second pool beside a first one of `num_units` pages; None for a model without windows."""
    if not layers.window_tokens:
        return None
    unit = policy.unit_tokens
    num_windows = policy.num_window_slots(num_units * unit, layers.window_tokens) // unit
    if num_units < 1 or num_windows < 1:
        raise BudgetError("the slots of layers with windows leave none to the other layers, or have none; give it more "
                          "memory, or lower --max-running-requests.")  # fmt: skip
    return WindowPool(
        num_units=num_windows, bytes_per_unit=unit * layers.window_bytes, window_tokens=layers.window_tokens
    )


def _check_hashes(model: Model, layout: KVCacheLayout) -> None:
    """Refuse a layout whose prefixes vLLM cannot hash. vLLM itself would not start with it."""
    hashed, sizes = layout.hash_block_size, [group.block_size for group in layout.groups]
    if any(size % hashed for size in sizes):
        raise UsageError(
            f"prefixes of {model.name} cannot be cached: vLLM hashes {hashed:,} tokens at a time, and the blocks of "
            f"its groups hold {', '.join(map(str, sizes))}; leave --prefix-caching out, or choose another --block-size."
        )


def _check_tokens(model: Model, policy: AnyPolicy) -> None:
    """Refuse a model with recurrent states under a policy that allocates memory by tokens."""
    if model.recurrent_layers:
        raise UsageError(
            f"{model.name} has {len(model.recurrent_layers)} recurrent layers, whose states are no tokens, and the "
            f"{policy.name} policy allocates memory by tokens; take the paged one."
        )


def release_of(policy: Policy) -> str:
    """Return the vLLM release whose rules a policy follows; the default release for a policy that is not vLLM's."""
    return DEFAULT_RELEASE if isinstance(policy, Static | Radix) else policy.scheduler.vllm


def check_stages(machine: Machine, policy: Policy) -> None:
    """Refuse pipelines that kvsim cannot simulate, and step times that were made for another number of stages.

    Raises:
        UsageError: with a sentence on what to change.
    """
    if machine.model.divides_experts_among_ranks and machine.model.pipeline_parallel_size > 1:
        raise UsageError("ranks that share experts are modelled where one stage holds all layers; leave out "
                         "--pipeline-parallel-size.")  # fmt: skip
    size, num_known = machine.model.pipeline_parallel_size, len(coefficients_of(machine.step_time)) or 1
    if num_known not in (1, size) or (num_known == 1 < size and not isinstance(policy, Static)):
        raise UsageError(
            f"the machine has {size} pipeline stages, and its step times are those of {num_known}; take the times of a "
            "machine card for both."
        )
    ahead = isinstance(policy, Paged | Contiguous) and policy.scheduler.async_scheduling
    if Pipeline.of(machine.model, release_of(policy)).tokens_ahead(async_scheduling=ahead) > 1:
        raise UsageError(
            f"vLLM serves {machine.model.name} with its model runner V1, which in a pipeline of more than two stages "
            "schedules sequences past their last token, and the account of memory does not follow that; take two "
            "stages, or synchronous scheduling (--no-async-scheduling)."
        )


def _tokens_on_each_gpu(model: Model, block_size: int) -> int:
    """Return how many of a block's tokens each GPU holds: fewer than all with decode context parallelism."""
    size = model.decode_context_parallel_size
    if block_size % size:
        raise UsageError(f"block_size is {block_size} tokens, on all {size} GPUs that divide contexts; it must be "
                         f"a multiple of {size}.")  # fmt: skip
    return block_size // size
