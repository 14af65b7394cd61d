"""The records of an engine that also gets KV from host memory, a store, or another server.

An engine without such KV has an empty tuple instead of these records, and its compiled code leaves them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvsim.engine.arrays import Numbers, Records, make, make_one, numbers
from kvsim.engine.records import Small


@dataclass(slots=True, eq=False, repr=False)
class ExternalState:
    """The numbers of external KV that change from step to step."""

    num_updates: int = 0
    """Number of steps whose output was processed, empty ones included."""
    num_steps_begun: int = 0
    """Number of scheduled steps that compute tokens."""
    num_steps_processed: int = 0
    """Number of processed steps that computed tokens."""
    num_deferred: int = 0
    num_prefilling: int = 0
    num_settled_calls: int = 0
    """Number of consecutive calls of the scheduler without effect."""


@dataclass(slots=True, eq=False, repr=False)
class ExternalSequence:
    """State of one sequence beside its `Sequence` record."""

    prefilling_place: Small = 0
    """Index of the sequence in `ExternalKV.prefilling`, counted from 1; 0 if it is not there."""
    last_step: int = 0
    """Number of the last step that computed tokens of the sequence."""
    free_after: int = 0
    """Number of the step that must be processed before the blocks of the sequence are free."""
    dead_tokens: Small = 0
    """Number of computed tokens in those blocks of the sequence that are freed late."""


class ExternalKV(NamedTuple):
    """The records of an engine with a host tier or a connector."""

    state: ExternalState
    sequences: Records[ExternalSequence]
    prefilling: Numbers
    """Sequences that are loading or inside their prompt; the pool reserves blocks for the rest of the prompt."""
    deferred: Numbers
    """Sequences whose tables are given up, but whose blocks are freed only after steps in flight, in order
    of release.
    """


def external_kv(size: int, *, compiled: bool) -> ExternalKV:
    """Return the records for `size` sequences."""
    return ExternalKV(
        state=make_one(ExternalState, compiled=compiled),
        sequences=make(ExternalSequence, size + 1, compiled=compiled),
        prefilling=numbers(np.zeros(size, np.int64), compiled=compiled),
        deferred=numbers(np.zeros(size, np.int64), compiled=compiled),
    )
