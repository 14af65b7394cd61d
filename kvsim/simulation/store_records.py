"""Transfers between servers and a prefix store, as rows of the recordings of a fleet; and the check of these rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.policies.connectors import STORE
from kvsim.recording import Recording
from kvsim.recording.tables import TransferKind, Transfers
from kvsim.simulation.prefix_store import StoredPrefixes, StoredPrompt, StoreLoad

CAPACITY = "prefix_store_blocks"
"""Name, in the `engine` of a recording's `meta.json`, of the capacity of the prefix store in blocks."""


class _Row(NamedTuple):
    """Row of `Transfers` for a load from or a write to a store. Columns that are -1 for both are left out."""

    kind: TransferKind
    request: int
    begun_seq: int
    ended_seq: int
    begin_s: float
    end_s: float
    position: int
    blocks: int
    tokens: int


def store_transfers(
    rows: npt.NDArray[np.int64], loads: Sequence[StoreLoad], writes: Mapping[int, StoredPrompt], unit_tokens: int
) -> Transfers:
    """Return the transfers of one server: first its loads from the prefix store, then its writes to it.

    Args:
        rows: rows of the server's requests in the fleet's whole workload, in the order of its recording.
        loads: the server's loads, in the order in which they began.
        writes: writes of all servers, in the order in which they ended. A key is the request's row in the workload,
            counted from 1.
        unit_tokens: tokens of a block.
    """
    place = {row + 1: request for request, row in enumerate(rows.tolist())}
    found = [
        _Row(
            kind=TransferKind.LOAD, request=place[load.number], begun_seq=load.begun_seq, ended_seq=load.ended_seq,
            begin_s=load.begin_s, end_s=load.end_s if load.ended_seq >= 0 else math.nan, position=load.first_block,
            blocks=load.num_blocks, tokens=load.num_tokens,
        )
        for load in loads
    ]  # fmt: skip
    found += [
        _Row(
            kind=TransferKind.WRITE, request=place[number], begun_seq=order, ended_seq=-1, begin_s=write.computed_s,
            end_s=write.stored_s, position=write.first_block, blocks=write.num_blocks,
            tokens=write.num_blocks * unit_tokens,
        )
        for order, (number, write) in enumerate(writes.items())
        if number in place
    ]  # fmt: skip
    values = dict(zip(_Row._fields, np.array(found, np.float64).reshape(-1, len(_Row._fields)).T, strict=True))
    unknown = np.full(len(found), -1.0)
    return Transfers(**{name: values.get(name, unknown).astype(each.dtype) for name, each in Transfers.columns()})


class _Write(NamedTuple):
    """The write of one prompt to the prefix store."""

    order: int
    """Number of the write, from 0, in the order in which the writes of all servers ended."""
    end_s: float
    keys: list[int]
    """Keys of the prompt's blocks, up to the last written block."""


class _LoadedPrompt(NamedTuple):
    """A load from the prefix store, with the earliest and latest time in seconds of the server's decision."""

    from_s: float
    """Earliest time of the decision: the begin of the step before the one that allocates; 0 if that is the first."""
    until_s: float
    """Latest time of the decision: the begin of the step that allocates the blocks."""
    file: Path
    row: int
    """Row of `transfers.parquet`, for errors."""
    num_blocks: int
    keys: list[int]
    """Keys of the prompt's blocks, up to the last loaded block."""


def check_loads(servers: Sequence[tuple[Path, Recording]]) -> int:
    """Check that the prefix store held each block when a server decided to load it; return the number of loaded blocks.

    To know the contents of the store at any time, the writes of all servers are put into an empty store, in the order
    in which they ended. The result is 0 for a fleet without a store.

    Args:
        servers: the recordings of all servers of a fleet, with their folders.
    """
    stored = [(folder, each) for folder, each in servers if each.meta.engine.get("kv_connector") == STORE]
    if not stored:
        return 0
    writes = sorted((write for _, each in stored for write in _writes(each)), key=attrgetter("order"))
    loads = sorted((load for folder, each in stored for load in _loads(folder, each)), key=attrgetter("from_s"))
    content = StoredPrefixes(int(stored[0][1].meta.engine[CAPACITY]))
    begun, sought = iter(loads), list[_LoadedPrompt]()
    following = next(begun, None)
    for write in [*writes, _Write(len(writes), math.inf, [])]:
        while following is not None and following.from_s < write.end_s:
            sought.append(following)
            following = next(begun, None)
        sought = [load for load in sought if content.num_leading(load.keys) < len(load.keys)]
        for load in sought:
            if load.until_s < write.end_s:
                raise RecordingError(
                    f"{load.file}, row {load.row}: {load.num_blocks:,} blocks are loaded, and the prefix store holds "
                    f"{content.num_leading(load.keys):,} of the {len(load.keys):,} that the prompt begins with."
                )
        content.put(write.keys)
    return sum(load.num_blocks for load in loads)


def _writes(recording: Recording) -> Iterator[_Write]:
    transfers = recording.transfers
    assert transfers is not None
    for row in np.flatnonzero(transfers.kind == TransferKind.WRITE).tolist():
        yield _Write(int(transfers.begun_seq[row]), float(transfers.end_s[row]), _keys(recording, transfers, row))


def _loads(folder: Path, recording: Recording) -> Iterator[_LoadedPrompt]:
    """Yield the loads of a server from the prefix store, but not empty ones."""
    steps, transfers = recording.steps, recording.transfers
    assert transfers is not None
    for row in np.flatnonzero((transfers.kind == TransferKind.LOAD) & (transfers.blocks > 0)).tolist():
        step = int(np.searchsorted(steps.schedule_seq, transfers.begun_seq[row]))
        yield _LoadedPrompt(
            from_s=float(steps.start_s[step - 1]) if step else 0.0,
            until_s=float(steps.start_s[step]),
            file=folder / "transfers.parquet",
            row=row,
            num_blocks=int(transfers.blocks[row]),
            keys=_keys(recording, transfers, row),
        )


def _keys(recording: Recording, transfers: Transfers, row: int) -> list[int]:
    """Return the keys of the prompt's blocks for the transfer in `row`, up to the last transferred block.

    A block covers one or more prompt hashes. Its key is the last of these hashes.
    """
    per_block = recording.meta.pool.unit_tokens // recording.meta.hash_block_size
    hashes = recording.requests.prompt_hashes[transfers.request[row]]
    end = int(transfers.position[row] + transfers.blocks[row])
    keys: list[int] = hashes[per_block - 1 :: per_block][:end].tolist()
    return keys
