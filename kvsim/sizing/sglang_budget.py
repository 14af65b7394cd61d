"""Compute the number of token slots in SGLang's KV cache, and the defaults of SGLang 0.5.23 that depend on the GPU.

Weights and slots together take `mem_fraction_static` of the memory that is free before the weights are loaded. The rest
is for activations, captured graphs and all else, which SGLang does not measure, unlike vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import BudgetError, UsageError
from kvsim.hardware import GIB
from kvsim.kv_groups.sglang_pools import PoolBytes
from kvsim.models.layers import Mla
from kvsim.sizing.activations import OUTSIDE_BYTES
from kvsim.sizing.budget_terms import BudgetTerm, weight_terms

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model

DEFAULT_RATIO = 0.8
"""Default `swa_full_tokens_ratio`: number of slots in layers with windows, divided by that in all other layers."""
_MIB = 1 << 20
_GROUP_BYTES = int(2.43 * GIB)
"""Bytes in use on each GPU of a server with several GPUs, before the weights are loaded.

They are for contexts, and for buffers to exchange results. Source: the log in sglang#11716, in which 137.29 of 139.72
GiB of each of eight H200s are free at that time.
"""
_CARDS = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512))
"""SGLang's defaults by the memory of the GPU, in ascending order.

An entry is (upper limit of the memory in GiB, `chunked_prefill_size`, largest batch with a captured graph on up to
three GPUs, largest such batch on more GPUs).
"""
_LARGEST_CARD = (16384, 512, 512)
"""The last three numbers of an entry of `_CARDS`, for GPUs with more memory than all entries."""
_LARGE_CARD_MIB, _LEAST_RESERVE_MIB = 60 * 1024, 10 * 1024
_META_MIB, _MIB_PER_TOKEN, _MIB_PER_GRAPH, _LEAST_TOKENS, _MIB_OF_GROUP = 512, 1.5, 2, 2048, 1024 / 8
_MANY_GPUS = 4
"""Smallest number of GPUs for which the last number of an entry of `_CARDS` holds."""
_RUNNING, _RUNNING_PER_CONTEXT = (2048, 4096), 512
"""(smallest, largest) default of `max_running_requests`, and the default if the pool has `context_length` slots.

Between the smallest and the largest, the default is proportional to the number of slots.
"""
_BLACKWELL = "Blackwell GB100"
"""Beginning of the architecture of data-center GPUs such as B200 and B300, but not of workstation GPUs."""
_PAGES_ON_BLACKWELL = (64, 16, 32, 128)
"""Page sizes of SGLang's attention kernels on data-center Blackwell GPUs, in tokens. The first is the default."""
_PAGE_OF_SPARSE = 64
"""Page size in tokens of the kernels for sparse attention (DeepSeek-V3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBudget:
    """Slots of the KV cache on one GPU, and the terms of memory from which their number follows."""

    gpu: Gpu
    model: Model
    mem_fraction_static: float
    page_size: int
    terms: tuple[BudgetTerm, ...]
    """Terms of the budget in the order of printing; their sum is `kv_bytes`."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(term.size_bytes for term in self.terms)

    @property
    def num_slots(self) -> int:
        """Number of slots, which is SGLang's `max_total_num_tokens`."""
        return PoolBytes.of(self.model).num_slots(self.kv_bytes, DEFAULT_RATIO)

    @property
    def num_window_slots(self) -> int:
        """Number of slots in the separate pool for layers with windows; 0 if the model has no such pool."""
        return int(self.num_slots * DEFAULT_RATIO) if PoolBytes.of(self.model).window_tokens else 0

    @property
    def free_later_bytes(self) -> int:
        """Bytes that weights and slots leave for activations, captured graphs and all else."""
        return -self.terms[-2].size_bytes  # the last term but one, before the rounding


def defaults_on(gpu: Gpu, model: Model) -> dict[str, int]:
    """Return SGLang's defaults that depend on the GPU and the model: `chunked_prefill_size` and `page_size`."""
    return {"chunked_prefill_size": _defaults(gpu)[0], "page_size": (page_sizes(gpu, model) or (1,))[0]}


def page_sizes(gpu: Gpu, model: Model) -> tuple[int, ...]:
    """Return the page sizes in tokens that SGLang's attention kernels allow, the default first; empty if all are."""
    if model.has_sparse_attention:
        return (_PAGE_OF_SPARSE,)
    has_latent = any(isinstance(layer, Mla) for layer in model.attention_layers)
    return _PAGES_ON_BLACKWELL if gpu.architecture.startswith(_BLACKWELL) and not has_latent else ()


def check_chunk(chunked_prefill_size: int, page_size: int) -> None:
    """Check that the size of a prompt's chunk is a multiple of the page size, both in tokens, as SGLang demands.

    A negative size means that prompts are not cut, and is accepted.

    Raises:
        UsageError: the size is no such multiple.
    """
    if chunked_prefill_size > 0 and chunked_prefill_size % page_size:
        raise UsageError(
            f"SGLang does not start with --chunked-prefill-size {chunked_prefill_size}, which is no multiple of "
            f"--page-size {page_size}; change one of the two."
        )


def _defaults(gpu: Gpu) -> tuple[int, int, int]:
    fitting = ((chunk, few, many) for below, chunk, few, many in _CARDS if gpu.memory_bytes < below * GIB)
    return next(fitting, _LARGEST_CARD)


def default_running_requests(num_slots: int, context_length: int) -> int:
    """Return SGLang's default `max_running_requests`, by the formula of its `resolve_max_num_reqs`."""
    lowest, highest = _RUNNING
    by_pool = max(min(int(num_slots / context_length * _RUNNING_PER_CONTEXT), highest), lowest)
    return max(min(by_pool, num_slots // 2), 1)


def least_reserve(gpu: Gpu, model: Model) -> int:
    """Return the bytes that SGLang's default reserves at least for graphs, metadata and exchanges between GPUs."""
    _, by_few, by_many = _defaults(gpu)
    captured = by_many if model.num_gpus >= _MANY_GPUS else by_few
    return int(_MIB * (_META_MIB + _MIB_PER_GRAPH * captured + _MIB_OF_GROUP * model.num_gpus))


def default_fraction(gpu: Gpu, model: Model, chunked_prefill_size: int) -> float:
    """Return SGLang's default `mem_fraction_static`, by SGLang's formula and constants.

    It is the share of the GPU's memory that a reserve for activations and captured graphs leaves.
    """
    card_mib = gpu.memory_bytes / _MIB
    reserve = _MIB_PER_TOKEN * max(chunked_prefill_size, _LEAST_TOKENS) + least_reserve(gpu, model) / _MIB
    if card_mib > _LARGE_CARD_MIB:
        reserve = max(reserve, _LEAST_RESERVE_MIB)
    return round((card_mib - reserve) / card_mib, 3)


def plan_slots(
    gpu: Gpu,
    model: Model,
    *,
    mem_fraction_static: float | None = None,
    chunked_prefill_size: int | None = None,
    page_size: int | None = None,
) -> SlotBudget:
    """Return the slots that SGLang would create on `gpu` for `model`.

    An argument that is None has SGLang's default on this GPU.

    Raises:
        UsageError: `mem_fraction_static` is not between 0 and 1, or the model has several pipeline stages.
        BudgetError: there is no memory for one page.
    """
    if model.pipeline_parallel_size > 1:
        raise UsageError(
            "SGLang's slots are counted where one stage holds all layers; take --pipeline-parallel-size 1."
        )
    fraction, defaults = mem_fraction_static, defaults_on(gpu, model)
    page_size = page_size or defaults["page_size"]
    if fraction is None:
        fraction = default_fraction(gpu, model, chunked_prefill_size or defaults["chunked_prefill_size"])
    if not 0 < fraction < 1:
        raise UsageError(f"--mem-fraction-static is {fraction:g}; it must be above 0 and below 1.")
    is_group = model.tensor_parallel_size > 1
    before = gpu.memory_bytes - (_GROUP_BYTES if is_group else OUTSIDE_BYTES)
    with_others = ", and buffers to exchange results between GPUs" if is_group else ""
    left = before - int(before * fraction)
    stated = "" if mem_fraction_static is not None else ", SGLang's default here"
    terms = (
        BudgetTerm("GPU memory", gpu.memory_bytes, f"what the driver reports for {gpu.name}"),
        BudgetTerm("gone before the weights", before - gpu.memory_bytes, f"estimate: contexts{with_others}"),
        *weight_terms(model, range(model.num_layers)),
        BudgetTerm(
            "left to all else", -left,
            f"--mem-fraction-static is {fraction:g}{stated}: of {before / GIB:.2f} GiB, free before the weights",
        ),
    )  # fmt: skip
    layers = PoolBytes.of(model)
    page_bytes = page_size * (layers.full_bytes + DEFAULT_RATIO * layers.window_bytes)
    room = sum(term.size_bytes for term in terms)
    if room < page_bytes:
        raise BudgetError(
            f"--mem-fraction-static {fraction:g} leaves no slot on {gpu.name} beside the weights of {model.name}; "
            "raise it, or take a larger GPU or --tensor-parallel-size.",
            [(term.label, term.size_bytes, term.why) for term in terms],
        )
    rounding = BudgetTerm("rounding", -int(room % page_bytes), f"whole {'pages' if page_size > 1 else 'slots'}")
    return SlotBudget(gpu=gpu, model=model, mem_fraction_static=fraction, page_size=page_size, terms=(*terms, rounding))
