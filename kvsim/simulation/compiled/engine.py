"""All that the compiled engine works on: arrays, in a tuple with a name for each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.simulation.compiled.records import (
    Block,
    Bucket,
    Hole,
    Launched,
    MemoryRow,
    Output,
    Records,
    ScheduleRow,
    Sequence,
    Settings,
    State,
    Step,
    Times,
)  # fmt: skip

WAITING, RUNNING, PREEMPTED, FINISHED = range(4)
"""Where a sequence stands."""
FIRST_FIT, BEST_FIT, NEXT_FIT = range(3)
"""Which hole an extent is cut from."""
NO_KEY = -(1 << 63)
"""The key of a block that holds no prefix; no block of any request has it."""


class Engine(NamedTuple):
    """A run under way. Request `row` of the workload is element `row + 1` of what there is per request: see `rings`."""

    settings: Records[Settings]
    """One record, as is `state`."""
    coefficients: Records[Any]
    """Of the step-time model, under the names that it has there."""
    state: Records[State]
    sequences: Records[Sequence]
    times: Records[Times]
    running: npt.NDArray[np.int32]
    """Sequences in order of admission."""
    heap: npt.NDArray[np.int32]
    """Those who wait, where priority orders them; otherwise they stand in a ring."""
    batch: npt.NDArray[np.int32]
    """The step being scheduled: sequences in order of scheduling."""
    batch_tokens: npt.NDArray[np.int32]
    """What each of them computes."""
    leaving: npt.NDArray[np.int32]
    """Sequences that have given up the slot of a surprising token since the last step."""
    launched: Records[Launched]
    """Steps under way, of which there are at most two."""
    emitting: npt.NDArray[np.int32]
    """For each of these, the sequences that it yields an output for."""
    tables: npt.NDArray[np.int32]
    """Blocks of each running sequence."""
    free_tables: npt.NDArray[np.int32]
    hits: npt.NDArray[np.int32]
    """Blocks that were found for the head of the queue."""
    prompt_keys: npt.NDArray[np.int64]
    """Keys of the full blocks of all prompts, end to end."""
    key_offsets: npt.NDArray[np.int64]
    """Where each prompt's keys begin, and where the last end."""
    blocks: Records[Block]
    buckets: Records[Bucket]
    """The prefix cache: a block is in the bucket of its key."""
    holes: Records[Hole]
    """Free slots of a contiguous memory, in order of address."""
    steps: Records[Step]
    """The steps of this slice of the run."""
    outputs: Records[Output]
    memory_rows: Records[MemoryRow]
    """Changes of ownership so far, if they are written down; so for the schedule."""
    schedule_rows: Records[ScheduleRow]
