"""The compiled engine, slice by slice: made once, kept for later processes, and called again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import typeof

from kvsim import steptime
from kvsim.extrapolation import Watched
from kvsim.simulation.compiled import clocks, packing
from kvsim.simulation.compiled.engine import Engine
from kvsim.simulation.compiled.jit import entry_point
from kvsim.simulation.compiled.records import array_of
from kvsim.simulation.steps import stalled
from kvsim.steptime import StepShape, StepTimeModel

_SHAPE_COLUMNS = {
    "num_seqs": "num_scheduled",
    "num_tokens": "num_tokens",
    "num_prefill_tokens": "prefill_tokens",
    "context_tokens": "context_tokens",
    "attention_pairs": "attention_pairs",
    "shared_tokens": "shared_tokens",
    "num_new_seqs": "num_new_seqs",
}
"""The fields of a `StepShape` among those of a step."""
_QUICK_S = 3.0
"""Machine code that was kept from an earlier process is there sooner than this; compiling takes longer."""


def run(engine: Engine, step_time: StepTimeModel) -> Iterator[Engine]:
    """Run `engine` to its end, in slices; what each of them brought stands in its arrays until the next begins.

    Whoever asks for the next has taken the steps, the changes of ownership, and what is final of the schedule.

    Raises:
        StalledError: the head of the queue can never be scheduled.
    """
    advance, state = compiled_engine(), engine.state[0]
    margin = packing.memory_margin(*engine.tables.shape) if len(engine.memory_rows) else 0
    if not advance.signatures:
        _compile(advance, engine, margin)
    outcome = clocks.PAUSED
    while outcome == clocks.PAUSED:
        outcome = advance(engine, margin)
        _watch(engine, step_time)
        yield engine
        state.first_step, state.first_output, state.num_memory_rows = state.num_steps, state.num_outputs, 0
        engine = packing.with_room_for_schedule(engine)
    if outcome == clocks.STALLED:
        raise stalled(state.stalled_head - 1, engine.sequences[state.stalled_head].num_tokens)


@cache
def compiled_engine() -> Any:
    """`clocks.advance` as machine code.

    What was compiled once is kept on disk. numba looks at the source of the function that is called to see whether it
    still holds; the fingerprint makes it look at everything that went in.
    """
    fingerprint = _fingerprint()

    def advance(engine: Engine, memory_margin: int) -> int:
        return clocks.advance(engine, memory_margin) if fingerprint else clocks.ENDED

    return entry_point(advance)


def _compile(entry: Any, *arguments: Any) -> None:
    """Compile `entry` for such arguments, or load what was kept; tell a person who waits if that takes long."""
    begin_s = time.perf_counter()
    say = Timer(_QUICK_S, _tell, ["compiling the simulator, once for this machine ..."])
    say.daemon = True
    say.start()
    try:
        # A full disk keeps the machine code from being kept, not from being used.
        with suppress(OSError):
            entry.compile(tuple(map(typeof, arguments)))
    finally:
        say.cancel()
    took_s = time.perf_counter() - begin_s
    if took_s > _QUICK_S:
        _tell(f"... took {took_s:.0f} s.")


def _tell(sentence: str) -> None:
    """On standard error, where somebody watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"kvsim: {sentence}\n")


def _watch(engine: Engine, step_time: StepTimeModel) -> None:
    """Tell a model that wants to know how large the steps of the slice were."""
    steps = steps_of(engine)
    if isinstance(step_time, Watched) and len(steps):
        step_time.saw(StepShape(**{name: int(steps[column].max()) for name, column in _SHAPE_COLUMNS.items()}))


def steps_of(engine: Engine) -> npt.NDArray[np.void]:
    """The steps of the slice."""
    return array_of(engine.steps, engine.state[0].num_steps - engine.state[0].first_step)


def _fingerprint() -> int:
    """A number that changes with the source of anything that is compiled."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), *sorted(Path(steptime.__file__).parent.glob("*.py"))]
    digest = sha256(b"".join(file.read_bytes() for file in files)).digest()
    return int.from_bytes(digest[:7], "big") | 1
