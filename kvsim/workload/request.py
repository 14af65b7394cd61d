"""One request of a workload, as users give it to `Workload.from_requests` or read it from a `Workload`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.workload.images import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Leading tokens of a prompt that other prompts have too."""

    group: str
    """Name of the group. Two requests of a group share as many leading tokens as the smaller of their two `tokens`."""
    tokens: int
    """Number of leading tokens of the prompt that belong to the shared prefix, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row of a `Workload`. The values are checked by `Workload`, not here.

    The common prefix of two prompts can be given at three levels of detail: by `prefix`, by `prompt_hashes`, or by
    `prompt_token_ids`.
    """

    id: str
    arrival_s: float
    """Seconds since the workload's time zero."""
    prompt_tokens: int
    output_tokens: int
    """Length of the answer. A real server does not know it in advance."""
    max_tokens: int
    """Limit on the length of the answer in the request: at least `output_tokens`."""
    priority: int = 0
    """Priority; policies with priorities serve the smallest number first."""
    prefix: SharedPrefix | None = None
    adapter: int = 0
    """Number of the adapter (LoRA) that the request names, from 1 on; 0 for none."""
    prompt_hashes: tuple[int, ...] = ()
    """Chained hashes of the prompt, one per full `Workload.hash_unit_tokens` tokens. Two equal hashes mean that the
    prompts are equal from the first token to the end of the unit.
    """
    prompt_token_ids: tuple[int, ...] | None = None
    """Token ids of the prompt; None if they are not known."""
    images: tuple[Image, ...] = ()
    """Images in the prompt, in order of their places."""
