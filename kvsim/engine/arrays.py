"""Storage of records that works both interpreted, as a list of objects, and compiled, as a NumPy array.

A record is declared once, as a dataclass (see `records`). `make` creates a list of instances, or an array whose
elements have the same fields. The functions of the engine read and write `records[index].field` in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import islice, repeat
from operator import attrgetter
from struct import Struct
from typing import Any, Protocol, TypeVar, cast, get_type_hints

import numpy as np
import numpy.typing as npt

Record = TypeVar("Record")


Record_co = TypeVar("Record_co", covariant=True)


class Records(Protocol[Record_co]):
    """List or array of records, whose fields are read and written in place."""

    def __getitem__(self, index: int, /) -> Record_co: ...
    def __len__(self) -> int: ...


class Numbers(Protocol):
    """Integers: a list if the engine is interpreted, an array if it is compiled."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...
    def __len__(self) -> int: ...


class Tables:
    """Base class of an engine and of its parts: dataclasses whose fields are arrays, records, records of functions or
    other tables. Iterate over one for the values of its fields.

    The fields are slots. Interpreted code reads them four times as fast as those of a named tuple.
    """

    __slots__ = ()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the fields, in order."""
        return tuple(field.name for field in fields(cast("Any", cls)))

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.names())


class Growing(dict[int, Any]):
    """Records to which one with default values is appended when the index after the last one is accessed.

    Interpreted code reads an element of this `dict` faster than one of a `list` with its own `__getitem__`.
    """

    def __init__(self, record: type) -> None:
        super().__init__()
        self._record = record

    def __missing__(self, index: int) -> Any:
        if index != len(self):
            raise IndexError(f"there is no record {index}")
        made = self[index] = self._record()
        return made

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def drop(self, num_records: int) -> None:
        """Remove the first `num_records` records; the others move to the front."""
        kept = [*self.values()][num_records:]
        self.clear()
        self.update(enumerate(kept))


class Lazy(dict[int, Any]):
    """Records that are created when they are first accessed: a small run of a large server uses few of its blocks.

    In other respects, it works like a list of records. Interpreted code reads an element as fast as one of a `dict`.
    """

    def __init__(self, record: type, size: int, columns: dict[str, npt.NDArray[Any]]) -> None:
        """Args:
        record: class of the records.
        size: number of records.
        columns: initial values, by field; the other fields begin with their default values.
        """
        super().__init__()
        self._record, self._size = record, size
        self._columns = {name: values.copy() for name, values in columns.items()}

    def __missing__(self, index: int) -> Any:
        if not 0 <= index < self._size:
            raise IndexError(f"there is no record {index}")
        made = self[index] = self._record(**{name: values.item(index) for name, values in self._columns.items()})
        return made

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self._size))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a copy of the field `name` of all records. It creates no record."""
        values = np.full(self._size, getattr(self._record(), name), dtype_of(self._record)[name])
        values[:] = self._columns.get(name, values)
        values[[*self.keys()]] = [*map(attrgetter(name), self.values())]
        return values


class Element(np.void):  # type: ignore[misc]  # final in NumPy's stubs only; `np.record` inherits from it
    """A record in an array: its fields are attributes, read as Python's numbers and written in place.

    `np.record` takes fifty times as long to read, and its 32-bit numbers overflow. Each record has a subclass, whose
    properties read the fields.
    """

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _element_of(record: type, layout: np.dtype[np.void]) -> type[Element]:
    """Make a class, named after `record`, whose objects read the elements of an array with `layout`."""
    readers = {
        name: property(_reader(name, dtype, offset)) for name, (dtype, offset, *_) in (layout.fields or {}).items()
    }
    return type(record.__name__, (Element,), {"__slots__": (), **readers})


def _reader(name: str, dtype: np.dtype[Any], offset: int) -> Callable[[Any], Any]:
    """Return a function that reads a field of type `dtype`, `offset` bytes from the beginning of an element."""
    if dtype.subdtype is not None or dtype.fields:
        return lambda element: element[name]
    unpack = Struct(dtype.char).unpack_from

    def read(element: Any) -> Any:
        return unpack(element, offset)[0]

    return read


_layouts: dict[type, np.dtype[np.void]] = {}


def dtype_of(record: type) -> np.dtype[np.void]:
    """Return the NumPy type of an array of this record. Its fields have the names of the record's fields."""
    if record not in _layouts:
        _layouts[record] = _layout_of(record)
    return _layouts[record]


def _layout_of(record: type) -> np.dtype[np.void]:
    plain = {int: np.int64, float: np.float64, bool: np.bool_}
    hints = get_type_hints(record, include_extras=True)
    fields_of_record: list[Any] = [
        (field.name, kind.__metadata__[0] if hasattr(kind := hints[field.name], "__metadata__") else plain[kind])
        for field in fields(record)
    ]
    layout = np.dtype(fields_of_record, align=True)
    return np.dtype((_element_of(record, layout), layout))


def make(record: type[Record], size: int, *, compiled: bool) -> Records[Record]:
    """Return `size` records: with their default values, or zeros if `compiled`."""
    made: Any = np.zeros(size, dtype_of(record)) if compiled else [record() for _ in range(size)]
    return cast("Records[Record]", made)


def make_one(record: type[Record], *, compiled: bool) -> Record:
    """Return one record: with default values, or, if `compiled`, an element of an array with zeros."""
    return make(record, 1, compiled=compiled)[0]


def make_growing(record: type[Record], size: int, *, compiled: bool) -> Records[Record]:
    """Return records to append to: empty `Growing` records; with `compiled`, an array of `size` records."""
    made: Any = np.zeros(size, dtype_of(record)) if compiled else Growing(record)
    return cast("Records[Record]", made)


def make_lazily(
    record: type[Record], size: int, *, compiled: bool, num_used: int = 0, **columns: npt.NDArray[Any]
) -> Records[Record]:
    """Return `size` records as `make` does, with `columns` as initial values of fields. Interpreted code creates each
    when it is first accessed, unless the run is expected to use all: `num_used` is `size` or more. The elements of a
    list are read faster than those of `Lazy`.
    """
    if not compiled and num_used < size:
        return cast("Records[Record]", Lazy(record, size, columns))
    made = make(record, size, compiled=compiled)
    fill(made, 0, **columns)
    return made


def numbers(values: npt.NDArray[np.integer[Any]], *, compiled: bool) -> Numbers:
    """Return `values` as a list; with `compiled`, unchanged."""
    made: Any = values if compiled else values.tolist()
    return cast("Numbers", made)


def listed(numbers: Numbers, begin: int, end: int) -> list[int]:
    """Return the numbers at indices [begin, end) as a list."""
    part = cast("Any", numbers)[begin:end]
    return cast("list[int]", part.tolist() if isinstance(part, np.ndarray) else part)


def fill(records: Records[Any], first: int, **columns: Any) -> None:
    """Write columns into fields of all records from `first` on. A column is an array, or one value for all records."""
    size = len(records) - first
    for name, values in columns.items():
        if isinstance(records, np.ndarray):
            records[name][first:] = values
        else:
            column = np.asarray(values).tolist()
            column = column if isinstance(column, list) else repeat(column, size)
            for index, value in zip(range(first, first + size), column, strict=True):
                setattr(records[index], name, value)


def overwrite(records: Records[Any], **columns: npt.ArrayLike) -> None:
    """Write each column into its field of the first `len(column)` records."""
    for name, values in columns.items():
        column = np.asarray(values)
        if isinstance(records, np.ndarray):
            records[name][: len(column)] = column
        else:
            for index, value in enumerate(column.tolist()):
                setattr(records[index], name, value)


def column(records: Records[Any], name: str, end: int | None = None) -> npt.NDArray[Any]:
    """Return a copy of the field `name` of the first `end` records as an array; of all records if `end` is None."""
    if isinstance(records, np.ndarray):
        return np.array(records[name][:end])  # a copy, since the engine writes to its records again
    if isinstance(records, Lazy):
        return records.column(name)[:end]
    rows = _first(records, end)
    kind = dtype_of(type(rows[0]))[name] if rows else np.int64
    return np.array([*map(attrgetter(name), rows)], kind)


def _first(records: Records[Any], end: int | None) -> list[Any]:
    return [*islice(cast("Any", records), end)]


def listed_column(records: Records[Any], name: str) -> list[Any]:
    """Return the field `name` of all records as a list, whose elements are read faster than those of an array."""
    if isinstance(records, np.ndarray | Lazy):
        return cast("list[Any]", column(records, name).tolist())
    return [*map(attrgetter(name), cast("Any", records))]


def copied(records: Records[Any], end: int, names: Iterable[str] = ()) -> npt.NDArray[Any]:
    """Return a copy of the first `end` records as an array. If `names` of fields are given, only these have values."""
    if isinstance(records, np.ndarray):
        return records[:end].copy()
    rows = _first(records, end)
    array = np.empty(end, dtype_of(type(rows[0])))
    for name in names or array.dtype.names or ():
        array[name] = [*map(attrgetter(name), rows)]
    return array
