"""Collect, during a run, the tables that only some recordings have: copies, transfers between servers, and images.

A copy between GPU and host is decided by a step, may be awaited by later steps, and its end is reported with the output
of another step. A transfer is reported twice: when it begins and when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvsim.recording.growing import GrowingTable
from kvsim.recording.tables import (
    Copies,
    CopyKind,
    EncoderEvents,
    ImageEventKind,
    IntArray,
    PromptImages,
    TransferKind,
    Transfers,
)
from kvsim.workload import Ragged

_NEVER = -1


@dataclass(slots=True)
class _Copy:
    kind: CopyKind
    request: int
    begun_step: int
    units_of_slot: dict[int, list[int]]
    awaited_step: int = _NEVER


class GrowingCopies:
    """Growing table of block copies between GPU and host. A copy gets its rows when its end is reported."""

    def __init__(self) -> None:
        self._rows = GrowingTable(Copies)
        self._under_way: dict[int, _Copy] = {}
        self._reported: list[int] = []
        self._offloads = False
        self._units_per_slot = 1

    def configure(self, policy: Any) -> None:
        """Set whether the engine offloads, and the size of its host blocks, from the policy in `meta.json`."""
        if isinstance(policy, dict) and isinstance(size := policy.get("kv_offloading_block_size"), int):
            self._offloads = "host_blocks" in policy
            self._units_per_slot = max(size // max(int(policy.get("block_size") or 1), 1), 1)

    def begin(
        self, number: int, is_load: bool, request: int, units: Sequence[int], slots: Sequence[int], step: int
    ) -> None:
        """Record that `step` decides on copy `number`, between GPU blocks `units` and host blocks `slots`.

        `request` is the request whose blocks are copied. A host block has room for one or several GPU blocks. A store
        to the host fills its host blocks; a load (`is_load`) may leave out the first GPU blocks of `slots[0]`.

        Raises:
            ValueError: the numbers of blocks do not match, or a copy with this number is under way.
        """
        missing = len(slots) * self._units_per_slot - len(units)
        if number in self._under_way or not 0 <= missing < self._units_per_slot or (missing and not is_load):
            raise ValueError(f"copy {number} is of {len(units)} blocks and {len(slots)} host blocks")
        # A load that skips the first `missing` blocks of its first host block.
        places = [slots[(missing + index) // self._units_per_slot] for index in range(len(units))]
        units_of_slot: dict[int, list[int]] = {slot: [] for slot in slots}
        for slot, unit in zip(places, units, strict=True):
            units_of_slot[slot].append(unit)
        kind = CopyKind.LOAD if is_load else CopyKind.STORE
        self._under_way[number] = _Copy(kind, request, step, units_of_slot)

    def awaited(self, numbers: Sequence[int], step: int) -> None:
        """Record that `step` waits for the copies `numbers`."""
        for number in numbers:
            copy = self._under_way[number]
            copy.awaited_step = step if copy.awaited_step == _NEVER else copy.awaited_step

    def report(self, number: int, slots: Sequence[int]) -> None:
        """Record that the end of copy `number` is reported. `slots` are its host blocks, by order of becoming idle."""
        copy = self._under_way.pop(number)
        if sorted(slots) != sorted(copy.units_of_slot):
            raise ValueError(f"copy {number} is of other host blocks")
        self._add(number, copy, slots)

    def processed(self, step: int) -> None:
        """Record that `step`'s output was processed. Ends reported since the last call get it as `reported_step`."""
        for row in self._reported:
            self._rows.columns["reported_step"][row] = step
        self._reported.clear()

    def to_table(self) -> Copies | None:
        """Return the copies whose end was reported, and then those that have not ended; None without offloading.

        No end of a copy can be reported after this call.
        """
        if not self._offloads and not len(self._rows) and not self._under_way:
            return None
        for number, copy in self._under_way.items():
            self._add(number, copy, list(copy.units_of_slot))
        self._under_way.clear()
        return Copies(**self._rows.rows())

    def _add(self, number: int, copy: _Copy, slots: Sequence[int]) -> None:
        for slot in slots:
            for unit in copy.units_of_slot[slot]:
                self._reported.append(len(self._rows))
                begun, awaited = copy.begun_step, copy.awaited_step
                self._rows.append(number, copy.kind, copy.request, begun, awaited, _NEVER, unit, slot)


class GrowingTransfers:
    """Growing table of transfers, in the order in which they begin. A request has at most one transfer at a time."""

    def __init__(self) -> None:
        self._rows = GrowingTable(Transfers)
        self._under_way: dict[int, int] = {}
        self._exchanges = False

    def configure(self, exchanges: bool) -> None:
        """Set whether the server exchanges KV. If it does, its recording has the table even if it has no rows."""
        self._exchanges = exchanges

    def begin(
        self, kind: TransferKind, request: int, position: int, blocks: int, tokens: int, *, seq: int, time_s: float
    ) -> None:
        """Record that a transfer of `blocks` blocks of `request` begins, from index `position` of its block table on.

        `tokens` is the number of tokens that a load brings. If the blocks are kept to be sent, it is the number of
        computed tokens in them. `seq` is the number of the event, `time_s` its time.
        """
        if request in self._under_way:
            raise ValueError(f"a transfer of request {request} is under way")
        self._under_way[request] = len(self._rows)
        self._rows.append(kind, request, _NEVER, seq, _NEVER, time_s, np.nan, position, blocks, tokens, _NEVER)

    def end(self, request: int, *, seq: int, time_s: float, failed: int = -1) -> None:
        """Record that the transfer of `request` ended at `time_s`. `seq` is the number of the event that reports it.

        `failed` is the index in the request's block table of the first block that did not load; -1 if all loaded.
        """
        row = self._under_way.pop(request)
        for name, value in (("ended_seq", seq), ("end_s", time_s), ("failed", failed)):
            self._rows.columns[name][row] = value

    def to_table(self) -> Transfers | None:
        """Return all transfers up to now; None for an engine that exchanges no KV."""
        if not self._exchanges and not len(self._rows):
            return None
        return Transfers(**self._rows.rows())


class GrowingImages:
    """Growing tables of images in prompts, and of the events of the encoder cache."""

    def __init__(self) -> None:
        self._images, self._events = GrowingTable(PromptImages), GrowingTable(EncoderEvents)
        self._runs: list[list[int]] = []
        self._has_runs = self._are_reported = False

    def __len__(self) -> int:
        return len(self._images) + len(self._events)

    @property
    def num_events(self) -> int:
        """Number of events of the encoder cache up to now."""
        return len(self._events)

    def add(self, request: int, images: Iterable[Sequence[Any]]) -> None:
        """Record the images in the prompt of a request, in the order of the prompt.

        An image is a list: its number, the index of its first token in the prompt, and its number of tokens. If only
        some of its tokens have an encoder output, a fourth element lists the ranges of these tokens. That list is flat:
        the first token of a range, counted from the beginning of the image, then its number of tokens, and so on.
        """
        for image, place, tokens, *runs in images:
            self._images.append(request, image, place, tokens)
            self._runs.append([int(number) for number in runs[0]] if runs else [])
        self._has_runs |= any(self._runs)
        self._are_reported = True

    def happened(self, kind: str, request: int, image: int, *, seq: int, step: int) -> None:
        """Record an event of the encoder cache for `image`, the number of an image. `kind` is the name of an
        `ImageEventKind` in lower case; `request` is -1 if the image is computed or evicted.
        """
        self._events.append(seq, step, ImageEventKind[kind.upper()], request, image)

    def images(self, requests: IntArray | None = None) -> PromptImages | None:
        """Return the images of all requests, or of the requests in rows `requests`. None if no prompt has an image."""
        if not len(self._images):
            return None
        columns = self._images.rows()
        chosen = np.arange(len(self._images))
        if requests is not None:
            chosen = np.flatnonzero(np.isin(columns["request"], requests))
        runs = Ragged.from_rows([self._runs[row] for row in chosen.tolist()], np.int64) if self._has_runs else None
        return PromptImages(**{name: column[chosen] for name, column in columns.items()}, embedded=runs)

    def events(self, first: int = 0) -> EncoderEvents | None:
        """Return the encoder cache's events from row `first` on. None if no images or events were recorded."""
        is_there = self._are_reported or len(self._events) > 0
        return EncoderEvents(**self._events.rows(slice(first, None))) if is_there else None
