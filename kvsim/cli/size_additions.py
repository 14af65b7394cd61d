"""Rows of `kvsim size` that a flag asks for: the cost of one image, and the memory of a sleeping server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvsim.cli.show import size
from kvsim.errors import UsageError
from kvsim.models.image_rules import MARKS, image_rule

if TYPE_CHECKING:
    from kvsim.sizing.budget import Budget

_SIDES = re.compile(r"(\d{1,6})[x×](\d{1,6})")


def image_of(budget: Budget, image: str | None, image_tokens: int | None) -> dict[str, Any] | None:
    """Return the cost of one image, as in the JSON output; None without --image and --image-tokens."""
    if image is None and image_tokens is None:
        return None
    if not budget.model.image_class:
        raise UsageError(
            f"{budget.model.name} is a model for text, as far as its configuration says; it takes no images."
        )
    if image is not None and image_tokens is not None:
        raise UsageError("--image and --image-tokens say the same thing; give only one.")
    scaled: dict[str, Any] = {}
    if image is not None:
        sides = _SIDES.fullmatch(image)
        if not sides:
            raise UsageError(f"--image should be width and height in pixels, such as 1920x1080, not {image[:40]!r}.")
        width, height = (int(side) for side in sides.groups())
        rule = image_rule(budget.model.image_class)
        wide, high = rule.scaled(width, height)
        scaled = {"scaled_pixels": [wide, high], "side_pixels": rule.side_pixels}
        image_tokens = rule.num_tokens(width, height)
    assert image_tokens is not None
    in_prompt = image_tokens + (MARKS if image is not None else 0)
    return scaled | {
        "tokens": image_tokens,
        "prompt_tokens": in_prompt,
        "blocks": budget.plan.layout.held_blocks(in_prompt),
        "kv_bytes": budget.plan.layout.held_blocks(in_prompt) * budget.bytes_per_block,
        "encoder_bytes": image_tokens * budget.model.image_token_bytes,
        "encoder_cache_tokens": budget.encoder_cache_tokens or None,
    }


def image_rows(costs: dict[str, Any] | None) -> list[tuple[str, str, str, str]]:
    """Return the rows of the printed table about one image: label, value, unit, reason.

    `costs` are those of `image_of`; without them, there are no rows.
    """
    if costs is None:
        return []
    why = "as stated"
    if "scaled_pixels" in costs:
        wide, high = costs["scaled_pixels"]
        why = f"scaled to {wide:,}x{high:,} pixels, {costs['side_pixels']} pixels square a token; {MARKS} marks around"
    kept = costs["encoder_cache_tokens"]
    fits = f"room for {kept // max(costs['tokens'], 1):,} such images at once" if kept else "its size is not known"
    return [
        ("one image", f"{costs['prompt_tokens']:,}", "tokens", why),
        ("  its KV cache", size(costs["kv_bytes"]), "", f"{costs['blocks']:,} blocks, as long as its request runs"),
        ("  in the encoder cache", size(costs["encoder_bytes"]), "", f"until its tokens are computed; {fits}"),
    ]


_WEIGHTS = ("weights", "tower for images", "draft weights", "adapters")
"""Terms of a budget that are loaded with the model. Sleep level 1 moves them to host memory, level 2 drops them."""
_STAYS = ("outside PyTorch", "captured graphs")
"""Terms that the allocator of sleep mode does not manage, so that they remain on the GPU."""


def asleep_of(budget: Budget) -> dict[str, dict[str, int | None]]:
    """Return three sizes for each level of sleep: bytes that a GPU frees, that go to host memory, and that stay on it.

    The last is None with a pool of a stated size, because the other terms of the budget are not estimated then.
    """
    terms = {term.label: -term.size_bytes for term in budget.terms}
    weights = sum(terms.get(label, 0) for label in _WEIGHTS)
    stays = sum(terms.get(label, 0) for label in _STAYS) if "weights" in terms else None
    return {
        "1": {"leaves_bytes": budget.kv_bytes + weights, "host_bytes": weights, "stays_bytes": stays},
        "2": {"leaves_bytes": budget.kv_bytes + weights, "host_bytes": 0, "stays_bytes": stays},
    }


def sleep_rows(budget: Budget, on_one: str) -> list[tuple[str, str, str, str]]:
    """Return a row for each level of sleep."""
    rows = []
    for level, found in asleep_of(budget).items():
        host, stays = found["host_bytes"] or 0, found["stays_bytes"]
        weights = f"the weights wait in {size(host)} of host memory" if host else "the weights are loaded again to wake"
        left = f"; {size(stays)} stays: {' and '.join(_STAYS)}" if stays is not None else ""
        why = f"leaves: the KV cache is dropped, {weights}{left}. Not measured; wakes with as many blocks"
        rows.append((f"asleep, level {level}", size(found["leaves_bytes"] or 0), on_one, why))
    return rows
