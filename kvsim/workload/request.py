"""One request, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.workload.images import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """The beginning of a prompt that other requests begin with too."""

    group: str
    """Requests of one group begin alike: any two share the smaller of their `tokens`."""
    tokens: int
    """Leading tokens of the prompt that are the group's, at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One row of a `Workload`, which checks it: a `Request` by itself is only a record.

    What two prompts have in common may be said in three ways, each more detailed than the one before: by `prefix`,
    by `prompt_hashes` or by `prompt_token_ids`.
    """

    id: str
    arrival_s: float
    """Seconds since the workload's time zero."""
    prompt_tokens: int
    output_tokens: int
    """Tokens after which the answer really ends; only an oracle knows them beforehand."""
    max_tokens: int
    """The limit on the answer that was asked for: at least `output_tokens`."""
    priority: int = 0
    """Smaller is served first, by those policies that look at it."""
    prefix: SharedPrefix | None = None
    adapter: int = 0
    """Number of the adapter (LoRA) that it names, from 1 on; 0 for none."""
    prompt_hashes: tuple[int, ...] = ()
    """One chained hash per full `Workload.hash_unit_tokens` tokens of the prompt: equal hash, equal whole prefix."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt itself, `prompt_tokens` ids; None where it is not known."""
    images: tuple[Image, ...] = ()
    """Its images, in order of their places."""
