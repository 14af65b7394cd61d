"""Images in prompts: their sizes, where they begin, and which images are equal.

The number of tokens of an image in pixels depends on the model. These tokens are added to the prompt once the model is
known. An image may instead have a stated number of tokens, which `prompt_tokens` includes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.errors import UsageError, WorkloadError, shortened
from kvsim.models.image_rules import MARKS
from kvsim.workload.columns import MAX_TOKENS, int_column

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from kvsim.workload.columns import Int32Array, Int64Array

_STREAM = 5
"""Number of the stream of random numbers for images, which differs from those of other draws with the same seed."""
_MOST_NUMBER = 1 << 10
_SIZE = re.compile(r"(\d{1,6})[x×](\d{1,6})|(\d{1,6})")
"""Pattern of a size: pixels, such as `1920x1080`, or tokens, such as `576`."""


class ImageSize(NamedTuple):
    """Size of an image: pixels, tokens, or both."""

    width: int = 0
    """Width in pixels; 0 if only the tokens are given."""
    height: int = 0
    """Height in pixels; 0 if only the tokens are given."""
    tokens: int = 0
    """Number of tokens; 0 if only the pixels are given."""

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens" if self.tokens else f"{self.width:,}x{self.height:,}"

    @classmethod
    def parse(cls, text: str) -> ImageSize:
        """Return the size that `text` states: pixels, such as `1920x1080`, or tokens, such as `576`.

        Raises:
            ValueError: the text states no size.
        """
        found = _SIZE.fullmatch(text.strip())
        sides = [int(side) for side in found.groups(default="0")] if found else [0]
        if not (found and (sides[2] or min(sides[:2]))):
            raise ValueError(f"an image is 1920x1080 (pixels) or 576 (tokens), not {shortened(text)}")
        return cls(*sides)


class Image(NamedTuple):
    """One image in a prompt."""

    content: int
    """Number of the image, from 1 on. Equal images have equal numbers."""
    place: int
    """Number of tokens of the prompt before the image. Earlier images whose size is given in pixels count as 0."""
    size: ImageSize


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Images:
    """Images of all prompts in one table. Rows `offsets[i]` to `offsets[i + 1] - 1` are the images of prompt `i`,
    sorted by `place`.

    Raises:
        WorkloadError: a number does not fit into its column.
        UsageError: a column has the wrong shape or type.
    """

    offsets: Int64Array
    """Row of the first image of each prompt, then the number of all images: int64[num_prompts + 1]."""
    content: Int64Array
    """Number of each image, from 1 on; equal images have equal numbers: int64[num_images], as all columns below."""
    place: Int64Array
    """Number of tokens of the prompt before each image. Earlier images whose size is given in pixels count as 0."""
    tokens: Int64Array
    """Number of tokens of each image; 0 if it is given in pixels and the model is not known yet."""
    width: Int64Array
    """Width of each image in pixels; 0 if unknown."""
    height: Int64Array
    """Height of each image in pixels; 0 if unknown."""

    def __init__(
        self,
        *,
        offsets: ArrayLike,
        content: ArrayLike,
        place: ArrayLike,
        tokens: ArrayLike,
        width: ArrayLike | None = None,
        height: ArrayLike | None = None,
    ) -> None:
        number = np.size(content)
        columns = {"content": content, "place": place, "tokens": tokens, "width": width, "height": height}
        object.__setattr__(self, "offsets", int_column("offsets", offsets, np.int64))
        for name, given in columns.items():
            values = np.zeros(number, np.int64) if given is None else given
            object.__setattr__(self, name, int_column(name, values, np.int64, number))

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Image]]) -> Images:
        """Return a table of the images of all prompts. Within a prompt, they may be in any order."""
        listed = [sorted(row, key=lambda image: image.place) for row in rows]
        flat = [image for row in listed for image in row]
        return cls(
            offsets=np.concatenate(([0], np.cumsum([len(row) for row in listed], dtype=np.int64))),
            content=np.array([image.content for image in flat], np.int64),
            place=np.array([image.place for image in flat], np.int64),
            tokens=np.array([image.size.tokens for image in flat], np.int64),
            width=np.array([image.size.width for image in flat], np.int64),
            height=np.array([image.size.height for image in flat], np.int64),
        )

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, row: int) -> tuple[Image, ...]:
        begin, end = self.offsets[row : row + 2].tolist()
        columns = (self.content, self.place, self.width, self.height, self.tokens)
        return tuple(
            Image(content, place, ImageSize(width, height, tokens))
            for content, place, width, height, tokens in zip(
                *(each[begin:end].tolist() for each in columns), strict=True
            )
        )

    def __repr__(self) -> str:
        return f"<Images: {len(self.content):,} in {len(self):,} prompts>"

    @property
    def prompt_index(self) -> Int64Array:
        """Index of the prompt of each image: int64[num_images]."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @property
    def end(self) -> Int64Array:
        """Number of tokens of the prompt up to the end of each image: int64[num_images].

        An image in pixels has 0 tokens until `measured` fills in their number.
        """
        return self.place + self.tokens

    @property
    def in_pixels(self) -> np.ndarray:
        """True for images whose number of tokens depends on the model and is not filled in yet: bool[num_images]."""
        return np.asarray(self.tokens == 0)

    def take(self, rows: Int64Array) -> Images:
        """Return a table with the images of the prompts with the indices `rows`, in this order."""
        numbers = np.diff(self.offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(numbers)))
        chosen = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], numbers)
        names = ("content", "place", "tokens", "width", "height")
        return Images(offsets=offsets, **{name: getattr(self, name)[chosen] for name in names})

    def measured(self, tokens_of: Callable[[int, int], int]) -> tuple[Images, Int64Array]:
        """Return the images with the number of tokens of each image in pixels filled in.

        Also return the number of tokens that these images add to each prompt: int64[num_prompts].
        `tokens_of(width, height)` returns the number of tokens of an image, without its two marks: the token before it
        and the token after it.
        """
        sides, which = np.unique(np.stack((self.width, self.height))[:, self.in_pixels], axis=1, return_inverse=True)
        of_sides = np.array([tokens_of(*pair) for pair in sides.T.tolist()], np.int64)
        tokens, added = self.tokens.copy(), np.zeros(len(self.tokens), np.int64)
        tokens[self.in_pixels] = of_sides[which.ravel()]
        added[self.in_pixels] = tokens[self.in_pixels] + MARKS
        # An image begins behind what earlier images of its prompt add and, if it is in pixels, behind its first mark.
        through = np.concatenate(([0], np.cumsum(added)))
        before = through[:-1] - through[self.offsets[:-1]][self.prompt_index]
        place = self.place + before + self.in_pixels
        images = Images(
            offsets=self.offsets, content=self.content, place=place, tokens=tokens, width=self.width, height=self.height
        )
        return images, np.diff(through[self.offsets])

    def _differ_in_size(self) -> np.ndarray:
        """Mark the images that have another size than the first image with the same content: bool[num_images]."""
        _, first, which = np.unique(self.content, return_index=True, return_inverse=True)
        sizes = np.stack((self.tokens, self.width, self.height))
        return np.asarray((sizes != sizes[:, first[which]]).any(axis=0))

    def check(self, prompt_tokens: Int32Array, prefix_tokens: Int32Array, ids: Sequence[str]) -> None:
        """Check that each image has a size, overlaps no other image, and lies between shared prefix and prompt's end.

        Raises:
            UsageError: the number of rows is not the number of prompts.
            WorkloadError: an image is invalid; the message names the first such request.
        """
        if len(self) != len(prompt_tokens) or self.offsets[0] or self.offsets[-1] != len(self.content):
            raise UsageError(
                f"images has {len(self)} rows; it must have {len(prompt_tokens)}, as the other columns do."
            )
        row = self.prompt_index
        # The end of the image before, in the same prompt; 0 for the first image of a prompt.
        before = np.concatenate(([0], self.end[:-1]))
        before[self.offsets[:-1][np.diff(self.offsets) > 0]] = 0
        rules = (
            ("content is {content}; it must be a number from 1 on", self.content < 1),
            (
                "has neither pixels nor tokens; give one of the two",
                (self.tokens < 1) & (np.minimum(self.width, self.height) < 1),
            ),
            (
                f"place is {{place}}; it must be a number of tokens, 0 to {MAX_TOKENS}",
                (self.place < 0) | (self.place > MAX_TOKENS) | (self.tokens > MAX_TOKENS),
            ),
            ("place is {place}, inside the image before it, or before that", self.place < before),
            ("place is {place}, inside the shared prefix; images follow that", self.place < prefix_tokens[row]),
            ("ends behind the prompt, which has {prompt} tokens", self.end > prompt_tokens[row]),
            ("is image {content}, which has another size elsewhere", self._differ_in_size()),
        )
        for sentence, bad in rules:
            if bad.any():
                index = int(bad.argmax())
                values = {
                    "content": self.content[index],
                    "place": self.place[index],
                    "prompt": prompt_tokens[row[index]],
                }
                nth = index - int(self.offsets[row[index]]) + 1
                raise WorkloadError(
                    f"request {shortened(ids[row[index]])} (row {row[index]}): its image {nth} "
                    f"{sentence.format(**values)}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDistribution:
    """Distribution of the numbers and sizes of images in generated requests."""

    mean_images: float
    """Mean number of images in a request. With 1.3, each request has one image, and 30% have a second one."""
    sizes: tuple[ImageSize, ...]
    """Sizes from which the size of each image is drawn. All are equally likely."""
    num_different: int | None = None
    """Number of different images, which are drawn with replacement; None if no two images are equal."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean_images) and 0 < self.mean_images <= _MOST_NUMBER):
            raise UsageError(
                f"the mean number of images of a request is {self.mean_images}; it must be above 0 and at most "
                f"{_MOST_NUMBER:,}."
            )
        if not self.sizes:
            raise UsageError("images need at least one size, such as 1920x1080.")
        if self.num_different is not None and self.num_different < 1:
            raise UsageError(f"{self.num_different} different images were asked for; ask for at least 1.")

    def __str__(self) -> str:
        kinds = f", {self.num_different:,} different ones" if self.num_different else ""
        return f"{self.mean_images:g} images a request of {', '.join(map(str, self.sizes))}{kinds}"

    def draw(self, place: Int32Array, seed: int) -> Images:
        """Draw the images of requests.

        The first image of a request begins at token `place[row]` of its prompt, and the others follow.
        """
        rng, whole = np.random.default_rng((seed, _STREAM)), math.floor(self.mean_images)
        numbers = whole + (rng.random(len(place)) < self.mean_images - whole)
        offsets = np.concatenate(([0], np.cumsum(numbers, dtype=np.int64)))
        most = self.num_different or max(int(offsets[-1]), 1)
        # Each different image has one size.
        sizes = np.array(self.sizes, np.int64)[rng.integers(len(self.sizes), size=most)]
        content = np.arange(offsets[-1]) if self.num_different is None else rng.integers(most, size=offsets[-1])
        width, height, tokens = sizes[content].T
        # An image begins behind the tokens of the request's earlier images.
        before = np.concatenate(([0], np.cumsum(tokens)))
        begin = np.repeat(place.astype(np.int64) - before[offsets[:-1]], numbers) + before[:-1]
        return Images(offsets=offsets, content=content + 1, place=begin, tokens=tokens, width=width, height=height)
