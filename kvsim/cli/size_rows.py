"""Rows of `kvsim size`: terms of the memory, what one block holds, the size of the pool, and other layouts of it.

A row has a label, a value, what the value refers to, and a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvsim.cli.size_figures import other_layouts
from kvsim.cli.size_verdict import draft_bytes_per_block
from kvsim.display.text import plural, size_column, size_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.kv_groups import KVCacheGroup
    from kvsim.sizing.budget import Budget
    from kvsim.sizing.budget_terms import BudgetTerm

Row: TypeAlias = tuple[str, str, str, str]


def num_gpus(budget: Budget) -> int:
    """Return the number of GPUs of the server, all data-parallel ranks included."""
    return budget.model.num_gpus * budget.model.data_parallel_size


def place_of(budget: Budget) -> str:
    """Return words that say whether a figure is of each data-parallel rank or of all GPUs together; "" for one GPU."""
    return "on each rank" if budget.model.data_parallel_size > 1 else "in all" if num_gpus(budget) > 1 else ""


def term_rows(terms: Sequence[BudgetTerm], on_one: str) -> list[Row]:
    """Return the rows of terms that add up, all in the same unit."""
    sizes = size_column(term.size_bytes for term in terms)
    return [(term.label, size, on_one, term.why) for term, size in zip(terms, sizes, strict=True)]


def block_rows(budget: Budget, on_one: str) -> list[Row]:
    """Return the rows about one block: its bytes, and the bytes of a token or, if layers differ, a row per kind of
    layer.

    `on_one` is the text of the column that says where the bytes are, such as "on each GPU".
    """
    layout = budget.plan.layout
    why = f"{budget.block_size} tokens in all layers" if len(layout.groups) == 1 else _shared(budget)
    if (number := budget.model.decode_context_parallel_size) > 1:
        why += f", {budget.block_size // number} on each of {number} GPUs (--decode-context-parallel-size)"
    if budget.model.pipeline_parallel_size > 1:
        why += " of the stage"
    rows = [("one block", size_words(budget.bytes_per_block), on_one, why)]
    if len(layout.groups) == 1:
        per_token = size_words(budget.bytes_per_block // budget.block_size)
        rows.append(("one token", per_token, on_one, "a block's bytes, by its tokens"))
        return rows + _draft_rows(budget, on_one)
    by_spec: dict[int, list[KVCacheGroup]] = {}
    for group in layout.groups:
        by_spec.setdefault(group.spec, []).append(group)
    for groups in by_spec.values():
        first = groups[0]
        settings = budget.plan.settings
        held = sum(group.blocks_for(settings.max_model_len, settings.max_num_batched_tokens) for group in groups)
        window = f" of {first.window:,} tokens" if first.window else ""
        kind = {"mamba": "recurrent state"}.get(first.kind, first.kind.replace("_", " "))
        layers = sum(group.num_layers for group in groups)
        tables = plural(len(groups), "table")
        block = "one block a sequence" if first.mamba_mode == "none" else f"{first.block_size:,} tokens a block"
        rows.append(
            (f"{kind}{window}", f"{layers} layers", "", f"{tables}, {block}; at most {held:,} blocks a sequence")
        )
    return rows


def _draft_rows(budget: Budget, on_one: str) -> list[Row]:
    """Return one row with the bytes and the percentage of each block that draft layers take; no row without draft
    layers. `on_one` is as in `block_rows`.
    """
    layers = budget.plan.settings.draft_layers
    if not layers:
        return []
    draft_bytes = draft_bytes_per_block(budget)
    share = f"{100 * draft_bytes / budget.bytes_per_block:.1f} % of each block: {len(layers)} draft layers"
    return [("draft layers", size_words(draft_bytes), on_one, share.removesuffix("s" if len(layers) == 1 else ""))]


def _shared(budget: Budget) -> str:
    groups = budget.plan.layout.groups
    longest = max(group.num_layers for group in groups)
    return f"{longest} pages of {size_words(groups[0].page_bytes)}, of whichever of {len(groups)} tables holds it"


def pool_rows(budget: Budget, *, logs_longest: bool) -> list[Row]:
    """Return the rows about the pool: its blocks, and the two figures that vLLM logs, "GPU KV cache size" and "maximum
    concurrency".

    The first of these depends on the release. If `logs_longest`, it is the maximum concurrency times the maximum
    length, in tokens. Otherwise it is the tokens of all blocks, divided evenly among the KV-cache groups.
    """
    plan = budget.plan
    length = plan.settings.max_model_len
    in_all = place_of(budget)
    number = len(plan.layout.groups)
    if logs_longest:
        logged = plan.num_tokens, "the next line by the length"
    else:
        logged = plan.divided_tokens, f"the blocks shared evenly by {number} tables" if number > 1 else "all blocks"
    return [
        ("blocks", f"{budget.num_blocks:,}", in_all, "vLLM's number; block 0 is never allocated"),
        ("GPU KV cache size", f"{logged[0]:,}", in_all, f"tokens, as vLLM logs it: {logged[1]}"),
        (
            "maximum concurrency",
            f"{plan.concurrency:.2f}x",
            in_all,
            f"sequences of {length:,} tokens, as vLLM logs it: {plan.blocks_for(length):,} blocks each",
        ),
    ]


def slot_rows(budget: Budget, on_one: str, num_slots: int) -> list[Row]:
    """Return the rows about a pool without blocks: the bytes of a token, and the number of slots."""
    return [
        ("  one slot", size_words(budget.model.kv_bytes_per_token), on_one, "a token in all layers"),
        ("slots", f"{num_slots:,}", place_of(budget), "one for each token"),
    ]


def rank_rows(budget: Budget, unit: str, num_sequences: int) -> list[Row]:
    """Return one row with the number of sequences of all data-parallel ranks together; no row for a single rank.

    `unit` is the row's label. `num_sequences` is the number for one rank.
    """
    ranks = budget.model.data_parallel_size
    why = f"{ranks} ranks, each with a scheduler and a cache of its own; no sequence uses two"
    return [(f"  {unit}", f"{ranks * num_sequences:,}", "in all", why)] if ranks > 1 else []


def other_layout_rows(budget: Budget, policy: str, tokens: int) -> list[Row]:
    """Return a row for each other layout of the memory: how many sequences of `tokens` tokens it would hold."""
    in_all = place_of(budget)
    return [
        ("  otherwise", f"{plan.max_sequences(tokens):,}", in_all,
         f"{words}: {plan.layout.held_blocks(tokens):,} of {plan.num_blocks:,} blocks each")
        for plan, words in other_layouts(budget, policy).values()
    ]  # fmt: skip
