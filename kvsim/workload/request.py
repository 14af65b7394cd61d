"""One request of a workload, for `Workload.from_requests`, and as iteration over a `Workload` yields it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.workload.images import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Leading tokens of a prompt that other prompts have, too."""

    group: str
    """Name of the group. Two prompts of a group begin with the same tokens, up to the smaller of their `tokens`."""
    tokens: int
    """Number of leading tokens that the prompt takes from the text of its group, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request of a `Workload`: one row of its table. `Workload` checks the values.

    Equal beginnings of prompts can be given in three ways: by `prefix`, by `prompt_hashes`, or by `prompt_token_ids`.
    """

    id: str
    arrival_s: float
    """Arrival time in seconds, from the beginning of the workload."""
    prompt_tokens: int
    output_tokens: int
    """Number of tokens in the answer. A real server does not know it in advance."""
    max_tokens: int
    """Largest number of tokens that the request allows for its answer, at least `output_tokens`."""
    priority: int = 0
    """Priority. Policies with priorities serve the smallest number first."""
    prefix: SharedPrefix | None = None
    adapter: int = 0
    """Number of the adapter (LoRA) that the request asks for, from 1 on; 0 for none."""
    prompt_hashes: tuple[int, ...] = ()
    """Chained hashes of the prompt, one for each full unit of `Workload.hash_unit_tokens` tokens.

    Prompts with the same hash are equal from the first token to the end of the hash's unit.
    """
    prompt_token_ids: tuple[int, ...] | None = None
    """Token ids of the prompt; None if unknown."""
    images: tuple[Image, ...] = ()
    """Images in the prompt, in the order of their places."""
