"""Build a recording during a run: a recorded engine reports events, and the builder adds them to tables.

`seq` numbers the events that change the engine's state: an arrival, the scheduling of a step, a processed output. While
the engine schedules a step, it reports which requests get and release memory; all these reports have the `seq` of that
event. The simulator's engine does not use the builder: it passes rows that are final, many at a time, to a `RowSink`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from math import isnan
from typing import Any

import numpy as np

from kvsim.recording.growing import GrowingMemory, GrowingRequests, GrowingSchedule, GrowingSteps
from kvsim.recording.model import Meta, Recording
from kvsim.recording.optional_tables import GrowingCopies, GrowingImages, GrowingTransfers
from kvsim.recording.run_marks import Mark, Since
from kvsim.recording.tables import WHOLE_TABLE, IntArray, MemoryKind, Requests, RequestStatus, TransferKind


class RecordingBuilder:
    """Builder of the recording of one run. Requests are numbered from 0 in order of arrival."""

    def __init__(self) -> None:
        self._seq = -1
        self._num_steps = 0
        self._requests, self._steps = GrowingRequests(), GrowingSteps()
        self._schedule, self._memory = GrowingSchedule(), GrowingMemory()
        self.copies = GrowingCopies()
        """Copies to and from host memory. Events of copies are passed to it directly."""
        self.transfers = GrowingTransfers()
        """Transfers between servers. `transfer` and `transferred` pass events to it."""
        self._images = GrowingImages()
        self._last_token_s = 0.0
        """Time of the latest output token. It may be later than every recorded `end_s`, because the tokens of a step
        are reported before its output.
        """
        self._last_scheduled: list[int] = []
        self._previous_scheduled: list[int] = []
        self._preempted_since: list[int] = []
        """Requests that were preempted since the last call of `step`. The next call counts them in its step."""
        self._begun_since: list[int] = []

    @property
    def num_steps(self) -> int:
        """Number of steps recorded up to now, including steps in flight."""
        return self._num_steps

    @property
    def num_requests(self) -> int:
        """Number of requests that have arrived up to now."""
        return len(self._requests)

    @property
    def num_memory_rows(self) -> int:
        """Number of rows of the memory table up to now."""
        return len(self._memory)

    @property
    def num_values(self) -> int:
        """Number of stored rows plus stored prompt hashes: a measure of the builder's memory."""
        growing: list[Sized] = [self._requests, self._steps, self._schedule, self._memory, self._images]
        return sum(map(len, growing)) + self._requests.num_hashes

    def begin_event(self) -> int:
        """Begin an event, a change of the engine's state. Return its `seq`, which memory rows get until the next."""
        self._seq += 1
        return self._seq

    def arrived(
        self,
        name: str,
        time_s: float,
        prompt_tokens: int,
        max_tokens: int,
        *,
        priority: int = 0,
        prompt_hashes: Iterable[int] = (),
        refused: bool = False,
        adapter: int = 0,
        delay_s: float | None = None,
    ) -> int:
        """Add a request that arrives at the engine, and return its row in the requests table.

        If `refused`, the request is never served. `prompt_hashes` has one hash per full hash block of the prompt, which
        covers all tokens up to the block's end; it is empty if they are not known. `delay_s` is the time in seconds
        since the server's front end got the request; None if it is not known. `adapter` is the number of its LoRA
        adapter, from 1 on; 0 if it has none.
        """
        sent = {} if delay_s is None else {"sent_s": round(time_s - delay_s, 9)}
        return self._requests.add(
            name,
            prompt_hashes,
            **sent,
            arrival_s=time_s,
            arrival_seq=self.begin_event(),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            priority=priority,
            adapter=adapter,
            first_scheduled_s=np.nan,
            first_token_s=np.nan,
            finished_s=np.nan,
            status=RequestStatus.REFUSED if refused else RequestStatus.UNFINISHED,
        )

    def scheduled(
        self, request: int, computed_before: int, tokens: int, time_s: float, repeat: int = 1, known: int | None = None
    ) -> None:
        """Record that `request` computes `tokens` tokens in each of `repeat` steps. The first of these is the step that
        is being scheduled.

        `time_s` is the time in seconds at which this first step is scheduled. `computed_before` is the number of the
        request's tokens that are computed before it. `known` is the number of its tokens with known values (prompt and
        processed outputs); None without speculative decoding.
        """
        self._last_scheduled.append(request)
        first_scheduled_s = self._requests.columns["first_scheduled_s"]
        if isnan(first_scheduled_s[request]):
            first_scheduled_s[request] = time_s
            self._requests.columns["cached_tokens"][request] = computed_before
            self._begun_since.append(request)
        self._schedule.add(self._num_steps, request, computed_before, tokens, repeat, known)

    def scheduled_again(self) -> None:
        """Record that the step being scheduled computes one token for each request of the previous step."""
        self._last_scheduled += self._previous_scheduled
        self._schedule.add_decode(self._previous_scheduled, self._num_steps)

    def check_step(self, columns: Mapping[str, Any]) -> None:
        """Check the values in `columns` for the next row of the steps table, which come from a file.

        Raises:
            ValueError: a value has a wrong type, a column is missing that is required or that earlier steps have, or a
                column is given that earlier steps lack.
        """
        self._steps.check_row(columns, given_elsewhere=("step", "schedule_seq", "output_seq", "end_s"))

    def check_output(self, step: int) -> None:
        """Check that `step` exists and its output has not been recorded yet.

        Raises:
            IndexError: it does not exist, or its output has been recorded.
        """
        if not (0 <= step < len(self._steps) and self._steps.columns["output_seq"][step] < 0):
            raise IndexError(f"the output of step {step} is not awaited")

    def step(self, **columns: float) -> int:
        """End the scheduling of a step: add its row to the steps table, and return its number.

        `columns` are the values of the row by name, without `step`, `schedule_seq`, `output_seq` and `end_s`.
        """
        number = self._num_steps
        columns |= {"step": number, "schedule_seq": self._seq, "output_seq": -1, "end_s": np.nan}
        for name, column in self._steps.columns.items():
            if name in columns:
                column.append(columns[name] if column.typecode == "d" else int(columns[name]))
        self._num_steps += 1
        self._previous_scheduled, self._last_scheduled = self._last_scheduled, []
        self._preempted_since.clear()
        self._begun_since.clear()
        return number

    def output(self, step: int, time_s: float, outputs: Mapping[int, int] | None = None) -> None:
        """Record that the output of `step` was processed at `time_s`.

        `outputs` has the number of output tokens of each request that got any; None without speculative decoding.
        """
        if outputs is not None:
            self._schedule.fill_in("outputs", step, outputs)
        self._steps.columns["output_seq"][step] = self._seq
        self._steps.columns["end_s"][step] = time_s
        self.copies.processed(step)

    def proposed(self, step: int, drafts: Mapping[int, int]) -> None:
        """Record the number of draft tokens that were proposed for each request after the output of `step`."""
        self._schedule.fill_in("proposed", step, drafts)

    def emitted(self, request: int, time_s: float, count: int = 1) -> None:
        """Record `count` more output tokens of `request`.

        If the recorder joined a running engine, a request may get an output of a step that was scheduled before the
        recording began. `time_s` then becomes its first scheduling time, too.
        """
        columns = self._requests.columns
        outputs, first_scheduled_s = columns["output_tokens"], columns["first_scheduled_s"]
        if isnan(first_scheduled_s[request]):
            first_scheduled_s[request] = time_s
        if not outputs[request]:
            columns["first_token_s"][request] = time_s
        outputs[request] += count
        self._last_token_s = time_s

    def preempted(self, request: int) -> None:
        """Record that `request` lost its memory and will recompute its tokens."""
        self._requests.columns["preemptions"][request] += 1
        self._preempted_since.append(request)

    def transfer(self, is_send: bool, request: int, position: int, blocks: int, tokens: int, time_s: float) -> None:
        """Record that a transfer of `blocks` blocks of `request` begins, from index `position` of its block table on.

        A load brings `tokens` tokens from another server. If `is_send`, nothing is loaded: the blocks are kept until
        another server has read them. They then hold `tokens` computed tokens.
        """
        kind = TransferKind.SEND if is_send else TransferKind.LOAD
        self.transfers.begin(kind, request, position, blocks, tokens, seq=self._seq, time_s=time_s)

    def transferred(self, request: int, time_s: float, failed: int) -> None:
        """Record that `request`'s transfer ended. `failed` is the table index of the first block not loaded, or -1."""
        self.transfers.end(request, seq=self._seq, time_s=time_s, failed=failed)

    def add_images(self, request: int, images: Iterable[Sequence[Any]]) -> None:
        """Record the images in the prompt of `request`, which has arrived, in the order of the prompt.

        An image is a list: its number, the index of its first token in the prompt, and its number of tokens. A fourth
        element lists the ranges of tokens that have an encoder output, if not all have one, as in `GrowingImages.add`.
        """
        self._images.add(request, images)

    def encoder_event(self, kind: str, request: int, image: int) -> None:
        """Record an event of the encoder cache for the image with the number `image`.

        `kind` is the name of an `ImageEventKind` in lower case. `request` begins or ceases to hold the image; it is -1
        if the image is computed or evicted.
        """
        self._images.happened(kind, request, image, seq=self._seq, step=self._num_steps)

    def ended(self, request: int, status: RequestStatus, time_s: float) -> None:
        """Record that `request` left the engine."""
        self._requests.columns["status"][request] = status
        self._requests.columns["finished_s"][request] = time_s
        self._schedule.end(request)

    def append_blocks(self, request: int, position: int, blocks: Sequence[int], group: int = 0) -> None:
        """Record that `blocks` were appended to the request's table of KV-cache group `group`, at index `position`."""
        self._memory.add_units(self._seq, self._num_steps, MemoryKind.APPEND, request, position, blocks, group)

    def share_blocks(self, request: int, position: int, blocks: Sequence[int], group: int = 0) -> None:
        """Record that `blocks` of a prefix hit were added to the request's table of `group`, at index `position`."""
        self._memory.add_units(self._seq, self._num_steps, MemoryKind.SHARE, request, position, blocks, group)

    def append_extent(
        self, request: int, position: int, address: int, length: int, requested: int, repeat: int | None = None
    ) -> None:
        """Record that `request` asked for `requested` slots, and got `length` consecutive slots from `address` on.

        `position` is the number of slots that the request held before. If `repeat` is given, it gets `length` more
        slots in each of the next `repeat - 1` steps, each time directly behind its latest slots.
        """
        self._memory.has_repeats |= repeat is not None
        self._memory.add(
            self._seq, self._num_steps, MemoryKind.APPEND, request, position,
            address=address, length=length, requested=requested, repeat=repeat or 1,
        )  # fmt: skip

    def release(self, request: int, num_units: int, num_cached: int, group: int = 0) -> None:
        """Record that `request` released its whole table in KV-cache group `group`: `num_units` blocks, or slots in a
        pool of single slots.

        The first `num_cached` of these units stay in the prefix cache.
        """
        self._memory.add(
            self._seq, self._num_steps, MemoryKind.RELEASE, request, 0,
            address=WHOLE_TABLE, length=num_units, cached=num_cached, group=group,
        )  # fmt: skip

    def release_blocks(
        self, request: int, positions: Sequence[int], blocks: Sequence[int], kept: Sequence[int], group: int
    ) -> None:
        """Record that `request` released some blocks of its table, one after the other, and keeps the rest.

        `positions[i]` is the index of `blocks[i]` in the table. `kept[i]` is 1 if it stays in the prefix cache, else 0.
        """
        for position, block, keeps in zip(positions, blocks, kept, strict=True):
            self._memory.add(
                self._seq, self._num_steps, MemoryKind.RELEASE, request, position,
                address=block, length=1, cached=keeps, group=group,
            )  # fmt: skip

    def evict(self, blocks: Sequence[int]) -> None:
        """Record that the prefixes that were cached in `blocks` were evicted."""
        self._memory.add_units(self._seq, self._num_steps, MemoryKind.EVICT, -1, 0, blocks)

    def mark(self) -> Mark:
        """Return the present row counts, for a later call of `since`. Call it only between steps of the engine."""
        return Mark(
            seq=self._seq,
            num_requests=len(self._requests),
            num_steps=self._num_steps,
            num_schedule_rows=len(self._schedule),
            num_memory_rows=len(self._memory),
            num_encoder_rows=self._images.num_events,
            open_rows=self._schedule.open_rows,
        )

    def since(self, mark: Mark, requests: IntArray) -> Since:
        """Return the rows that were added or changed after `mark`.

        The result has the requests at the row indices `requests`, which must ascend and lie before the mark, and then
        all requests that arrived after `mark`.
        """
        extended = mark.open_rows[self._schedule.last_step(mark.open_rows) >= mark.num_steps]
        rows = np.concatenate((extended, np.arange(mark.num_schedule_rows, len(self._schedule))))
        chosen = np.concatenate((requests, np.arange(mark.num_requests, len(self._requests))))
        return Since(
            rows=chosen,
            requests=self._without_open_step(self._requests.to_table(chosen), chosen),
            steps=self._steps.to_table(self._seq + 1, self._last_token_s, mark.num_steps),
            schedule=self._schedule.to_table(self._num_steps, rows),
            memory=self._memory.to_table(mark.num_memory_rows),
            images=self._images.images(chosen),
            encoder=self._images.events(mark.num_encoder_rows),
        )

    def finish(self, meta: Meta, name: str = "") -> Recording:
        """Return everything recorded up to now as a recording. Steps in flight get an output, but no output tokens."""
        return Recording(
            meta=meta,
            name=name,
            requests=self._without_open_step(self._requests.to_table(), np.arange(len(self._requests))),
            steps=self._steps.to_table(self._seq + 1, self._last_token_s),
            schedule=self._schedule.to_table(self._num_steps),
            memory=self._memory.to_table(),
            copies=self.copies.to_table(),
            transfers=self.transfers.to_table(),
            images=self._images.images(),
            encoder=self._images.events(),
        )

    def _without_open_step(self, requests: Requests, rows: IntArray) -> Requests:
        """Undo in `requests`, in place, what was reported about the step that is being scheduled. Return `requests`.

        `rows[i]` is the row of `requests[i]` in the whole requests table; ascending.
        """
        np.subtract.at(requests.preemptions, np.searchsorted(rows, self._preempted_since), 1)
        begun = np.searchsorted(rows, self._begun_since)
        requests.first_scheduled_s[begun], requests.cached_tokens[begun] = np.nan, 0
        # Recorders report a request's outputs, except the first, when it ends. Until then, the schedule has them.
        if self._schedule.columns["known"]:
            unfinished = (requests.status == RequestStatus.UNFINISHED) & ~np.isnan(requests.first_token_s)
            requests.output_tokens[unfinished] = self._outputs_so_far()[rows][unfinished]
        return requests

    def _outputs_so_far(self) -> IntArray:
        """Return the number of output tokens of each request, as far as the rows of the schedule state it."""
        schedule, prompt = self._schedule.to_table(self._num_steps), np.array(self._requests.columns["prompt_tokens"])
        known_at_first, most_known = prompt.copy(), prompt.copy()
        assert schedule.known is not None
        np.maximum.at(most_known, schedule.request, schedule.known)
        # The first row wins. It has more than the prompt if the recorder joined later.
        known_at_first[schedule.request[::-1]] = schedule.known[::-1]
        new = 0 if schedule.outputs is None else np.bincount(schedule.request, schedule.outputs, len(prompt))
        outputs: IntArray = (np.maximum(known_at_first + new, most_known) - prompt).astype(np.int64)
        return outputs
