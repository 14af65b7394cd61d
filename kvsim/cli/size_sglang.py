"""Answer of `kvsim size --policy radix`: SGLang's token slots under mem_fraction_static, beside vLLM's blocks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cli.machine_flags import memory_of, title_of
from kvsim.cli.options import settings_from
from kvsim.cli.show import echo, print_json, print_table
from kvsim.cli.size_rows import term_rows
from kvsim.display.text import size_words
from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups.sglang_pools import PoolBytes
from kvsim.policies import RadixSettings
from kvsim.policies.sglang import NO_WINDOWS
from kvsim.sizing.budget_terms import BudgetTerm
from kvsim.sizing.sglang_budget import DEFAULT_RATIO, plan_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.sizing.budget import Budget
    from kvsim.sizing.sglang_budget import SlotBudget


def size_slots(flags: Mapping[str, Any], gpu: Gpu, model: Model, tokens: int, *, as_json: bool) -> None:
    """Print the memory budgets of SGLang and vLLM, and why they differ; only SGLang's if vLLM has room for no block."""
    slots = plan_slots(gpu, model, mem_fraction_static=flags["mem_fraction_static"])
    host = _HostSlots.of(flags, slots)
    blocks: Budget | None = None  # no block of vLLM fits
    with suppress(BudgetError):
        blocks = memory_of({**flags, "mem_fraction_static": None}, gpu, model)
    num_sequences = slots.num_slots // tokens
    if as_json:
        print_json(_document(slots, blocks, tokens) | ({} if host is None else host.document()))
        return
    if blocks is not None:
        echo(_why(slots, blocks))
    echo(f"{num_sequences:,} sequences of {tokens:,} tokens fit at once, in {slots.num_slots:,} slots.")
    on_one = "on each GPU" if model.tensor_parallel_size > 1 else ""
    print_table(f"SGLang: {title_of(gpu, model)}", ["", "", "", "why"], [
        *term_rows([*slots.terms, BudgetTerm("KV cache", slots.kv_bytes, "what is left")], on_one),
        *_slot_rows(slots, on_one),
        *([] if host is None else host.rows(on_one)),
    ], figures=(1,))  # fmt: skip
    if blocks is not None:
        left = BudgetTerm("KV cache", blocks.kv_bytes, "what is left, in whole blocks")
        print_table("vLLM, on the same machine", ["", "", "", "why"], [
            *term_rows([*blocks.terms, left], on_one),
            ("tokens", f"{blocks.capacity_tokens:,}", "", f"in {blocks.num_usable_blocks:,} blocks"),
        ], figures=(1,))  # fmt: skip


class _HostSlots(NamedTuple):
    """Slots of HiCache in host memory, for the KV of each GPU."""

    num_slots: int
    num_bytes: int
    why: str

    @classmethod
    def of(cls, flags: Mapping[str, Any], slots: SlotBudget) -> _HostSlots | None:
        """Return the slots in host memory that the flags ask for; None without HiCache.

        Raises:
            UsageError: the model has sliding-window layers, or a flag requires another that is not given.
            BudgetError: the host memory holds no slot.
        """
        layers = PoolBytes.of(slots.model)
        cache = settings_from(RadixSettings, flags, page_size=slots.page_size)
        if not cache.enable_hierarchical_cache:
            return None
        if layers.window_tokens:
            raise UsageError(NO_WINDOWS)
        page_bytes = slots.page_size * layers.full_bytes
        num_pages = cache.num_host_pages(slots.num_slots // slots.page_size, page_bytes)
        why = f"--hicache-ratio is {cache.hicache_ratio:g}"
        if cache.hicache_size:
            why = f"--hicache-size is {cache.hicache_size:g}, in 10^9 bytes"
        return cls(num_pages * slots.page_size, num_pages * page_bytes, f"{why}; SGLang adds one page")

    def rows(self, on_one: str) -> list[tuple[str, str, str, str]]:
        of_one = "of each GPU" if on_one else ""
        return [
            ("host memory", size_words(self.num_bytes), of_one, self.why),
            ("slots there", f"{self.num_slots:,}", "", ""),
        ]

    def document(self) -> dict[str, Any]:
        return {"num_host_slots": self.num_slots, "host_bytes": self.num_bytes}


def _slot_rows(slots: SlotBudget, on_one: str) -> list[tuple[str, str, str, str]]:
    layers, why = PoolBytes.of(slots.model), "max_total_num_tokens; slot 0 comes on top"
    rows = [("slots", f"{slots.num_slots:,}", "", why)]
    if not layers.window_tokens:
        return [("one slot", size_words(layers.full_bytes), on_one, "one token in all layers"), *rows]
    return [
        ("one slot", size_words(layers.full_bytes), on_one, "one token in all layers without windows"),
        ("one slot of windows", size_words(layers.window_bytes), on_one, "one token in all layers with windows"),
        *rows,
        (
            "slots of windows",
            f"{slots.num_window_slots:,}",
            "",
            f"SGLang's --swa-full-tokens-ratio is {DEFAULT_RATIO:g}",
        ),
    ]


def _why(slots: SlotBudget, blocks: Budget) -> str:
    ratio = slots.num_slots / max(blocks.capacity_tokens, 1)
    terms = {term.label: -term.size_bytes for term in blocks.terms}
    measured = sum(terms.get(label, 0) for label in ("activations", "outside PyTorch", "captured graphs"))
    return (
        f"vLLM has {blocks.capacity_tokens:,} tokens, SGLang {ratio:.2f} times as many: SGLang leaves "
        f"{size_words(slots.free_later_bytes)} to activations, graphs and all else, and measures none of it; vLLM "
        f"leaves {size_words(terms.get('left to others', 0))} unused and takes another {size_words(measured)} off for "
        "what it measures."
        + (
            f" SGLang sets {slots.num_window_slots:,} slots aside for layers with windows; vLLM's blocks serve all "
            "layers, and a sequence gives those of windows back."
            if slots.num_window_slots
            else ""
        )
    )


def _document(slots: SlotBudget, blocks: Budget | None, tokens: int) -> dict[str, Any]:
    return {
        "gpu": slots.gpu.name,
        "model": slots.model.name,
        "policy": "radix",
        "tensor_parallel_size": slots.model.tensor_parallel_size,
        "mem_fraction_static": slots.mem_fraction_static,
        "kv_bytes_per_token": slots.model.kv_bytes_per_token,
        "kv_bytes": slots.kv_bytes,
        "num_slots": slots.num_slots,
        "num_window_slots": slots.num_window_slots,
        "max_sequences": {str(tokens): slots.num_slots // tokens},
        "terms": [{"label": term.label, "bytes": term.size_bytes, "why": term.why} for term in slots.terms],
        "vllm": None if blocks is None else {
            "kv_bytes": blocks.kv_bytes,
            "capacity_tokens": blocks.capacity_tokens,
            "terms": [{"label": term.label, "bytes": term.size_bytes, "why": term.why} for term in blocks.terms],
        },
    }  # fmt: skip
