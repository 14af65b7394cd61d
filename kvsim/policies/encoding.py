"""Images of prompts as vLLM's scheduler sees them: their places, and the budget and the cache of their encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.errors import UsageError
from kvsim.policies.releases import check_feature


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """One image at one place of a prompt."""

    content: int | str
    """Number or name of the image: equal images have equal ones."""
    offset: int
    """Tokens of the prompt before it."""
    length: int
    """Tokens of the prompt that it takes."""
    embedded: tuple[tuple[int, int], ...] = ()
    """Runs of those of its tokens that carry an output of the encoder, each as first token and number; empty for all.
    """

    @property
    def end(self) -> int:
        """Tokens of the prompt up to its end."""
        return self.offset + self.length

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Runs of its tokens that carry an output of the encoder."""
        return self.embedded or ((0, self.length),)

    @property
    def num_embeddings(self) -> int:
        """Outputs of the encoder that it takes."""
        return sum(length for _, length in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The images of a workload, and what the encoder has for them; sizes in outputs of the encoder (embeddings)."""

    compute_tokens: int
    """Embeddings that one step computes, at most."""
    cache_tokens: int
    """Embeddings that the encoder cache holds."""
    is_whole: bool = False
    """An image is never cut: all of its tokens are computed in one step (`disable_chunked_mm_input`)."""
    inputs: Sequence[Sequence[ImageInput]] = field(default=(), repr=False)
    """Images of each request, in order of their places."""

    def check(self, release: str, *, num_groups: int) -> None:
        """Check that a release is known to serve these images, and that each fits.

        Raises:
            UsageError: it is not, or one does not.
        """
        check_feature(release, "the encoder cache")
        if num_groups > 1:
            raise UsageError("kvsim follows images where every layer keeps every token; this model has several groups.")
        largest = max((each.num_embeddings for row in self.inputs for each in row), default=0)
        if largest > min(self.compute_tokens, self.cache_tokens):
            raise UsageError(
                f"an image of {largest:,} embeddings never fits: a step computes {self.compute_tokens:,}, and the "
                f"encoder cache holds {self.cache_tokens:,}."
            )
