"""Tables of a recording, as frozen dataclasses of NumPy columns.

Each column is declared once, here: its name is the name in the Parquet file, and `column(...)` states its type. A file
may lack an `optional_column`. The modules that read, write and check files take everything from these declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kvsim.engine.ownership import ImageEventKind as ImageEventKind  # noqa: PLC0414  this is where readers look for it
from kvsim.engine.ownership import MemoryKind as MemoryKind  # noqa: PLC0414  as above
from kvsim.errors import MissingExtraError, RecordingError, UnknownNameError
from kvsim.workload import Ragged, Turns

if TYPE_CHECKING:
    import pyarrow as pa

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.float64]

WHOLE_TABLE = -1
"""Value of `Memory.address` in a release of a whole table."""
_LETTER_BYTES = 4
_MOST_TEXT_BYTES = 1 << 30


class RequestStatus(IntEnum):
    """Final status of a request. Files have the names in lower case."""

    UNFINISHED = 0
    FINISHED = 1
    ABORTED = 2
    REFUSED = 3
    """Never admitted: the request is too long for this pool or model."""


class CopyKind(IntEnum):
    """Direction of a copy between GPU and host. Files have the names in lower case."""

    STORE = 0
    """Copy to the host."""
    LOAD = 1
    """Copy from the host to the GPU."""


class TransferKind(IntEnum):
    """Direction of a transfer between servers. Files have the names in lower case."""

    LOAD = 0
    """KV from another server or from a prefix store is written into blocks of the request."""
    SEND = 1
    """Blocks are kept after the end of the request until another server has read them."""
    WRITE = 2
    """Blocks of the prompt are copied to a prefix store, which other servers read."""


@dataclass(frozen=True, slots=True)
class Column:
    """Type of a column in memory. `dtype` is the name of a NumPy type.

    If `names` is given, the values are members of this enumeration, and files have the members' names in lower case.
    """

    dtype: str
    names: type[IntEnum] | None = None
    optional: bool = False
    is_ascending: bool = False
    """True if the values never fall, and usually rise by little. Files store their differences to save bytes."""

    @property
    def is_text(self) -> bool:
        """True for a column that the file stores as texts: texts, or the names of an enumeration's members."""
        return self.names is not None or self.dtype == "str"


def column(dtype: str, *, names: type[IntEnum] | None = None, is_ascending: bool = False) -> Any:
    """Declare a column that every file has. The arguments are the fields of `Column`."""
    return field(metadata={"column": Column(dtype, names, is_ascending=is_ascending)})


def optional_column(dtype: str) -> Any:
    """Declare a column that a file may lack. The attribute of the table is then None."""
    return field(default=None, metadata={"column": Column(dtype, optional=True)})


def text_column(values: list[str], num_rows: int) -> npt.NDArray[np.str_]:
    """Convert `values`, texts of some rows, to an array. The whole column has `num_rows` rows.

    Each entry of the array takes as much memory as the longest text.

    Raises:
        RecordingError: the whole column would be too large with texts of this length.
    """
    longest = max(map(len, values), default=0)
    if longest * num_rows * _LETTER_BYTES > _MOST_TEXT_BYTES:
        raise RecordingError(f"a text of {longest:,} letters is too long to be the id of one of {num_rows:,} requests.")
    return np.asarray(values, np.str_) if values else np.empty(0, np.str_)


def end_to_end(parts: Sequence[Any]) -> Any:
    """Concatenate `parts` of a column. They are arrays of one type, or `Ragged`."""
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    values, lengths = np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts])
    return Ragged(values, np.append(0, np.cumsum(lengths)), np.int64)


class ColumnTable:
    """Base class of the tables."""

    __slots__ = ()
    name: ClassVar[str]
    is_optional: ClassVar[bool] = False
    """True for a table that recordings of some engines lack."""
    derived: ClassVar[tuple[str, ...]] = ()
    """Names of properties that `table[name]` accepts like columns."""

    @classmethod
    @cache  # every `len` of a table asks
    def columns(cls) -> tuple[tuple[str, Column], ...]:
        """Return the name and the type of every column, in the order of the file."""
        return tuple((item.name, item.metadata["column"]) for item in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def empty(cls) -> Self:
        """Return a table without rows and without optional columns."""
        required = [(name, spec.dtype) for name, spec in cls.columns() if not spec.optional]
        no_lists = Ragged.empty(0, np.int64)
        return cls(**{name: no_lists if dtype.startswith("list") else np.empty(0, dtype) for name, dtype in required})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return a table with the rows of all `parts`. Those that have rows must have the same optional columns."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return cls.empty()
        columns = {name: [getattr(part, name) for part in filled] for name, _ in cls.columns()}
        return cls(**{name: end_to_end(values) for name, values in columns.items() if values[0] is not None})

    def __len__(self) -> int:
        first, _ = self.columns()[0]
        return len(getattr(self, first))

    def __getitem__(self, name: str) -> Any:
        """Return the column `name`, or the property of that name in `derived`.

        Raises:
            UnknownNameError: there is no such column.
        """
        known = [each for each, _ in self.columns()] + list(self.derived)
        if name not in known:
            raise UnknownNameError("column", name, known)
        return getattr(self, name)

    def __repr__(self) -> str:
        present = [name for name, _ in self.columns() if getattr(self, name) is not None]
        return f"<{type(self).__name__}: {len(self):,} rows of {', '.join(present)}>"

    def to_arrow(self) -> pa.Table:
        """Return the columns as a `pyarrow.Table`, with the types of a recording's Parquet file.

        Enumerations are strings in lower case. A `Ragged` column has a list of int64 in each row.
        """
        import pyarrow as pa  # noqa: PLC0415  slow to import, and few callers need it

        from kvsim.files.arrow_columns import from_numpy, from_texts  # noqa: PLC0415

        arrays: dict[str, pa.Array] = {}
        for name, spec in self.columns():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, Ragged):
                offsets = from_numpy(value.offsets, pa.int32())
                arrays[name] = pa.ListArray.from_arrays(offsets, from_numpy(value.values, pa.int64()))
            elif spec.names is not None:
                names = from_texts([member.name.lower() for member in spec.names])
                arrays[name] = pa.DictionaryArray.from_arrays(from_numpy(value, pa.int8()), names).cast(pa.string())
            elif spec.dtype == "str":
                arrays[name] = from_texts(value.tolist())
            else:
                arrays[name] = from_numpy(value, pa.type_for_alias(spec.dtype))
        return pa.table(arrays)

    def to_pandas(self) -> Any:
        """Return the columns of `to_arrow` as a `pandas.DataFrame`."""
        return as_pandas(self.to_arrow())


def as_pandas(table: pa.Table) -> Any:
    """Convert `table` to a `pandas.DataFrame`.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        return table.to_pandas()
    except ImportError as error:
        raise MissingExtraError("a pandas table", "pandas") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Requests(ColumnTable):
    """Table of requests, a row each. Times are seconds from the engine's first event; NaN for what did not happen."""

    name: ClassVar[str] = "requests"
    derived: ClassVar[tuple[str, ...]] = ("wait_s", "ttft_s", "tpot_s", "e2e_s")

    request: IntArray = column("int32", is_ascending=True)
    id: npt.NDArray[np.str_] = column("str")
    arrival_s: FloatArray = column("float64")
    arrival_seq: IntArray = column("int64", is_ascending=True)
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
    after: IntArray | None = optional_column("int32")
    """Row of the request whose end this turn of a session waited for; -1 for none. Absent without sessions."""
    pause_s: FloatArray | None = optional_column("float64")
    """Seconds from the end of the request in row `after` to the sending of this one; 0 for a first turn.

    Absent without sessions.
    """
    history_tokens: IntArray | None = optional_column("int32")
    """Number of leading prompt tokens repeated from request `after`, with its answer. Absent without sessions."""
    adapter: IntArray | None = optional_column("int32")
    """Number of the request's adapter (LoRA), from 1; 0 for none. Absent if no request has an adapter."""
    sent_s: FloatArray | None = optional_column("float64")
    """Time in seconds at which the server's front end got the request, before the engine took it in.

    It may be negative, because times count from the first event in the engine. Absent if the recorder did not know it.
    """

    @property
    def received_s(self) -> FloatArray:
        """Time in seconds at which the server received the request: `sent_s` if the recording has it, otherwise
        `arrival_s`. Latencies count from this time.
        """
        return self.arrival_s if self.sent_s is None else self.sent_s

    @property
    def turns(self) -> Turns | None:
        """Turns of sessions: which requests waited for which. None without sessions."""
        if self.after is None:
            return None
        return Turns(after=self.after, pause_s=self.pause_s, history_tokens=self.history_tokens)

    @property
    def wait_s(self) -> FloatArray:
        """Seconds from `received_s` until the request was first scheduled; NaN if it never was."""
        return self.first_scheduled_s - self.received_s

    @property
    def ttft_s(self) -> FloatArray:
        """Time to first token in seconds, from `received_s` to the first output token; NaN if there is none."""
        return self.first_token_s - self.received_s

    @property
    def tpot_s(self) -> FloatArray:
        """Seconds per output token after the first; NaN for fewer than two, or if the request did not end."""
        later_tokens = self.output_tokens - 1
        tpot_s = np.full(len(self), np.nan)
        np.divide(self.finished_s - self.first_token_s, later_tokens, out=tpot_s, where=later_tokens > 0)
        return tpot_s

    @property
    def e2e_s(self) -> FloatArray:
        """End-to-end time in seconds, from `received_s` to the end of the request; NaN if it did not end."""
        return self.finished_s - self.received_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Steps(ColumnTable):
    """Table of engine steps, one row each. A step is scheduled at `start_s`; its output is processed at `end_s`.

    Columns ending in `_after` have the state after the output, and -1 if another step is in flight at that time. A
    recording may lack any column that can be None.
    """

    name: ClassVar[str] = "steps"

    step: IntArray = column("int32", is_ascending=True)
    schedule_seq: IntArray = column("int64", is_ascending=True)
    output_seq: IntArray = column("int64", is_ascending=True)
    start_s: FloatArray = column("float64")
    end_s: FloatArray = column("float64")
    prefill_tokens: IntArray = column("int32")
    decode_tokens: IntArray = column("int32")
    num_scheduled: IntArray = column("int32")
    running: IntArray = column("int32")
    waiting: IntArray = column("int32")
    preempted: IntArray = column("int32")
    free_units: IntArray = column("int32")
    """Number of free units after scheduling, including those with a cached prefix; -1 for an engine without a pool."""
    unusable_units: IntArray | None = optional_column("int32")
    """Number of free units that the first waiting request cannot use. If all free units together would suffice for it,
    but no single range of free units does, all free units count. Otherwise the number is 0. With a custom allocator,
    only some of the free units may count.
    """
    running_after: IntArray | None = optional_column("int32")
    """Number of running requests after the output of the step; -1 if another step is in flight then."""
    waiting_after: IntArray | None = optional_column("int32")
    """Number of waiting requests after the output of the step; -1 if another step is in flight then."""
    free_units_after: IntArray | None = optional_column("int32")
    """Number of free units after the output of the step; -1 if another step is in flight then."""
    free_window_units: IntArray | None = optional_column("int32")
    """Number of free units in the second pool after scheduling, including cached ones; absent without a second pool."""
    cached_window_units: IntArray | None = optional_column("int32")
    """Number of units in the second pool that only the radix tree holds; absent without a second pool."""
    free_window_units_after: IntArray | None = optional_column("int32")
    """`free_window_units` after the output of the step; -1 if another step is in flight then."""
    cached_window_units_after: IntArray | None = optional_column("int32")
    """`cached_window_units` after the output of the step; -1 if another step is in flight then."""
    swapped_out_units: IntArray | None = optional_column("int32")
    """Number of units that the step decided to copy to host memory, by swaps or by offloading."""
    swapped_in_units: IntArray | None = optional_column("int32")
    """Number of units that the step decided to copy back from host memory."""
    allocated_bytes: IntArray | None = optional_column("int64")
    reserved_bytes: IntArray | None = optional_column("int64")
    inactive_split_bytes: IntArray | None = optional_column("int64")
    requested_bytes: IntArray | None = optional_column("int64")
    segments: IntArray | None = optional_column("int32")
    peak_allocated_bytes: IntArray | None = optional_column("int64")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Schedule(ColumnTable):
    """Table of what steps compute. A row has one request, and `tokens` tokens in each of one or more steps."""

    name: ClassVar[str] = "schedule"

    step: IntArray = column("int32", is_ascending=True)
    request: IntArray = column("int32")
    computed_before: IntArray = column("int32")
    tokens: IntArray = column("int32")
    repeat: IntArray | None = optional_column("int32")
    known: IntArray | None = optional_column("int32")
    """Number of the request's known tokens (prompt and processed outputs) when scheduled. Only with drafts."""
    outputs: IntArray | None = optional_column("int32")
    """Number of output tokens that the step gave the request. Only in runs with speculative decoding."""
    proposed: IntArray | None = optional_column("int32")
    """Number of tokens drafted for the request after the output of the step. Only recordings of a vLLM with speculative
    decoding and without asynchronous scheduling have it.
    """

    @property
    def repeats(self) -> IntArray:
        """Number of steps of each row: 1 if the file lacks the column `repeat`."""
        return np.ones(len(self.step), np.int32) if self.repeat is None else self.repeat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Memory(ColumnTable):
    """Table of memory events, in order: a row for each allocation, release or eviction of consecutive units."""

    name: ClassVar[str] = "memory"
    is_optional: ClassVar[bool] = True

    seq: IntArray = column("int64", is_ascending=True)
    step: IntArray = column("int32", is_ascending=True)
    kind: IntArray = column("uint8", names=MemoryKind)
    request: IntArray = column("int32")
    position: IntArray = column("int32")
    address: IntArray = column("int32")
    length: IntArray = column("int32")
    requested: IntArray | None = optional_column("int32")
    """Number of units that the request asked for, if the allocator rounds up. Absent if it is always `length`."""
    cached: IntArray | None = optional_column("int32")
    """Number of released units, from the first on, that stay in the prefix cache. Only releases use this column."""
    group: IntArray | None = optional_column("int32")
    """Index of the KV-cache group of the table; 0 for evictions, which concern no table. Absent with one group."""
    repeat: IntArray | None = optional_column("int32")
    """Number of consecutive steps, from `step` on, in each of which the row appends `length` units. Each step's units
    have the addresses after those of the previous step. Absent if it is always 1.
    """

    @property
    def groups(self) -> IntArray:
        """Index of the KV-cache group of each row: 0 if the file lacks the column `group`."""
        return np.zeros(len(self.step), np.int32) if self.group is None else self.group

    @property
    def releases_part(self) -> npt.NDArray[np.bool_]:
        """True for each row in which a request releases a part of a table."""
        return np.asarray((self.kind == MemoryKind.RELEASE) & (self.address != WHOLE_TABLE))

    @property
    def end_rows(self) -> IntArray:
        """Indices of rows that release whole tables; only the last one of rows for several tables of a request."""
        rows = np.flatnonzero((self.kind == MemoryKind.RELEASE) & (self.address == WHOLE_TABLE))
        if self.group is None or not len(rows):
            return rows
        moments = np.stack((self.request[rows].astype(np.int64), self.seq[rows]))
        # `np.unique` returns the first index of each moment, which is the last row in reversed order.
        _, last = np.unique(moments[:, ::-1], axis=1, return_index=True)
        return np.sort(rows[::-1][last])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Copies(ColumnTable):
    """Table of copies between GPU and host, a row for each GPU block, in the order in which their ends are reported.

    Rows of one copy are in the order in which its host blocks become idle, because this order decides evictions. Copies
    whose end is never reported come last.
    """

    name: ClassVar[str] = "copies"
    is_optional: ClassVar[bool] = True

    copy: IntArray = column("int32")
    """Number of the copy, from 0 in the order in which steps decide on copies."""
    kind: IntArray = column("uint8", names=CopyKind)
    request: IntArray = column("int32")
    begun_step: IntArray = column("int32")
    """Number of the step that decided on the copy."""
    awaited_step: IntArray = column("int32")
    """First step that waited for the copy, because it allocated blocks that were being copied; -1 if none waited."""
    reported_step: IntArray = column("int32")
    """Step whose output reported the end of the copy; -1 if the recording ends before."""
    address: IntArray = column("int32")
    """Number of the GPU block."""
    slot: IntArray = column("int32")
    """Number of the host block. A host block may hold several GPU blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Transfers(ColumnTable):
    """Table of transfers between this server and others, or a prefix store, in the order in which they begin."""

    name: ClassVar[str] = "transfers"
    is_optional: ClassVar[bool] = True

    kind: IntArray = column("uint8", names=TransferKind)
    request: IntArray = column("int32")
    server: IntArray = column("int32")
    """Number of the other server, among prefill servers for a load, decode servers for a send; -1 if unknown."""
    begun_seq: IntArray = column("int64")
    """`seq` at which a load allocates its blocks; for a send, the `seq` of the output that ends the request. For a
    write, this is no `seq`, but its number among the writes of all servers, from 0.
    """
    ended_seq: IntArray = column("int64")
    """`seq` of the output that reports the end of the transfer; -1 for a write, and if the recording ends before."""
    begin_s: FloatArray = column("float64")
    """Time in seconds at which a load begins to use the link, or from which sent blocks are kept for another server.
    For a write, the time at which the request gets its first output token.
    """
    end_s: FloatArray = column("float64")
    """Time in seconds at which all blocks are transferred; NaN if the recording ends before."""
    position: IntArray = column("int32")
    """Index in the request's block table of the first block that is transferred."""
    blocks: IntArray = column("int32")
    tokens: IntArray = column("int32")
    """Number of tokens that a load brings; for sent or written blocks, the number of computed tokens in them."""
    failed: IntArray = column("int32")
    """Index in the request's block table of the first block that failed to load; -1 if none failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PromptImages(ColumnTable):
    """Table of images in prompts, one row each, sorted by request and place."""

    name: ClassVar[str] = "images"
    is_optional: ClassVar[bool] = True
    derived: ClassVar[tuple[str, ...]] = ("outputs",)

    request: IntArray = column("int32")
    image: IntArray = column("int32")
    """Number of the image, from 1 on; equal images have equal numbers."""
    place: IntArray = column("int32")
    """Number of prompt tokens before the image."""
    tokens: IntArray = column("int32")
    """Number of prompt tokens of the image."""
    embedded: Ragged[np.int64] | None = optional_column("list<int64>")
    """Ranges of the image's tokens that have an encoder output, in one flat list: for each range its first token,
    counted from the beginning of the image, and its number of tokens.

    The list is empty if all tokens have an output. The column is absent if this is so for every image.
    """

    @property
    def outputs(self) -> IntArray:
        """Number of encoder outputs of each image: int64[rows]."""
        outputs = self.tokens.astype(np.int64)
        if self.embedded is not None:
            rows = np.flatnonzero(self.embedded.lengths)
            outputs[rows] = [self.embedded[row][1::2].sum() for row in rows.tolist()]
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EncoderEvents(ColumnTable):
    """Table of events of the encoder cache, one row each, in order."""

    name: ClassVar[str] = "encoder"
    is_optional: ClassVar[bool] = True

    seq: IntArray = column("int64", is_ascending=True)
    step: IntArray = column("int32", is_ascending=True)
    kind: IntArray = column("uint8", names=ImageEventKind)
    request: IntArray = column("int32")
    """Row of the request that begins or ceases to hold the image; -1 if the image is computed or evicted."""
    image: IntArray = column("int32")


TABLES: tuple[type[ColumnTable], ...] = (
    Requests, Steps, Schedule, Memory, Copies, Transfers, PromptImages, EncoderEvents,
)  # fmt: skip
"""Types of the tables of a recording. Each is in a file of its own."""
