"""The only module that knows numba: the engine as it stands, or as machine code.

Every function of the engine is written once, as plain Python over records. `part` says that a function belongs to it.
Without numba, and in runs too short to be worth loading it, the functions run as they stand. `machine_code` hands the
same functions to numba, which compiles them as they stand. Importing this module does not load numba.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Sums keep their order, so that times equal those of the interpreter to the last bit."""
_UNDOCUMENTED: tuple[dict[str, Any], ...] = ({"_nrt": False}, {"forceinline": True})
"""Compiled code allocates nothing, so counting references to its arrays is not needed and would cost more than the
rest. A call hands over every array of the engine, some 200 numbers, which would cost more than half of what is left:
parts become part of what calls them. Where a release of numba refuses one of the two, the engine is compiled without,
and is slower.
"""
_LONGEST_INLINED = 1_000
"""Bytes of the interpreter's code; longer parts are called. They are few, and compiling them once for every caller
takes longer.
"""
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
        import_module("numba")
    except ImportError:
        return False
    return True


def machine_code(function: Function, sources: Sequence[Path]) -> Function:
    """`function`, a part of the engine, as machine code that can be called from Python.

    What was compiled once is kept on disk. numba looks at the file of the function that is called to see whether that
    still holds; `sources` are the folders of all that goes in, and their fingerprint makes it look at every file.
    """
    _hand_over()
    fingerprint = _fingerprint(sources)

    def entry(engine: Any, action: int, argument: float) -> Any:
        return function(engine, action, argument) if fingerprint else 0

    compiled = _entry_point(entry)

    def call(*arguments: Any) -> Any:
        if not compiled.signatures:
            _compile(compiled, arguments)
        return compiled(*arguments)

    return call  # type: ignore[return-value]


def options() -> dict[str, Any]:
    """The options that this release of numba takes."""
    from numba import njit  # noqa: PLC0415  loaded when the first long run asks for it

    taken: dict[str, Any] = dict(_OPTIONS)
    for option in _UNDOCUMENTED:
        with suppress(KeyError, TypeError):
            njit(**taken, **option)(lambda: None)
            taken |= option
    return taken


def _hand_over() -> None:
    """Tell numba of every part, once."""
    from numba.extending import overload, register_jitable  # noqa: PLC0415  as above

    chosen, called = options(), _when_called(options())
    for function in _parts:
        is_short = len(function.__code__.co_code) <= _LONGEST_INLINED
        register_jitable(**chosen if is_short else called)(function)
    for function, meaning in _other_meanings:
        overload(function, strict=False, jit_options=chosen)(_always(meaning))
    for function, choices in _choices:
        overload(function, strict=False, jit_options=chosen)(_of_memory(choices))
    _choices.clear()
    _parts.clear()
    _other_meanings.clear()


def _when_called(chosen: dict[str, Any]) -> dict[str, Any]:
    """The same options for a part that stays by itself; a part that says nothing would do as its caller does."""
    return chosen | {name: False for name in ("forceinline",) if name in chosen}


def _of_memory(choices: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """The same for a choice: the type of the engine tells how many zeros its memory is."""
    return lambda engine, *_types: choices[len(engine.types[engine.fields.index("memory")])]


def _always(meaning: Callable[..., Any]) -> Callable[..., Any]:
    """What `overload` asks for: a function of the types that says what to compile."""
    return lambda *_types: meaning


def _entry_point(function: Callable[..., Any]) -> Any:
    from numba import njit  # noqa: PLC0415  as above

    entry = njit(**_when_called(options()) | {"no_cpython_wrapper": False})(function)
    # A read-only installation and no home directory: compile in every process.
    with suppress(RuntimeError, OSError):
        entry.enable_caching()
    return entry


def _compile(entry: Any, arguments: tuple[Any, ...]) -> None:
    """Compile `entry` for such arguments, or load what was kept; say so where a person waits for it."""
    from numba import typeof  # noqa: PLC0415  as above

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
    """Write to standard error, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"kvsim: {sentence}\n")


def _fingerprint(sources: Sequence[Path]) -> int:
    """A number that changes with the source of anything that is compiled."""
    files = [file for folder in sources for file in sorted(folder.glob("**/*.py"))]
    digest = sha256(b"".join(file.read_bytes() for file in files)).digest()
    return int.from_bytes(digest[:7], "big") | 1
