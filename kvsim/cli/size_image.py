"""Cost of one image, for `kvsim size --image` and `--image-tokens`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvsim.display.text import size_words
from kvsim.errors import UsageError
from kvsim.models.image_rules import MARKS, image_rule

if TYPE_CHECKING:
    from kvsim.sizing.budget import Budget

_SIDES = re.compile(r"(\d{1,6})[x×](\d{1,6})")


def image_of(budget: Budget, image: str | None, image_tokens: int | None) -> dict[str, Any] | None:
    """Return the cost of one image; None without --image and --image-tokens.

    The keys are those of the JSON output: `tokens`, `prompt_tokens` (with marks around the image), `blocks`,
    `kv_bytes`, `encoder_bytes` and `encoder_cache_tokens`; with --image also `scaled_pixels` and `side_pixels`.

    Raises:
        UsageError: the model takes no such image, both flags are given, or --image is not such as 1920x1080.
    """
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
        width, height = (int(side) for side in sides.groups()) if sides else (0, 0)
        if not (width and height):
            raise UsageError(f"--image should be width and height in pixels, such as 1920x1080, not {image[:40]!r}.")
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
    """Return the rows of the printed table for one image: label, value, unit, reason.

    `costs` are those of `image_of`; None: there are no rows.
    """
    if costs is None:
        return []
    why = "as stated"
    if "scaled_pixels" in costs:
        wide, high = costs["scaled_pixels"]
        why = f"scaled to {wide:,}x{high:,} pixels, {costs['side_pixels']} pixels square a token; {MARKS} marks around"
    kept, blocks = costs["encoder_cache_tokens"], costs["blocks"]
    fits = f"room for {kept // max(costs['tokens'], 1):,} such images at once" if kept else "its size is not known"
    return [
        ("one image", f"{costs['prompt_tokens']:,}", "tokens", why),
        ("  its KV cache", size_words(costs["kv_bytes"]), "", f"{blocks:,} blocks, as long as its request runs"),
        ("  in the encoder cache", size_words(costs["encoder_bytes"]), "", f"until its tokens are computed; {fits}"),
    ]
