"""Which engine simulates a run: the compiled one, where it can and where starting it pays, or the one in Python."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, TypeAlias

from kvsim.errors import MissingExtraError, UsageError
from kvsim.extrapolation import Watched
from kvsim.policies import Contiguous, Paged, Policy
from kvsim.profiles import Profile
from kvsim.recording import Pool
from kvsim.scheduling.settings import Reserve
from kvsim.simulation.compiled.packing import FITS, Lengths, num_running, table_width
from kvsim.steptime import Roofline, StepTimeModel
from kvsim.workload import Workload

EngineName: TypeAlias = Literal["auto", "compiled", "python"]
WORTH_COMPILING = 5_000
"""Requests from which on a run in Python takes longer than loading the compiled engine, most of a second."""
_MOST_TABLE_ENTRIES = 1 << 28
_MOST_TOKENS = 1 << 31


def runs_compiled(
    workload: Workload, policy: Policy, pool: Pool, step_time: StepTimeModel, *, engine: EngineName, step_by_step: bool
) -> bool:
    """Whether the compiled engine simulates a run that asks for `engine`, or to be taken `step_by_step` in Python.

    Raises:
        MissingExtraError: it should, and numba is not installed.
        UsageError: it should, and what the run asks for is not in it.
    """
    if engine == "python" or (engine == "auto" and (step_by_step or len(workload) < WORTH_COMPILING)):
        return False
    obstacle = (
        "checks and the reference engine are in Python"
        if step_by_step
        else _obstacle(workload, policy, pool, step_time)
    )
    if engine == "auto":
        return not obstacle and has_numba()
    if obstacle:
        raise UsageError(
            f"the compiled engine cannot do this run: {obstacle}; take engine 'python', or leave it 'auto'."
        )
    if not has_numba():
        raise MissingExtraError("the compiled engine", "fast")
    return True


def has_numba() -> bool:
    """Whether numba is there, and for this Python and this NumPy; it is loaded by that, which takes half a second."""
    try:
        import_module("numba")
    except ImportError:
        return False
    return True


def coefficients_of(step_time: StepTimeModel) -> Roofline | None:
    """The coefficients that all of the times follow from, if they do."""
    times = step_time.times if isinstance(step_time, Profile | Watched) else step_time
    return times if type(times) is Roofline else None


def _obstacle(workload: Workload, policy: Policy, pool: Pool, step_time: StepTimeModel) -> str:
    """What the compiled engine does not know; empty if it knows everything."""
    if not isinstance(policy, Paged | Contiguous):
        return "a static batch is computed as a whole already"
    obstacles = {
        "its step times are a model of its own": coefficients_of(step_time) is None,
        "its sequences may be too long for tables of a fixed size": _are_too_long(workload, policy, pool),
    }
    if isinstance(policy, Paged):
        cache = policy.cache
        obstacles |= {
            "it swaps to host memory": bool(cache.swap_gib),
            "it drafts tokens": bool(cache.num_speculative_tokens),
        }
    else:
        reservations = policy.cache
        obstacles |= {
            "its reservations grow": reservations.reserve is Reserve.DOUBLING,
            "its memory is compacted": reservations.compaction,
            "its memory is shared out by batch": reservations.request_level,
            "its memory is shared out in buddies": reservations.fit not in FITS,
        }
    return next((words for words, is_so in obstacles.items() if is_so), "")


def _are_too_long(workload: Workload, policy: Paged | Contiguous, pool: Pool) -> bool:
    if policy.max_model_len >= _MOST_TOKENS:
        return True
    width = table_width(Lengths.of(workload, policy.max_model_len), policy, pool)
    return width * num_running(workload, policy) > _MOST_TABLE_ENTRIES
