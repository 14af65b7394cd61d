"""Machine code of the engine on disk: written once, and loaded without numba, in less than a tenth of a second.

A file holds one function that can be called like one of C, for one processor. It begins with a line of JSON that says
what is in it; a damaged one is made again.
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
"""Functions of numba that raise an error in Python, which the engine never does. No others are there without numba."""
_loaded: list[Any] = []
"""Owners of the memory of loaded code, which stays to the end of the process."""


class ObjectCode(NamedTuple):
    """A function as machine code."""

    name: str
    declared: tuple[str, ...]
    """Functions and data outside of it that it names."""
    content: bytes


@cache
def target() -> str:
    """Return the processor and the versions that machine code depends on."""
    features = sha256(_features().encode()).hexdigest()[:8]
    return f"{llvm.get_process_triple()}-{llvm.get_host_cpu_name()}-{features}-{llvmlite.__version__}"


def translate(code: str, name: str) -> ObjectCode:
    """Return machine code for this processor of the function `name` in `code`, optimised LLVM code."""
    module = llvm.parse_assembly(code)
    declared = [each.name for each in (*module.functions, *module.global_variables) if each.is_declaration]
    strange = [name for name in declared if name.startswith(("numba_", "NRT_")) and name not in _NEVER_CALLED]
    assert not strange, f"machine code that calls {', '.join(strange)} cannot be used without numba"
    return ObjectCode(name, tuple(declared), _machine().emit_object(module))


def load(code: ObjectCode) -> Callable[[int, int, float], int]:
    """Return the function, which takes an address, an integer and a float."""
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
    """Read machine code from a file; None if it does not exist or is incomplete."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
        said = json.loads(header)
        if said["sha256"] != sha256(content).hexdigest():
            return None
        return ObjectCode(said["name"], tuple(said["declared"]), content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(code: ObjectCode, path: Path) -> None:
    """Write `code` to a file.

    Raises:
        OSError: it cannot be written.
    """
    said = {"name": code.name, "declared": code.declared, "sha256": sha256(code.content).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write_bytes(json.dumps(said).encode() + b"\n" + code.content)


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
