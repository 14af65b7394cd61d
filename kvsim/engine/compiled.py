"""The door to numba: the engine as it stands, or as machine code.

Every function of the engine is written once, as plain Python over records. `part` says that a function belongs to it.
Without numba, and in runs too short to be worth loading it, the functions run as they stand. `MachineCode` is the same
functions as numba compiles them. Importing this module does not load numba; what numba has to be told of the engine's
records stands in `numba_types`, how parts are put together in `numba_linking`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Sums keep their order, so that times equal those of the interpreter to the last bit."""
_QUICK_S = 3.0
"""Machine code kept by an earlier process loads faster than this; compiling takes longer."""

_parts: list[Callable[..., Any]] = []
_choices: list[tuple[Callable[..., Any], tuple[Callable[..., Any], ...]]] = []
_other_meanings: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


def part(function: Function) -> Function:
    """Say that `function` belongs to the engine: it runs as it stands, and compiled code may call it."""
    _parts.append(function)
    return function


def compiled_as(function: Callable[..., Any], meaning: Callable[..., Any]) -> None:
    """Let compiled code that calls `function` call `meaning`, for arguments of types that only compiled code has."""
    _other_meanings.append((function, meaning))


def chosen_by_memory(*choices: Function) -> Function:
    """A part that is `choices[n]` where the memory of its engine, the first argument, is the n-th kind.

    Compiled code for one kind holds nothing of the others: the type of `Engine.memory` decides.
    """

    def choose(engine: Any, *arguments: Any) -> Any:
        return choices[len(engine.memory)](engine, *arguments)

    _choices.append((choose, choices))
    return choose  # type: ignore[return-value]


def has_numba() -> bool:
    """Whether numba is there, and works with this Python and this NumPy. The call loads it, in about half a second."""
    try:
        import_module("kvsim.engine.numba_types")
    except ImportError:
        return False
    return True


class MachineCode:
    """A part of the engine as machine code, for the engine of one run, which Python calls like the part itself.

    What was compiled once is kept on disk. numba looks at the file of the function that is called to see whether that
    still holds; `sources` are the folders of all that goes in, and their fingerprint makes it look at every file.
    """

    def __init__(self, function: Callable[[Any, int, float], int], sources: Sequence[Path]) -> None:
        self._entry = _entry_point(function, tuple(sources))
        self._engine: Any = None
        self._handle: Any = None

    def __call__(self, engine: Any, action: int, argument: float) -> int:
        """Do what `function(engine, action, argument)` does, with the arrays of `engine`."""
        if engine is not self._engine:
            from kvsim.engine.numba_types import Handle  # noqa: PLC0415  loaded when the first long run asks for it

            self._engine, self._handle = engine, Handle(engine)
            _compile(self._entry, (self._handle, action, argument))
        return int(self._entry(self._handle, action, argument))


def part_options() -> dict[str, Any]:
    """The options with which parts are compiled."""
    from kvsim.engine import numba_linking  # noqa: PLC0415  as above

    return _OPTIONS | ({"pipeline_class": numba_linking.PartCompiler} if numba_linking.is_known() else {})


@cache
def _entry_point(function: Callable[[Any, int, float], int], sources: tuple[Path, ...]) -> Any:
    from numba import njit  # noqa: PLC0415  as above

    _hand_over()
    fingerprint = _fingerprint(sources)

    def entry(engine: Any, action: int, argument: float) -> Any:
        return function(engine, action, argument) if fingerprint else 0

    compiled = njit(**_OPTIONS | {"no_cpython_wrapper": False})(entry)
    # A read-only installation and no home directory: compile in every process.
    with suppress(RuntimeError, OSError):
        compiled.enable_caching()
    return compiled


def _hand_over() -> None:
    """Tell numba of every part, once."""
    from numba.extending import overload, register_jitable  # noqa: PLC0415  as above

    options = part_options()
    for function in _parts:
        register_jitable(**options)(function)
    for function, meaning in _other_meanings:
        overload(function, strict=False, jit_options=options)(_always(meaning))
    for function, choices in _choices:
        overload(function, strict=False, jit_options=options)(_of_memory(choices))
    _choices.clear()
    _parts.clear()
    _other_meanings.clear()


def _of_memory(choices: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """The same for a choice: the type of the engine tells how many zeros its memory is."""
    return lambda engine, *_types: choices[engine.length_of("memory")]


def _always(meaning: Callable[..., Any]) -> Callable[..., Any]:
    """What `overload` asks for: a function of the types that says what to compile."""
    return lambda *_types: meaning


def _compile(entry: Any, arguments: tuple[Any, ...]) -> None:
    """Compile `entry` for such arguments, or load what was kept; say so where a person waits for it."""
    from numba import typeof  # noqa: PLC0415  as above

    types = tuple(map(typeof, arguments))
    if types in entry.overloads:
        return
    begin_s = time.perf_counter()
    say = Timer(_QUICK_S, _tell, ["compiling the simulator, once for this machine ..."])
    say.daemon = True
    say.start()
    try:
        # A full disk keeps the machine code from being kept, not from being used.
        with suppress(OSError):
            entry.compile(types)
    finally:
        say.cancel()
    took_s = time.perf_counter() - begin_s
    if took_s > _QUICK_S:
        _tell(f"... took {took_s:.0f} s.")


def _tell(sentence: str) -> None:
    """Write to standard error, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"kvsim: {sentence}\n")


def _fingerprint(sources: Sequence[Path]) -> int:
    """A number that changes with the source of anything that is compiled."""
    files = [file for folder in sources for file in sorted(folder.glob("**/*.py"))]
    digest = sha256(b"".join(file.read_bytes() for file in files)).digest()
    return int.from_bytes(digest[:7], "big") | 1
