"""State of an engine that also gets KV from host memory, from a store, or from another server.

An engine without such KV has an empty tuple instead, and its compiled code has no code for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.engine.arrays import Numbers, Records, Tables, make, make_one, numbers
from kvsim.engine.records import Small


@dataclass(slots=True, eq=False, repr=False)
class ExternalState:
    """Numbers that change from step to step, for KV from outside the pool."""

    num_updates: int = 0
    """Number of steps whose output was processed. Steps without tokens count."""
    num_steps_begun: int = 0
    """Number of scheduled steps that compute tokens."""
    num_steps_processed: int = 0
    """Number of processed steps that computed tokens."""
    num_deferred: int = 0
    num_prefilling: int = 0
    num_idle_calls: int = 0
    """Number of consecutive calls of the scheduler, up to the last one, that changed nothing."""


@dataclass(slots=True, eq=False, repr=False)
class ExternalSequence:
    """State of one sequence that only a host tier or a KV connector needs."""

    prefilling_place: Small = 0
    """Index of the sequence in `ExternalKV.prefilling` plus 1; 0 if the sequence is not there."""
    last_step: int = 0
    """Number of the last step that computed tokens of the sequence. See `ExternalState.num_steps_begun`."""
    free_after: int = 0
    """Step with whose output the sequence's blocks are freed, counted as in `ExternalState.num_steps_begun`."""
    dead_tokens: Small = 0
    """Number of computed tokens that the sequence had when it gave up its blocks, freed only after steps in flight."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExternalKV(Tables):
    """Engine state that only a host tier or a KV connector needs. `external_kv` allocates it."""

    state: ExternalState
    sequences: Records[ExternalSequence]
    prefilling: Numbers
    """Numbers of the sequences that load or compute their prompt, for whose remaining parts blocks are reserved."""
    deferred: Numbers
    """Numbers of the sequences whose blocks will be freed after steps in flight, in this order."""


def external_kv(size: int, *, compiled: bool) -> ExternalKV:
    """Return the initial state for `size` sequences."""
    return ExternalKV(
        state=make_one(ExternalState, compiled=compiled),
        sequences=make(ExternalSequence, size + 1, compiled=compiled),
        prefilling=numbers(np.zeros(size, np.int64), compiled=compiled),
        deferred=numbers(np.zeros(size, np.int64), compiled=compiled),
    )
