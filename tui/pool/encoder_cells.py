"""Strip of the encoder cache: images in use, images that are kept, and free space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.memory.waste import SlotState

from .brush import GLYPH, half_keys, keys_of
from .paint import EMPTY, UnitChange

if TYPE_CHECKING:
    from kvsim.replay.encoder_contents import EncoderContents

    from .array_types import KeyArray

NEW: Final = int(UnitChange.TAKEN)
"""Paint of an image that this step computes."""
HELD: Final = int(SlotState.TOKEN)
"""Paint of an image that requests use."""
KEPT: Final = int(SlotState.CACHED)
"""Paint of an image that no request uses."""

LEGEND: Final = ((NEW, "computed now"), (HELD, "in use"), (KEPT, "kept until room is needed"),
                 (int(SlotState.FREE), "free"))  # fmt: skip
"""Paints, and their meanings."""


def strip_keys(contents: EncoderContents, frame: int, width: int, *, half_blocks: bool) -> KeyArray:
    """Return the keys of one line of `width` characters: images in use, then kept images, then free space.

    The width of an image is proportional to its tokens. A wide image ends in a free cell, to separate it from the next.
    """
    paints = np.full(width, int(SlotState.FREE), np.uint8)
    begin = 0
    for image in contents.images_at(frame):
        end = begin + image.tokens
        first, last = (round(place * width / contents.capacity_tokens) for place in (begin, end))
        paint = NEW if image.is_new and image.users else HELD if image.users else KEPT
        paints[first : last - 1 if last - first > 2 else max(last, min(first + 1, width))] = paint
        begin = end
    rows = np.stack((paints, paints))
    keys: KeyArray = half_keys(rows)[0] if half_blocks else keys_of(GLYPH, paints[None], EMPTY)[0]
    return keys
