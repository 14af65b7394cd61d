"""The numba types of an engine and its records, with which numba compiles `records[index].field`.

An engine has some thirty arrays. Passed as numba arrays, they would be two hundred arguments in every call of a part.
So an engine is passed as one pointer to a table with the address and the length of each array (see `addresses`). The
table does not change while compiled code runs. Loads from it are marked as invariant, so that LLVM may read an address
only once.

A record of functions, such as a kind of memory, has its own type. Its functions are known at compile time, so calls of
these functions are direct calls.

Indices are not checked: an index outside its array reads or writes other memory.
"""

from __future__ import annotations

import operator
from functools import cache
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import cfunc, from_dtype
from numba.core.typing.templates import AttributeTemplate, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    lower_setattr_generic,
    models,
    register_model,
    type_callable,
    types,
)

from kvsim.engine.machine_code.addresses import Layout, SingleRecord

_POINTER = ir.IntType(8).as_pointer()
_TABLE = _POINTER.as_pointer()

Fields: TypeAlias = "tuple[tuple[str, RecordsType | EngineType | types.Type], ...]"


class RecordType(types.Type):
    """numba type of one record, which is passed by its address. Its integers may have fewer than 64 bits in memory;
    reading one gives 64 bits. `constants` has the fields whose values are known when code is compiled, and the values.
    """

    def __init__(self, dtype: np.dtype[Any], constants: tuple[tuple[str, int], ...] = ()) -> None:
        self.constants = dict(constants)
        fields: Any = dtype.fields or {}
        self.offsets = {name: fields[name][1] for name in fields}
        self.stored = {name: from_dtype(fields[name][0]) for name in fields}
        super().__init__(f"Record_{_digest(str(dtype) + str(constants))}")

    def read(self, name: str) -> types.Type:
        """Return the numba type of the value that reading field `name` gives."""
        return types.int64 if isinstance(self.stored[name], types.Integer) else self.stored[name]


class RecordsType(types.Type):
    """numba type of an array of records or numbers, which is passed as its address and its length."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        kinds = [kind for kind, *_ in (dtype.fields or {}).values()]
        is_plain = kinds and all(kind.subdtype is None for kind in kinds)
        self.dtype = RecordType(dtype) if is_plain else from_dtype(dtype)
        self.size_bytes = dtype.itemsize
        super().__init__(f"Records_{_digest(str(self.dtype))}")


class FunctionsType(types.Type):
    """numba type of a record of functions. It has no value at run time."""

    def __init__(self, functions: Any) -> None:
        self.functions = functions
        super().__init__(f"{type(functions).__name__}_{functions!r}")


class EngineType(types.Type):
    """numba type of an engine, or of a part of it. Fields are arrays, records, functions or other parts."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.constants: dict[str, int] = getattr(dict(fields).get("settings"), "constants", {})
        """Names and values of the settings that are compiled as constants."""
        super().__init__(f"Engine_{_digest(str(fields))}")

    def entry_of(self, name: str) -> int:
        """Return the index of the first entry for field `name` in the table of addresses."""
        entry = 0
        for field, kind in self.fields:
            if field == name:
                return entry
            entry += _num_entries(kind)
        raise AttributeError(name)


@cache
def engine_type(layout: Layout) -> EngineType:
    """Return the numba type of engines with this layout."""
    fields: list[tuple[str, Any]] = []
    for name, kind in layout:
        if isinstance(kind, np.dtype):
            fields.append((name, RecordsType(kind)))
        elif isinstance(kind, SingleRecord):
            fields.append((name, RecordType(kind.dtype, kind.constants)))
        elif isinstance(kind, tuple):
            fields.append((name, engine_type(kind)))
        else:
            fields.append((name, FunctionsType(kind)))
    return EngineType(tuple(fields))


def to_llvm(function: Any, layout: Layout, options: dict[str, Any]) -> tuple[str, str]:
    """Compile `function`, which takes an engine, an action and a number. Return (LLVM assembly, name of the function in
    it). The declaration of this function in C is `int64_t name(void **addresses, int64_t action, double argument)`.
    """
    engine = engine_type(layout)

    @intrinsic
    def as_engine(_typing: Any, _address: Any) -> Any:
        def cast(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], _TABLE)

        return engine(types.voidptr), cast

    @cfunc(types.int64(types.voidptr, types.int64, types.float64), **options)
    def entry(address: Any, action: int, argument: float) -> Any:
        return function(as_engine(address), action, argument)

    return entry.inspect_llvm(), entry.native_name


def _num_entries(kind: Any) -> int:
    if isinstance(kind, RecordsType):
        return 2
    if isinstance(kind, RecordType):
        return 1
    return sum(_num_entries(each) for _, each in kind.fields) if isinstance(kind, EngineType) else 0


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


class _RecordModel(models.PrimitiveModel):
    """Representation of a record in LLVM code: its address."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _POINTER)


class _TableModel(models.PrimitiveModel):
    """Representation of an engine or an array in LLVM code: a pointer to its first word in the table of addresses."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _TABLE)


register_model(FunctionsType)(models.OpaqueModel)
register_model(RecordType)(_RecordModel)
register_model(RecordsType)(_TableModel)
register_model(EngineType)(_TableModel)


@infer_getattr
class _EngineAttributes(AttributeTemplate):
    key = EngineType

    def generic_resolve(self, engine: EngineType, name: str) -> Any:
        return dict(engine.fields)[name]


@lower_getattr_generic(EngineType)
def _lower_field(context: Any, builder: Any, engine: EngineType, value: Any, name: str) -> Any:
    kind = dict(engine.fields)[name]
    if isinstance(kind, FunctionsType):
        return context.get_dummy_value()
    word = builder.gep(value, [ir.IntType(64)(engine.entry_of(name))], inbounds=True)
    return _constant(builder, word) if isinstance(kind, RecordType) else word


@infer_getattr
class _Functions(AttributeTemplate):
    key = FunctionsType

    def generic_resolve(self, record: FunctionsType, name: str) -> Any:
        return self.context.resolve_value_type(getattr(record.functions, name))


@lower_getattr_generic(FunctionsType)
def _lower_function(context: Any, _builder: Any, _record: FunctionsType, _value: Any, _name: str) -> Any:
    return context.get_dummy_value()


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record: RecordType, name: str) -> Any:
        return record.read(name)


@lower_getattr_generic(RecordType)
def _lower_read(context: Any, builder: Any, record: RecordType, value: Any, name: str) -> Any:
    stored = record.stored[name]
    read = _load(context, builder, stored, _address_of(context, builder, record, value, name), f"{record}.{name}")
    return context.cast(builder, read, stored, record.read(name))


@lower_setattr_generic(RecordType)
def _lower_write(context: Any, builder: Any, signature: Any, args: Any, name: str) -> None:
    (record, written), (value, new) = signature.args, args
    stored = record.stored[name]
    new = context.cast(builder, new, written, stored)
    _store(context, builder, stored, new, _address_of(context, builder, record, value, name), f"{record}.{name}")


def _address_of(context: Any, builder: Any, record: RecordType, value: Any, name: str) -> Any:
    address = builder.gep(value, [ir.IntType(64)(record.offsets[name])], inbounds=True)
    return builder.bitcast(address, context.get_data_type(record.stored[name]).as_pointer())


@type_callable(len)
def _type_len(_context: Any) -> Any:
    def typer(records: Any) -> Any:
        return types.intp if isinstance(records, RecordsType) else None

    return typer


@lower_builtin(len, RecordsType)
def _lower_len(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    word = builder.gep(args[0], [ir.IntType(64)(1)], inbounds=True)
    return builder.ptrtoint(_constant(builder, word), context.get_value_type(types.intp))


@type_callable(operator.getitem)
def _type_getitem(_context: Any) -> Any:
    def typer(records: Any, index: Any) -> Any:
        is_known = isinstance(records, RecordsType) and isinstance(index, types.Integer)
        return signature(records.dtype, records, types.intp) if is_known else None

    return typer


@type_callable(operator.setitem)
def _type_setitem(_context: Any) -> Any:
    def typer(records: Any, index: Any, _value: Any) -> Any:
        is_known = isinstance(records, RecordsType) and isinstance(index, types.Integer)
        return signature(types.none, records, types.intp, records.dtype) if is_known else None

    return typer


@lower_builtin(operator.getitem, RecordsType, types.Integer)
def _lower_getitem(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    records, (header, index) = signature.args[0], args
    if isinstance(records.dtype, RecordType):
        return _record(builder, records, header, index)
    place = _typed(context, builder, records, header, index)
    if not isinstance(records.dtype, types.Number):  # a record with nested arrays, which is only read
        return context.unpack_value(builder, records.dtype, place)
    return _load(context, builder, records.dtype, place, str(records))


@lower_builtin(operator.setitem, RecordsType, types.Integer, types.Any)
def _lower_setitem(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    records, (header, index, value) = signature.args[0], args
    place = _typed(context, builder, records, header, index)
    _store(context, builder, records.dtype, value, place, str(records))
    return context.get_dummy_value()


def _load(context: Any, builder: Any, kind: Any, place: Any, field: str) -> Any:
    value = builder.load(place)
    value.set_metadata("tbaa", _alias_metadata(builder, field))
    return context.data_model_manager[kind].from_data(builder, value)


def _store(context: Any, builder: Any, kind: Any, value: Any, place: Any, field: str) -> None:
    written = builder.store(context.data_model_manager[kind].as_data(builder, value), place)
    written.set_metadata("tbaa", _alias_metadata(builder, field))


def _alias_metadata(builder: Any, field: str) -> Any:
    """Return metadata that tells LLVM's type-based alias analysis that a write to `field` changes no other field. For a
    field of a record, `field` names it together with its type; for numbers in an array, it names the array's type.
    """
    module, zero_offset = builder.module, ir.IntType(64)(0)
    kind = module.add_metadata([field, module.add_metadata(["kvsim"]), zero_offset])
    return module.add_metadata([kind, kind, zero_offset])


def _typed(context: Any, builder: Any, records: RecordsType, header: Any, index: Any) -> Any:
    place = _record(builder, records, header, index)
    return builder.bitcast(place, context.get_data_type(records.dtype).as_pointer())


def _record(builder: Any, records: RecordsType, header: Any, index: Any) -> Any:
    offset = builder.mul(index, ir.IntType(64)(records.size_bytes), flags=["nsw"])
    return builder.gep(_constant(builder, header), [offset], inbounds=True)


def _constant(builder: Any, word: Any) -> Any:
    value = builder.load(word)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value
