"""Number of prompt tokens of an image, for `--image`, as the processors of Qwen2.5-VL and Qwen3-VL compute it.

The processor scales an image so that both sides are multiples of one length (`side_pixels`) and the area is within
limits. Each square with sides of this length becomes one token. In the prompt, one marker token precedes the tokens of
the image, and one follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvsim.errors import UsageError

MARKS = 2
"""Number of marker tokens of an image: one before its tokens, one after."""
_MOST_STRETCHED = 200
"""Largest ratio of the longer side to the shorter one that the processors accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRule:
    """Rule by which a processor scales images: the side of a token, and the limits of the area."""

    side_pixels: int
    """Side in pixels of the square that becomes a token: the side of a patch, times the patches merged per side."""
    least_pixels: int
    """Smallest area of a scaled image, in pixels."""
    most_pixels: int
    """Largest area of a scaled image, in pixels."""

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens of an image, without markers."""
        return self.most_pixels // self.side_pixels**2

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and the height, in pixels, to which the processor scales an image.

        Raises:
            UsageError: the processor refuses the image, because one side is too long.
        """
        if min(width, height) < 1 or max(width, height) > _MOST_STRETCHED * min(width, height):
            raise UsageError(
                f"the processor refuses an image of {width}x{height} pixels: one side may be at most "
                f"{_MOST_STRETCHED} times as long as the other."
            )
        side = self.side_pixels
        wide, high = (max(side, round(length / side) * side) for length in (width, height))
        if wide * high > self.most_pixels:
            shrink = math.sqrt(width * height / self.most_pixels)
            wide, high = (max(side, math.floor(length / shrink / side) * side) for length in (width, height))
        elif wide * high < self.least_pixels:
            grow = math.sqrt(self.least_pixels / (width * height))
            wide, high = (math.ceil(length * grow / side) * side for length in (width, height))
        return wide, high

    def num_tokens(self, width: int, height: int) -> int:
        """Return the number of tokens of an image with `width` x `height` pixels, without markers."""
        wide, high = self.scaled(width, height)
        return wide // self.side_pixels * (high // self.side_pixels)


_QWEN2_5 = ImageRule(side_pixels=28, least_pixels=56**2, most_pixels=28**2 * 16_384)
_QWEN3 = ImageRule(side_pixels=32, least_pixels=1 << 16, most_pixels=1 << 24)
RULES = {
    "Qwen2_5_VLForConditionalGeneration": _QWEN2_5,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3,
}
"""Rules by class of the image model. Their limits were not checked against the published processor configurations."""


def image_rule(image_class: str) -> ImageRule:
    """Return the rule for image models of class `image_class`.

    Raises:
        UsageError: kvsim does not know the rule.
    """
    if image_class not in RULES:
        raise UsageError(
            f"the tokens of an image of {image_class} are not known to kvsim; those of Qwen2.5-VL and Qwen3-VL are. "
            "Where you know them, give --image-tokens instead of --image."
        )
    return RULES[image_class]
