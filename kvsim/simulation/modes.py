"""Modes of the engine: interpreted, or compiled if that is possible and the run is long enough."""

from __future__ import annotations

import sys
from typing import Literal, TypeAlias

from kvsim.engine.coefficients import coefficients_of
from kvsim.engine.driver import has_machine_code
from kvsim.engine.machine_code.compiled import has_numba
from kvsim.engine.memory import MemoryManager
from kvsim.errors import UsageError
from kvsim.policies import AnyPolicy, CustomPolicy
from kvsim.policies.kinds import runs_in_python
from kvsim.steptime import StepTimeModel

EngineName: TypeAlias = Literal["auto", "compiled", "interpreted"]
WORTH_COMPILING = 5_000
"""Requests from which on a run is worth the time of compiling, which is once for a machine."""
WORTH_LOADING = 2_000
"""Output tokens from which on a run that is interpreted takes longer than loading machine code that is at hand."""
_MANY_TOKENS = 500_000
"""Output tokens from which on few requests are worth it too: they are a step each in the smallest batch."""
_LONG = 50_000


def engine_for(engine: EngineName, policy: AnyPolicy) -> EngineName:
    """Return `engine`, or `interpreted` if the policy decides in Python.

    Raises:
        UsageError: it should be compiled all the same.
    """
    if not runs_in_python(policy):
        return engine
    if engine == "compiled":
        is_own = isinstance(policy, CustomPolicy)
        what = f"the policy {policy.name!r}" if is_own else "eviction that knows all requests"
        raise UsageError(f"{what} is in Python, which is not compiled; take engine='interpreted', or leave it auto.")
    return "interpreted"


def engine_for_several(memory: MemoryManager) -> EngineName:
    """Return the engine to request if several runs with a kind of memory are together worth compiling."""
    return "compiled" if not has_machine_code(memory) and has_numba() else "auto"


def begins_compiled(
    num_requests: int,
    num_output_tokens: int,
    step_time: StepTimeModel,
    engine: EngineName,
    memory: MemoryManager | None,
) -> bool:
    """Tell whether a run of that many requests and tokens that asks for `engine` is compiled from its beginning.

    `memory` is the kind of memory that its engine has, whose machine code may be at hand; None not to look for it.

    Raises:
        UsageError: it should be, and cannot.
    """
    pays = engine == "compiled" or (engine == "auto" and num_output_tokens >= WORTH_LOADING)
    if pays and coefficients_of(step_time) and memory is not None and has_machine_code(memory):
        return True  # without loading numba
    is_long = num_requests >= WORTH_COMPILING or num_output_tokens >= _MANY_TOKENS
    return (engine == "compiled" or is_long) and may_compile(num_requests, step_time, engine)


def may_compile(num_requests: int, step_time: StepTimeModel, engine: EngineName) -> bool:
    """Tell whether a run that asks for `engine` is compiled once it turns out to be long. Loads numba, if it is.

    Raises:
        UsageError: it should be, and cannot.
    """
    if engine == "interpreted":
        return False
    obstacle = ""
    if not coefficients_of(step_time):
        obstacle = f"the step times are a model of their own ({step_time.label}), in Python"
    elif not has_numba():
        obstacle = "numba is not installed, or does not support this Python"
    if not obstacle:
        return True
    if engine == "compiled":
        raise UsageError(f"this run cannot be compiled: {obstacle}; take --engine interpreted, or leave it auto.")
    if num_requests >= _LONG and sys.stderr.isatty():
        sys.stderr.write(f"kvsim: {obstacle}, so this long run is interpreted; compiled it is some 50 times faster.\n")
    return False
