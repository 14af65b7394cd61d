"""What requests in the queue wait for: blocks, a place in the batch, or tokens of the next step.

A scheduler admits from the head of its queue until a limit stops it. Which one did is known from what a step holds: as
many sequences as may run, as many tokens as may be computed, or neither, and then the memory was short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an engine takes into one step; a static batch, which is full until it has ended, takes none."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def of(cls, policy: Mapping[str, Any], engine: Mapping[str, Any] = MappingProxyType({})) -> Limits | None:
        """The limits that stand in the settings of an engine or of a policy; None where they do not."""
        if policy.get("name") == "static":
            return cls(max_num_seqs=0, max_num_batched_tokens=0)
        num_seqs, num_tokens = (_first(name, (engine, policy)) for name in ("max_num_seqs", "max_num_batched_tokens"))
        if num_seqs is None or num_tokens is None:
            return None
        return cls(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens)

    def as_dict(self) -> dict[str, int]:
        """The two numbers by name."""
        return {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens}

    def split(self, waiting: Column, running: Column, tokens: Column) -> tuple[Column, Column, Column]:
        """Requests that wait for memory, for a place in the batch, and for tokens, after each step was scheduled.

        All arrays have one entry per step: requests that wait, sequences that run, tokens that are computed.
        """
        full = running >= self.max_num_seqs
        spent = ~full & (tokens >= self.max_num_batched_tokens)
        return np.where(full | spent, 0, waiting), np.where(full, waiting, 0), np.where(spent, waiting, 0)


def _first(name: str, settings: Sequence[Mapping[str, Any]]) -> int | None:
    return next((each[name] for each in settings if isinstance(each.get(name), int)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingFor:
    """Requests that wait, by what they wait for: means over time, NaN where that is not known."""

    memory: float
    batch: float
    """A place among the sequences that run: `max_num_seqs`, or a static batch that has not ended."""
    tokens: float
    """Tokens of the step: `max_num_batched_tokens`."""

    def as_dict(self) -> dict[str, float]:
        """The three numbers by name."""
        return {"memory": self.memory, "batch": self.batch, "tokens": self.tokens}


UNKNOWN = WaitingFor(memory=np.nan, batch=np.nan, tokens=np.nan)
"""The value for an engine whose limits are not known, or in which no time passes."""
