"""Machine code of the engine on disk: later runs load it in less than 0.1 s, without numba.

A file holds one function with C calling conventions, for one type of processor. It begins with a header, which is one
line of JSON. If a file is damaged, the function is compiled again.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from kvsim.files.atomic import whole_file

_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double)
_NEVER_CALLED = frozenset(
    {"NRT_Free", "numba_do_raise", "numba_gil_ensure", "numba_gil_release", "numba_runtime_build_excinfo_struct",
     "numba_unpickle"}
)  # fmt: skip
"""Functions of numba's runtime that machine code needs only to raise exceptions, which the engine never does.

They are missing if numba is not loaded, so `load` replaces them by an abort. Machine code that needs other functions of
the runtime is refused.
"""
_loaded: list[Any] = []
"""Objects that own the memory of loaded machine code. They are kept so that the memory is never freed."""


class ObjectCode(NamedTuple):
    """Machine code of one function."""

    name: str
    declared: tuple[str, ...]
    """Names of external functions and data that the machine code refers to."""
    content: bytes


@cache
def target() -> str:
    """Return an identifier of this processor and llvmlite's version, without which machine code is not valid."""
    features = sha256(_features().encode()).hexdigest()[:8]
    return f"{llvm.get_process_triple()}-{llvm.get_host_cpu_name()}-{features}-{llvmlite.__version__}"


def translate(code: str, name: str) -> ObjectCode:
    """Generate machine code for this processor from `code`, optimised LLVM assembly with the function `name`."""
    module = llvm.parse_assembly(code)
    declared = [each.name for each in (*module.functions, *module.global_variables) if each.is_declaration]
    missing = [name for name in declared if name.startswith(("numba_", "NRT_")) and name not in _NEVER_CALLED]
    assert not missing, f"machine code that calls {', '.join(missing)} cannot be used without numba"
    return ObjectCode(name, tuple(declared), _machine().emit_object(module))


def load(code: ObjectCode) -> Callable[[int, int, float], int]:
    """Load machine code into memory. Return a function of the table of addresses (as its address), an action and an
    argument, which runs the code.
    """
    abort = ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p).value
    for name in _NEVER_CALLED.intersection(code.declared):
        if llvm.address_of_symbol(name) is None:
            llvm.add_symbol(name, abort)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    _loaded.append(engine)
    return _SIGNATURE(engine.get_function_address(code.name))


def read(path: Path) -> ObjectCode | None:
    """Read machine code from a file; return None if the file is missing or damaged."""
    try:
        first_line, _, content = path.read_bytes().partition(b"\n")
        header = json.loads(first_line)
        if header["sha256"] != sha256(content).hexdigest():
            return None
        return ObjectCode(header["name"], tuple(header["declared"]), content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(code: ObjectCode, path: Path) -> None:
    """Write machine code to the file `path`."""
    header = {"name": code.name, "declared": code.declared, "sha256": sha256(code.content).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write_bytes(json.dumps(header).encode() + b"\n" + code.content)


def _features() -> str:
    return str(llvm.get_host_cpu_features().flatten())


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _machine() -> Any:
    _initialize()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    return triple.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=3, codemodel="jitdefault", jit=True
    )
