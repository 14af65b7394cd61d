"""What requests in the queue wait for: blocks, a place in the batch, or tokens of the next step.

A scheduler admits from the head of its queue until a limit stops it. Which one did is known from what a step holds: as
many sequences as may run, as many tokens as may be computed, or neither, and then the memory was short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an engine takes into one step."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def of(cls, *settings: Mapping[str, Any]) -> Limits | None:
        """The limits that stand in the settings of an engine or of a policy; None where they do not."""
        num_seqs, num_tokens = (_first(name, settings) for name in ("max_num_seqs", "max_num_batched_tokens"))
        if num_seqs is None or num_tokens is None:
            return None
        return cls(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens)

    def keeping(
        self, waiting: npt.NDArray[Any], running: npt.NDArray[Any], tokens: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Requests that wait after each step was scheduled, kept by the batch and by the step's tokens.

        All arrays have one entry per step: requests that wait, sequences that run, tokens that are computed. What is
        in neither result waits for memory.
        """
        full = running >= self.max_num_seqs
        return np.where(full, waiting, 0), np.where(~full & (tokens >= self.max_num_batched_tokens), waiting, 0)


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

    @classmethod
    def split(cls, waiting: float, batch: float, tokens: float) -> WaitingFor:
        """What is left of `waiting` waits for memory; sums of times may have lost a little to rounding."""
        memory = waiting - batch - tokens
        return cls(
            memory=memory if not abs(memory) < _ROUNDING * max(waiting, 1.0) else 0.0, batch=batch, tokens=tokens
        )

    def as_dict(self) -> dict[str, float]:
        """The three numbers by name."""
        return {"memory": self.memory, "batch": self.batch, "tokens": self.tokens}


_ROUNDING = 1e-9
UNKNOWN = WaitingFor(memory=np.nan, batch=np.nan, tokens=np.nan)
"""The value for an engine whose limits are not known, or in which no time passes."""
