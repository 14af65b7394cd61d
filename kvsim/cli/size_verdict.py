"""First sentences of `kvsim size`: how many sequences fit, and why the model caches no prefixes or has large blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvsim.cli.machine_flags import AUTO_LENGTH, engine_limits
from kvsim.cli.size_figures import slots_of
from kvsim.display.text import size_words
from kvsim.kv_groups.reasons import caching_words, why_so_large

if TYPE_CHECKING:
    from kvsim.kv_groups.plan import CachePlan
    from kvsim.sizing.budget import Budget


def verdict(
    flags: Mapping[str, Any],
    budget: Budget,
    policy: str,
    tokens: int,
    num_sequences: int,
    *,
    image: Mapping[str, Any] | None,
    otherwise: Mapping[str, tuple[CachePlan, str]],
) -> str:
    """Return the answer as sentences: costs of images, adapters and drafts, the sequences that fit, and the reasons.

    `image` has the cost of one image, from `image_of`; None without an image. `otherwise` is the result of
    `other_layouts`: plans of the same memory with other layouts, each with words such as "if windows were full layers".
    """
    plan = budget.plan
    if plan.concurrency < 1:
        longest = plan.longest_sequence()
        begin = "vLLM refuses to start: one" if policy == "paged" else "One"
        said = (
            f"{begin} sequence of {plan.settings.max_model_len:,} tokens does not fit; --max-model-len {longest} does."
        )
    else:
        what = "sequences" if policy != "static" else "rows"
        others = [f"{other.max_sequences(tokens):,} {words}" for other, words in otherwise.values()]
        on = f" on each of {ranks} ranks" if (ranks := budget.model.data_parallel_size) > 1 else ""
        pool = f"{budget.num_blocks:,} blocks" if policy == "paged" else f"{slots_of(budget):,} slots"
        fit = f"{num_sequences:,} {what} of {tokens:,} tokens fit at once{on}, in {pool}"
        said = "; ".join([fit, *others]) + "."
        most, _ = engine_limits(flags, budget.gpu, plan.settings.max_model_len)
        if policy == "paged" and most < num_sequences:
            said += f" At most {most:,} run at once: --max-num-seqs."
        if flags["max_model_len"] == AUTO_LENGTH:
            said = f"The longest sequence that fits has {plan.settings.max_model_len:,} tokens; {said}"
    is_on, why = caching_words(budget.model, plan)
    uncached = "" if is_on or policy != "paged" or not budget.model.recurrent_layers else f"{why[0].upper()}{why[1:]}."
    return " ".join(part for part in (*_costs(budget, image), said, uncached, why_so_large(plan)) if part)


def _costs(budget: Budget, image: Mapping[str, Any] | None) -> list[str]:
    sentences = []
    if image is not None:
        tokens, blocks, held = image["prompt_tokens"], image["blocks"], size_words(image["kv_bytes"])
        sentences.append(f"One image takes {tokens:,} tokens, {blocks:,} blocks ({held}), as long as its request runs.")
    taken = {term.label: -term.size_bytes for term in budget.terms}
    if "adapters" in taken:
        tokens = taken["adapters"] // budget.bytes_per_block * budget.block_size
        held = size_words(taken["adapters"])
        sentences.append(
            f"The slots of adapters take {held} on each GPU, used or not: as much as {tokens:,} tokens of KV."
        )
    if draft_bytes := draft_bytes_per_block(budget):
        share = 100 * draft_bytes / budget.bytes_per_block
        weights = f", and their weights {size_words(taken['draft weights'])}" if "draft weights" in taken else ""
        sentences.append(f"Draft layers take {share:.1f} % of each block{weights}.")
    return sentences


def draft_bytes_per_block(budget: Budget) -> int:
    """Return how many bytes of each block belong to draft layers."""
    layers = budget.plan.settings.draft_layers
    return sum(budget.model.layer_bytes_per_token(layer) for layer in layers) * budget.block_size
