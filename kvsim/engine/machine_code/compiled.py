"""Compilation of the engine with numba, and the choice between interpreted functions and machine code.

A part is a function of the engine that compiled code may call: plain Python over records, marked with `part`. In short
runs, and without numba, parts are interpreted. `MachineCode` compiles them. Importing this module does not load numba.
`numba_types` describes the engine's records to numba, `numba_linking` links the parts, and `object_code` stores machine
code on disk.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kvsim.engine.machine_code.addresses import Layout, addresses_of, digest_of, layout_of
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.engine.machine_code.object_code import ObjectCode

EntryPoint: TypeAlias = Callable[[Any, int, float], int]
Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of numba for every part, which is a function of the engine that compiled code may call. `fastmath` is off, so
that times equal the interpreter's to the last bit.
"""

_TRIPLE_QUOTES = 3 * b'"'

_parts: list[Callable[..., Any]] = []
_replacements: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


def part(function: Function) -> Function:
    """Declare that `function` is a part of the engine, which compiled code may call; return it unchanged."""
    _parts.append(function)
    return function


def compiled_as(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Declare that compiled code calls `replacement` instead of `function`."""
    _replacements.append((function, replacement))


def has_numba() -> bool:
    """Tell whether numba works with this Python and this NumPy. The call takes about half a second."""
    try:
        import_module("kvsim.engine.machine_code.numba_types")
    except ImportError:
        return False
    return True


class MachineCode:
    """Machine code of an entry point, the one function that Python calls. Machine code is stored on disk.

    Python calls an instance with the arguments of the entry point: an engine, an action and a number. `sources` are the
    folders with the Python files of all parts; a hash of their code is in the name of the machine code's file.
    """

    def __init__(self, function: EntryPoint, sources: Sequence[Path]) -> None:
        self._function, self._sources = function, tuple(sources)
        self._engine: Any = None
        self._addresses: Any = None
        self._call: Callable[[int, int, float], int] = lambda *_: 0

    def __call__(self, engine: Any, action: int, argument: float) -> int:
        """Run the entry point, such as `driver.act`, on `engine`, and return its result. The entry point says what
        `action`, `argument` and the result mean. If there is no machine code for the engine's layout, compile it first.
        """
        if engine is not self._engine:
            self._call = _ready(self._function, self._sources, layout_of(engine))
            self._engine, self._addresses = engine, addresses_of(engine)
        return self._call(self._addresses.ctypes.data, action, argument)


def is_on_disk(memory: object, sources: Sequence[Path]) -> bool:
    """Tell whether machine code for `memory`, a `MemoryManager`, is on disk. Loading such code takes less than 0.1 s.
    The code may be for another layout of the engine.
    """
    with suppress(ImportError, OSError):
        pattern = f"*{_stem(memory, tuple(sources))}-*"
        return any(any(folder.glob(pattern)) for folder in _folders())
    return False


@cache
def _ready(function: EntryPoint, sources: tuple[Path, ...], layout: Layout) -> Callable[[int, int, float], int]:
    from kvsim.engine.machine_code import object_code  # noqa: PLC0415  loaded only if a run is compiled

    name = f"{function.__name__}-{_stem(dict(layout)['memory'], sources)}-{digest_of(layout)}.o"
    for folder in _folders():
        if code := object_code.read(folder / name):
            return object_code.load(code)
    code = _compile(function, layout)
    for folder in _folders():
        # If a folder is read-only or the disk is full, the code is used without being kept.
        with suppress(OSError, UsageError):
            object_code.keep(code, folder / name)
            break
    _remove_outdated(name)
    return object_code.load(code)


def _remove_outdated(name: str) -> None:
    """Remove the files beside the sources that hold machine code of earlier sources for the same entry point, processor
    and kind of memory as the file `name`.
    """
    function, _, *rest = name.split("-")
    for folder in _folders()[:1]:
        for file in folder.glob("-".join((function, "*", *rest[:2], "*.o"))):
            if file.name.split("-")[1] != name.split("-")[1]:
                with suppress(OSError):
                    file.unlink()


@cache
def _stem(memory: object, sources: tuple[Path, ...]) -> str:
    from kvsim.engine.machine_code import object_code  # noqa: PLC0415  as above

    return f"{_fingerprint(sources)}-{sha256(object_code.target().encode()).hexdigest()[:8]}-{memory}"


def _folders() -> list[Path]:
    """Return the folders for machine code, best first: beside the sources, then the user's cache folder."""
    folders = [Path(__file__).parent / "__pycache__"]
    with suppress(RuntimeError):  # the user has no home folder
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim")
    return folders


def part_options() -> dict[str, Any]:
    """Return numba's options for compiling parts, with the compiler of `numba_linking` if it knows numba's release."""
    from kvsim.engine.machine_code import numba_linking  # noqa: PLC0415  as above

    return _OPTIONS | ({"pipeline_class": numba_linking.PartCompiler} if numba_linking.is_known() else {})


def entry_options() -> dict[str, Any]:
    """Return numba's options for the entry point, with the compiler of `numba_linking` if it knows numba's release."""
    from kvsim.engine.machine_code import numba_linking  # noqa: PLC0415  as above

    known = {"pipeline_class": numba_linking.EntryCompiler} if numba_linking.is_known() else {}
    return {"error_model": _OPTIONS["error_model"]} | known


def _register_parts() -> None:
    """Tell numba how to compile each part that was declared since the last call: as itself, or as its replacement."""
    from numba.extending import overload  # noqa: PLC0415  as above

    implementations = [(function, without_asserts(function)) for function in _parts] + _replacements
    for function, implementation in implementations:
        overload(function, strict=False, jit_options=part_options())(_for_all_types(implementation))
    _parts.clear()
    _replacements.clear()


def without_asserts(function: Function) -> Function:
    """Return a copy of `function` without its asserts, because machine code cannot raise exceptions."""
    code = _codes(function.__code__.co_filename)[function.__qualname__, function.__code__.co_firstlineno]
    made: Any = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    return made  # type: ignore[no-any-return]


@cache
def _codes(file: str) -> dict[tuple[str, int], CodeType]:
    """Return the code of each function in a source file, without asserts, by (qualified name, first line)."""
    module = compile(Path(file).read_text(encoding="utf-8"), file, "exec", optimize=1, dont_inherit=True)
    return {(code.co_qualname, code.co_firstlineno): code for code in module.co_consts if isinstance(code, CodeType)}


def _for_all_types(implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for numba's `overload` that gives `implementation` for arguments of any types."""
    return lambda *_types: implementation


def _compile(function: EntryPoint, layout: Layout) -> ObjectCode:
    if not has_numba():
        raise UsageError("this run cannot be compiled without numba; take --engine interpreted.")
    from kvsim.engine.machine_code import numba_types, object_code  # noqa: PLC0415  as above

    begin_s = time.perf_counter()
    _print_message("compiling the simulator, once for this machine ...")
    _register_parts()
    with _no_collections():
        code = object_code.translate(*numba_types.to_llvm(function, layout, entry_options()))
    _print_message(f"... took {time.perf_counter() - begin_s:.0f} s.")
    return code


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause Python's garbage collector. It would find little: nearly all objects are used until the end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # Moves the compiler's objects to the oldest generation, which the next collections do not visit.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _print_message(message: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"kvsim: {message}\n")


def _fingerprint(sources: Sequence[Path]) -> str:
    files = [file for folder in sources for file in sorted(folder.glob("**/*.py"))]
    return sha256(b"".join(code_of(file.read_bytes()) for file in files)).hexdigest()[:16]


def code_of(source: bytes) -> bytes:
    """Return a Python source without docstrings, comments and empty lines, on which machine code does not depend.

    Every text in triple quotes counts as a docstring. A comment with a quote that follows code is kept, because it may
    be part of a text. Parsing would find every comment, but takes half a second.
    """
    lines = b"".join(source.split(_TRIPLE_QUOTES)[::2]).splitlines()
    return b"".join(code.rstrip() + b"\n" for line in lines if (code := _without_comment(line)).strip())


def _without_comment(line: bytes) -> bytes:
    code, _, comment = line.partition(b"#")
    return line if code.strip() and (b"'" in comment or b'"' in comment) else code
