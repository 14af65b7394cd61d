"""The interface of a scheduler, as a record of functions: one for vLLM's scheduler, one for SGLang's.

The clock, the driver and `moments` call a scheduler only through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvsim.engine.records import Sequence

Engine: TypeAlias = Any
"""`state.Engine`. It is `Any` here because `state` imports this module."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scheduler:
    """Functions of one scheduler."""

    name: str
    """Name of the server program, such as `vllm`."""
    has_work: Callable[[Engine], bool]
    """Tell whether another call of `schedule` is due."""
    add: Callable[[Engine, Sequence], None]
    """Queue a sequence that has arrived."""
    schedule: Callable[[Engine], None]
    """Decide the next step, list its sequences in `Engine.batch`, allocate its memory and put it in flight."""
    awaits_output: Callable[[Engine], bool]
    """Tell whether the output of the oldest step is processed before another step is scheduled."""
    update: Callable[[Engine], None]
    """Process the output of the oldest step in flight."""
    abort: Callable[[Engine, Sequence], None]
    """Abort a sequence. vLLM ends it at once, in any state. SGLang ends a running one only with its next output, or in
    the next pass if its prompt is not complete.
    """
    num_running: Callable[[Engine], int]
    """Return the number of running sequences for rows of steps: in SGLang, all with a row in the request table."""
    is_stalled: Callable[[Engine], bool]
    """Tell whether the engine would wait for ever. `State.stalled_sequence` is then the sequence without room."""

    def __repr__(self) -> str:
        return self.name
