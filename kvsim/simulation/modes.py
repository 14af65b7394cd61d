"""Choice between the interpreted and the compiled engine: compiled if that is possible and the run is long enough."""

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
"""Smallest number of requests with which a run is faster compiled, although compiling takes seconds.

The machine code is kept on disk for later runs.
"""
WORTH_LOADING = 2_000
"""Smallest number of output tokens with which a run is faster compiled if the machine code is on disk already."""
_MANY_TOKENS = 500_000
"""Smallest number of output tokens with which a run is faster compiled, even if it has few requests."""
_LONG = 50_000
"""Smallest number of requests with which a message says that the run is slow because it cannot be compiled."""


def engine_for(engine: EngineName, policy: AnyPolicy) -> EngineName:
    """Return the setting `engine`, or "interpreted" for a policy that runs Python code.

    Raises:
        UsageError: `engine` is "compiled", and the policy runs Python code.
    """
    if not runs_in_python(policy):
        return engine
    if engine == "compiled":
        is_custom = isinstance(policy, CustomPolicy)
        what = f"the policy {policy.name!r}" if is_custom else "eviction that knows all requests"
        raise UsageError(f"{what} is in Python, which is not compiled; take engine='interpreted', or leave it auto.")
    return "interpreted"


def engine_for_several(memory: MemoryManager) -> EngineName:
    """Return the value of the setting `engine` for several runs with the same kind of `memory`.

    It is "auto" if numba is missing, or if machine code is on disk already. Otherwise it is "compiled": several runs
    share the time that compiling takes.
    """
    return "compiled" if not has_machine_code(memory) and has_numba() else "auto"


def begins_compiled(
    num_requests: int,
    num_output_tokens: int,
    *,
    step_time: StepTimeModel,
    engine: EngineName,
    memory: MemoryManager | None,
) -> bool:
    """Tell whether a run with the setting `engine` is compiled from its beginning.

    With "auto", a run is compiled if it has many requests or output tokens. Fewer output tokens suffice if machine code
    for `memory` is on disk; if `memory` is None, this is not checked. A custom `step_time` cannot be compiled.
    """
    loads = engine == "compiled" or (engine == "auto" and num_output_tokens >= WORTH_LOADING)
    if loads and coefficients_of(step_time) and memory is not None and has_machine_code(memory):
        return True  # existing machine code needs no numba, which `may_compile` would load
    is_long = num_requests >= WORTH_COMPILING or num_output_tokens >= _MANY_TOKENS
    return (engine == "compiled" or is_long) and may_compile(num_requests, step_time, engine)


def may_compile(num_requests: int, step_time: StepTimeModel, engine: EngineName) -> bool:
    """Tell whether a run with the setting `engine` can be compiled, at its beginning or later. This loads numba.

    If a long run cannot be compiled, print the reason on the terminal.

    Raises:
        UsageError: `engine` is "compiled", and the run cannot be compiled.
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
