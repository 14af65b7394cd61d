"""numba behind a typed door: what it compiles keeps its signature for whoever reads or checks the code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from numba import njit
from numba.extending import overload, register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile `function` as a part of `entry_point`.

    Sums keep their order, so that times are those of the interpreter to the last bit. Nothing is allocated in compiled
    code, so arrays need no counting of references, which would cost more than all the rest; and nobody calls such a
    function from outside, so it needs no wrapper.
    """
    part: Function = njit(error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return part


def entry_point(function: Function) -> Any:
    """Compile `function`, which is called from outside, and keep the machine code for other processes if possible."""
    entry = njit(error_model="numpy", _nrt=False, no_cfunc_wrapper=True)(function)
    # A read-only installation and no home directory: compile in every process.
    with suppress(RuntimeError, OSError):
        entry.enable_caching()
    return entry


def usable_when_compiled(function: Function) -> Function:
    """Let compiled code call `function`, which stays what it is for everybody else."""
    same: Function = register_jitable(function)
    return same


def compiled_as(function: Function, same: Function) -> None:
    """Let compiled code that calls `function` do what `same` does, where the types decide between cases."""
    overload(function, strict=False)(lambda *_arguments: same)
