"""Images in the turns of sessions. A turn's prompt begins with the turn before, and so with that turn's images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError, WorkloadError, shortened
from kvsim.models.image_rules import MARKS
from kvsim.workload.images import Images
from kvsim.workload.turns import Turns

if TYPE_CHECKING:
    from kvsim.workload.columns import Int64Array
    from kvsim.workload.images import Image


def check_histories(images: Images, turns: Turns, ids: Sequence[str]) -> None:
    """Check that the history of each turn has the images of the turn in `after`, whose tokens it repeats.

    Raises:
        WorkloadError: a history has other images, has them at other places, or ends inside an image.
    """
    for row in np.flatnonzero(turns.after >= 0).tolist():
        after, history = int(turns.after[row]), int(turns.history_tokens[row])
        found, expected = (_before(images[each], history) for each in (row, after))
        if found != expected or any(image.place + image.size.tokens > history for image in found):
            raise WorkloadError(
                f"request {shortened(ids[row])} (row {row}): its history of {history:,} tokens should have the images "
                f"of request {shortened(ids[after])}, each as a whole at the same place."
            )


def _before(images: Sequence[Image], end: int) -> list[Image]:
    return [image for image in images if image.place < end]


def with_histories(new: Images, turns: Turns, text_tokens: Int64Array) -> tuple[Images, Int64Array]:
    """Return the images of all prompts: in each turn, the images of the earlier turns that it repeats, then `new` ones.

    Also return the number of tokens that the repeated images add to each prompt: int64[n]. The places in `new` count
    only the turn's own tokens and the text that it repeats, not the repeated images. `text_tokens` has, for each turn,
    the number of tokens in the prompt and the answer of the turn before it (`turns.after`), without images: int64[n].

    Raises:
        UsageError: a turn does not repeat all of the turn before it, or does not come after it.
    """
    later = turns.after >= 0
    if (turns.history_tokens[later] != text_tokens[later]).any() or (turns.after >= np.arange(len(turns))).any():
        raise UsageError("images are drawn for sessions whose turns repeat all of the turn before, in this order.")
    rows: list[list[Image]] = []
    before = np.zeros(len(turns), np.int64)
    for row, after in enumerate(turns.after.tolist()):
        history = rows[after] if after >= 0 else []
        before[row] = sum(image.size.tokens for image in history)
        own = [image._replace(place=image.place + int(before[row])) for image in new[row]]
        rows.append([*history, *own])
    return Images.from_rows(rows), before


def history_with_tokens(images: Images, measured: Images, turns: Turns) -> Turns:
    """Return `turns` with the tokens of images in pixels added to the histories that have these images.

    `measured` has the number of tokens of each image. An image also adds two marks: the tokens before and after it.
    """
    in_history = images.in_pixels & (images.place < turns.history_tokens[images.prompt_index])
    added = np.bincount(images.prompt_index[in_history], measured.tokens[in_history] + MARKS, len(turns)).astype(
        np.int64
    )
    return replace_history(turns, turns.history_tokens + added)


def replace_history(turns: Turns, history_tokens: Int64Array) -> Turns:
    """Return `turns` with `history_tokens` as the number of tokens that each prompt repeats: int64[n]."""
    return Turns(after=turns.after, pause_s=turns.pause_s, history_tokens=history_tokens, also_after=turns.also_after)
