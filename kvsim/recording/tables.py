"""The tables of a recording, as frozen dataclasses of numpy columns.

A column is declared once, here: its name is the name in the Parquet file, its `column(...)` says the type, and
whether a file may leave it out. Reading, writing and checking all follow these declarations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvsim.engine.ownership import MemoryKind as MemoryKind  # noqa: PLC0414  this is where readers look for it
from kvsim.errors import MissingExtraError, RecordingError
from kvsim.workload import Ragged

if TYPE_CHECKING:
    import pyarrow as pa

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]


WHOLE_TABLE = -1
"""The address of a release that frees a whole table."""
_LETTER_BYTES = 4
_TEXT_BYTES = 1 << 30
"""The most bytes that a column of texts may take in memory."""


class RequestStatus(IntEnum):
    """How a request ended; the names in the file are these in lower case."""

    UNFINISHED = 0
    FINISHED = 1
    ABORTED = 2
    REFUSED = 3
    """Never admitted: no pool of this size, or no model of this length, could have served it."""


class CopyKind(IntEnum):
    """Which way a copy between GPU and host goes; the names in the file are these in lower case."""

    STORE = 0
    """A copy to the host."""
    LOAD = 1
    """A copy from the host to the GPU."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column is stored: its numpy type, or the enumeration whose lower-case names stand in the file."""

    dtype: str
    names: type[IntEnum] | None = None
    optional: bool = False
    counts: bool = False
    """Whether it goes up by small steps, so that a file is smaller and read sooner where differences stand in it."""


def column(dtype: str, *, names: type[IntEnum] | None = None, counts: bool = False) -> Any:
    """A column that every file has."""
    return field(metadata={"column": Column(dtype, names, counts=counts)})


def optional_column(dtype: str) -> Any:
    """A column that a file may leave out; it is None then."""
    return field(default=None, metadata={"column": Column(dtype, optional=True)})


def text_column(values: list[str], num_rows: int) -> npt.NDArray[np.str_]:
    """`values` as a numpy array, a part of a column of `num_rows`: all of it as wide as its longest text."""
    longest = max(map(len, values), default=0)
    if longest * num_rows * _LETTER_BYTES > _TEXT_BYTES:
        raise RecordingError(f"a text of {longest:,} letters is too long to be the id of one of {num_rows:,} requests.")
    return np.asarray(values, np.str_) if values else np.empty(0, np.str_)


class Table:
    """What the tables have in common."""

    __slots__ = ()
    name: ClassVar[str]

    @classmethod
    def columns(cls) -> Iterator[tuple[str, Column]]:
        """Every column's name and how it is stored, in file order."""
        for item in fields(cls):  # type: ignore[arg-type]
            yield item.name, item.metadata["column"]

    def __len__(self) -> int:
        first, _ = next(self.columns())
        return len(getattr(self, first))

    def __repr__(self) -> str:
        present = [name for name, _ in self.columns() if getattr(self, name) is not None]
        return f"<{type(self).__name__}: {len(self):,} rows of {', '.join(present)}>"

    def to_arrow(self) -> pa.Table:
        """A `pyarrow.Table` of the columns that are there, as they stand in a recording's Parquet file.

        Enumerations are strings in lower case; `prompt_hashes` is a list of int64 for each row.
        """
        from kvsim.recording.arrow import to_arrow  # noqa: PLC0415  brings pyarrow, which few callers need

        return to_arrow(self)

    def to_pandas(self) -> Any:
        """The columns of `to_arrow` as a `pandas.DataFrame`."""
        return as_pandas(self.to_arrow())


def as_pandas(table: pa.Table) -> Any:
    """`table` as a `pandas.DataFrame`."""
    try:
        return table.to_pandas()
    except ImportError as error:
        raise MissingExtraError("a pandas table", "pandas") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Requests(Table):
    """One row per request; times are seconds from the first event, NaN where it did not happen."""

    name: ClassVar[str] = "requests"

    request: IntArray = column("int32", counts=True)
    id: npt.NDArray[np.str_] = column("str")
    arrival_s: FloatArray = column("float64")
    arrival_seq: IntArray = column("int64", counts=True)
    prompt_tokens: IntArray = column("int32")
    output_tokens: IntArray = column("int32")
    max_tokens: IntArray = column("int32")
    priority: IntArray = column("int32")
    prompt_hashes: Ragged[np.int64] = column("list<int64>")
    first_scheduled_s: FloatArray = column("float64")
    first_token_s: FloatArray = column("float64")
    finished_s: FloatArray = column("float64")
    status: IntArray = column("uint8", names=RequestStatus)
    preemptions: IntArray = column("int32")
    cached_tokens: IntArray = column("int32")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Steps(Table):
    """One row per engine step. `start_s`: scheduled; `end_s`: its output was processed."""

    name: ClassVar[str] = "steps"

    step: IntArray = column("int32", counts=True)
    schedule_seq: IntArray = column("int64", counts=True)
    output_seq: IntArray = column("int64", counts=True)
    start_s: FloatArray = column("float64")
    end_s: FloatArray = column("float64")
    prefill_tokens: IntArray = column("int32")
    decode_tokens: IntArray = column("int32")
    num_scheduled: IntArray = column("int32")
    running: IntArray = column("int32")
    waiting: IntArray = column("int32")
    preempted: IntArray = column("int32")
    free_units: IntArray = column("int32")
    """Units free after scheduling, units that still hold a prefix included; -1 where the engine has no pool."""
    unusable_units: IntArray | None = optional_column("int32")
    """Free units in pieces that cannot serve the request at the head of the queue although their sum could."""
    swapped_out_units: IntArray | None = optional_column("int32")
    """Units copied to the host, as the step decided; absent where blocks go to no host memory."""
    swapped_in_units: IntArray | None = optional_column("int32")
    """Units copied back from the host, as the step decided; absent where blocks go to no host memory."""
    allocated_bytes: IntArray | None = optional_column("int64")
    reserved_bytes: IntArray | None = optional_column("int64")
    inactive_split_bytes: IntArray | None = optional_column("int64")
    requested_bytes: IntArray | None = optional_column("int64")
    segments: IntArray | None = optional_column("int32")
    peak_allocated_bytes: IntArray | None = optional_column("int64")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Schedule(Table):
    """One row per request and run of consecutive steps, each step computing `tokens` more tokens."""

    name: ClassVar[str] = "schedule"

    step: IntArray = column("int32", counts=True)
    request: IntArray = column("int32")
    computed_before: IntArray = column("int32")
    tokens: IntArray = column("int32")
    repeat: IntArray | None = optional_column("int32")

    @property
    def repeats(self) -> IntArray:
        """Steps that each row stands for; 1 where the file does not say."""
        return np.ones(len(self.step), np.int32) if self.repeat is None else self.repeat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Memory(Table):
    """One row per change of ownership, in the order in which it happened."""

    name: ClassVar[str] = "memory"

    seq: IntArray = column("int64", counts=True)
    step: IntArray = column("int32", counts=True)
    kind: IntArray = column("uint8", names=MemoryKind)
    request: IntArray = column("int32")
    position: IntArray = column("int32")
    address: IntArray = column("int32")
    length: IntArray = column("int32")
    requested: IntArray | None = optional_column("int32")
    """Units asked for, where the allocator rounded up; `length` where absent."""
    cached: IntArray | None = optional_column("int32")
    """Leading units of the table that keep a prefix which could be hit, on a release."""
    group: IntArray | None = optional_column("int32")
    """The KV-cache group whose table changed; 0 where absent. Evictions concern no table."""
    repeat: IntArray | None = optional_column("int32")
    """Consecutive steps that the row holds for, on an append; each adds `length` units behind those before."""

    @property
    def groups(self) -> IntArray:
        """The KV-cache group of each row; 0 where the file does not say."""
        return np.zeros(len(self.step), np.int32) if self.group is None else self.group

    @property
    def ends(self) -> IntArray:
        """The rows in which requests give back whole tables; of several groups, given back together, the last."""
        rows = np.flatnonzero((self.kind == MemoryKind.RELEASE) & (self.address == WHOLE_TABLE))
        if self.group is None or not len(rows):
            return rows
        moments = np.stack((self.request[rows].astype(np.int64), self.seq[rows]))
        _, last = np.unique(moments[:, ::-1], axis=1, return_index=True)
        return np.sort(rows[::-1][last])

    @classmethod
    def empty(cls) -> Memory:
        """No changes at all, for engines whose memory has no addresses."""
        return cls(**{name: np.empty(0, spec.dtype) for name, spec in cls.columns() if not spec.optional})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Copies(Table):
    """One row per block that is copied between GPU and host, in the order in which copies are reported to be done.

    Inside one copy the rows stand in the order in which the host memory became idle, which decides what is evicted.
    Those that are never reported come last.
    """

    name: ClassVar[str] = "copies"

    copy: IntArray = column("int32")
    """Number of the copy: copies are numbered in the order in which they are decided."""
    kind: IntArray = column("uint8", names=CopyKind)
    request: IntArray = column("int32")
    begun_step: IntArray = column("int32")
    """The step that decided it."""
    awaited_step: IntArray = column("int32")
    """The first step that had to wait for it, because it took blocks that were still being copied; -1 for none."""
    reported_step: IntArray = column("int32")
    """The step with whose output it was reported to be done; -1 where the recording ends before."""
    address: IntArray = column("int32")
    """The block on the GPU."""
    slot: IntArray = column("int32")
    """The block on the host; it may have room for several of the GPU's."""
