"""Images in prompts as vLLM's scheduler sees them: their positions, and the budget and the cache of their encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.errors import UsageError
from kvsim.policies.releases import check_images


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """One image at one place of a prompt."""

    content: int | str
    """Name of the image if the workload is one for an oracle (vLLM's own scheduler with a fake model); otherwise number
    of the image. Equal images have equal values.
    """
    offset: int
    """Number of prompt tokens before the image."""
    length: int
    """Number of prompt tokens of the image."""
    embedded: tuple[tuple[int, int], ...] = ()
    """Ranges (first, number) of the image's tokens that take an encoder output; empty if all tokens do.

    `first` counts from the image's first token.
    """

    @property
    def end(self) -> int:
        """Number of prompt tokens up to the end of the image."""
        return self.offset + self.length

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Ranges like those in `embedded`; a single range of all tokens if `embedded` is empty."""
        return self.embedded or ((0, self.length),)

    @property
    def num_embeddings(self) -> int:
        """Number of encoder outputs that the image takes."""
        return sum(length for _, length in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Images of a workload, and limits of the encoder. Sizes are numbers of encoder outputs (embeddings)."""

    compute_embeddings: int
    """Limit for the number of encoder outputs that one step computes."""
    cache_embeddings: int
    """Number of encoder outputs for which the encoder cache has room."""
    is_whole: bool = False
    """True if all tokens of an image are computed in the same step (vLLM's `disable_chunked_mm_input`)."""
    inputs: Sequence[Sequence[ImageInput]] = field(default=(), repr=False)
    """Images of each request, in order of their positions."""

    def check(self, release: str) -> None:
        """Check that kvsim can simulate the images in a release.

        Raises:
            UsageError: kvsim does not know the release's rules, or an image is too large for a step or for the cache.
        """
        check_images(release)
        largest = max((each.num_embeddings for row in self.inputs for each in row), default=0)
        if largest > min(self.compute_embeddings, self.cache_embeddings):
            raise UsageError(
                f"an image of {largest:,} embeddings never fits: a step computes {self.compute_embeddings:,}, and "
                f"the encoder cache holds {self.cache_embeddings:,}."
            )
