"""Strips of one line below the pool: the last slots of a request with drafts, or the images in the encoder cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.memory.waste import SlotState

from .brush import GLYPH, half_keys, keys_of
from .paint import EMPTY, UnitChange

if TYPE_CHECKING:
    from kvsim.replay.encoder_contents import EncoderContents

    from .array_types import KeyArray, PaintArray

KNOWN: Final = int(SlotState.TOKEN)
UNDER_WAY: Final = int(UnitChange.TAKEN)
"""Paint of a slot whose token is computed by a step that has not ended."""
REJECTED: Final = int(UnitChange.EVICTED)
"""Paint of a slot whose drafted token was rejected. The shown step or a later one writes the slot again."""
LOOKAHEAD: Final = int(SlotState.RESERVED)
"""Paint of a slot that the request holds for later tokens."""

DRAFTS: Final = ((KNOWN, "known"), (UNDER_WAY, "under way"), (REJECTED, "wrong draft, written again"),
                 (LOOKAHEAD, "lookahead"))  # fmt: skip
"""Paints of drafts, and their meanings."""

NEW: Final = int(UnitChange.TAKEN)
"""Paint of an image that the shown step computes."""
HELD: Final = int(SlotState.TOKEN)
"""Paint of an image that requests use."""
KEPT: Final = int(SlotState.CACHED)
"""Paint of an image that no request uses."""

IMAGES: Final = ((NEW, "computed now"), (HELD, "in use"), (KEPT, "kept until room is needed"),
                 (int(SlotState.FREE), "free"))  # fmt: skip
"""Paints of images, and their meanings."""


class DraftSlots(NamedTuple):
    """Slots of one request after a step was scheduled, in the order: known tokens, tokens under way, lookahead."""

    request: int
    known: int
    """Number of slots whose tokens are known."""
    under_way: int
    """Number of slots whose tokens (new outputs and drafts) are computed by steps that have not ended."""
    lookahead: int
    """Number of further slots in the blocks that the request holds."""
    rewritten_from: int
    """Index of the first slot with a rejected draft among the request's slots, from 0."""
    num_rejected: int
    """Number of slots with rejected drafts. The present step overwrites one with each token that it computes."""


def draft_keys(slots: DraftSlots, width: int, *, half_blocks: bool) -> KeyArray:
    """Return the character keys of one line of `width` characters: the last slots of the request, one per character.

    With `half_blocks`, the line is of half height.
    """
    end = slots.known + slots.under_way + slots.lookahead
    paints = np.full(end, KNOWN, np.uint8)
    paints[slots.known :] = UNDER_WAY
    paints[slots.known + slots.under_way :] = LOOKAHEAD
    paints[slots.rewritten_from : slots.rewritten_from + slots.num_rejected] = REJECTED
    line = np.full(width, EMPTY, np.uint8)
    shown = paints[-width:]
    line[: len(shown)] = shown
    return _line_keys(line, half_blocks=half_blocks)


def encoder_keys(contents: EncoderContents, frame: int, width: int, *, half_blocks: bool) -> KeyArray:
    """Return the character keys of one line of `width` characters: images in use, then kept images, then free space.

    The width of an image is proportional to its tokens. A wide image ends with a free character, to separate them.
    """
    paints = np.full(width, int(SlotState.FREE), np.uint8)
    begin = 0
    for image in contents.images_at(frame):
        end = begin + image.num_outputs
        first, last = (round(place * width / contents.capacity_outputs) for place in (begin, end))
        paint = NEW if image.is_new and image.holders else HELD if image.holders else KEPT
        paints[first : last - 1 if last - first > 2 else max(last, min(first + 1, width))] = paint
        begin = end
    return _line_keys(paints, half_blocks=half_blocks)


def _line_keys(paints: PaintArray, *, half_blocks: bool) -> KeyArray:
    keys: KeyArray = half_keys(np.stack((paints, paints))) if half_blocks else keys_of(GLYPH, paints[None], EMPTY)
    return keys
