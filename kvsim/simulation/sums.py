"""The sums over time that the summary of a run is made of, and its thinned-out timeline.

Each step holds from its beginning to that of the next. Where the memory went follows from a few totals over all
sequences; their integrals are all that is kept of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.metrics import WaitingFor
from kvsim.metrics.shares import UNKNOWN_SHARES
from kvsim.metrics.summary import vain_tokens
from kvsim.recording import Meta, RequestStatus
from kvsim.recording.tables import Requests
from kvsim.simulation.measured import TIMELINE_POINTS, Frame, Measured, Timeline, shares_of, summary_of_requests

Column: TypeAlias = "npt.NDArray[np.float64] | npt.NDArray[np.int64]"
NOTHING = Frame(*[0.0] * len(Frame._fields))
"""The sums before the first step."""
USEFUL = Frame._fields.index("useful")


class Sums:
    """Adds up the steps of a run over a pool."""

    def __init__(self, capacity_slots: int) -> None:
        self.num_steps = 0
        self._capacity = capacity_slots
        self._begin_s = self._frame_s = self.end_s = 0.0
        self._frame = NOTHING
        self._integrals = [0.0] * len(Frame._fields)
        self._peak_batch = self._most_held = 0.0
        self._stride = 1
        self._timeline: list[tuple[float, int, int, int]] = []
        self._num_fragmented_steps = self._num_fragmented_requests = 0
        self._last_fragmented = -1

    def add(self, start_s: npt.NDArray[np.float64], totals: Column) -> None:
        """Add steps that begin at `start_s`, at least one, and their totals: [len(Frame), steps]."""
        num_steps = len(start_s)
        self._open(float(start_s[0]), Frame(*totals[:, 0].tolist()))
        self._integrals = (self._integrals + totals[:, :-1] @ np.diff(start_s)).tolist()
        self._frame, self._frame_s = Frame(*totals[:, -1].tolist()), float(start_s[-1])
        scheduled, waiting, free = (totals[Frame._fields.index(name)] for name in ("scheduled", "waiting", "free"))
        self._peak_batch = max(self._peak_batch, int(scheduled.max()))
        self._most_held = max(self._most_held, self._capacity - int(free.min()))
        self._mark(start_s, scheduled, waiting, free)
        self.num_steps += num_steps

    def add_fragmented(self, num_admitted: npt.NDArray[np.int64]) -> None:
        """In so many steps the head of the queue, after so many admissions, waited for slots side by side."""
        self._num_fragmented_steps += len(num_admitted)
        if len(num_admitted):  # which never falls from step to step
            self._num_fragmented_requests += int(np.count_nonzero(np.diff(num_admitted, prepend=self._last_fragmented)))
            self._last_fragmented = int(num_admitted[-1])

    def summarize(
        self, meta: Meta, name: str, requests: Requests, *,
        useless_slot_s: float = 0.0, computed_tokens: int = 0, swapped_out_units: int = 0, swapped_in_units: int = 0,
    ) -> Measured:  # fmt: skip
        """What the steps add up to, with their requests.

        `useless_slot_s` are slots times seconds that were counted as useful and turned out not to be.
        """
        self._open(self.end_s, self._frame)
        self._integrals[USEFUL] -= useless_slot_s
        num_finished = int(np.count_nonzero(requests.status == RequestStatus.FINISHED))
        duration_s, time_s = self.end_s, self.end_s - self._begin_s
        mean = Frame(*(integral / time_s if time_s else np.nan for integral in self._integrals))
        summary = replace(
            summary_of_requests(meta, name, requests),
            num_steps=self.num_steps,
            duration_s=duration_s,
            output_tokens_per_s=int(requests.output_tokens.sum()) / duration_s if duration_s else np.nan,
            requests_per_s=num_finished / duration_s if duration_s else np.nan,
            mean_batch=mean.scheduled,
            peak_batch=int(self._peak_batch),
            mean_occupancy=(self._capacity - mean.free) / self._capacity,
            peak_occupancy=self._most_held / self._capacity if self.num_steps else np.nan,
            num_preemptions=int(requests.preemptions.sum()),
            swapped_out_bytes=swapped_out_units * meta.pool.bytes_per_unit,
            swapped_in_bytes=swapped_in_units * meta.pool.bytes_per_unit,
            num_fragmented_steps=self._num_fragmented_steps,
            num_fragmented_requests=self._num_fragmented_requests,
            computed_tokens=computed_tokens,
            vain_tokens=vain_tokens(computed_tokens, requests),
            mean_waiting=mean.waiting,
            waiting_for=WaitingFor.split(mean.waiting, mean.kept_by_batch, mean.kept_by_tokens),
            waste=shares_of(mean, self._capacity) if time_s else UNKNOWN_SHARES,
        )
        columns = [np.array(column) for column in zip(*self._timeline, strict=True)] or [np.empty(0)] * 4
        timeline = Timeline(start_s=columns[0], scheduled=columns[1], waiting=columns[2], held_slots=columns[3])
        return Measured(meta=meta, requests=requests, summary=summary, timeline=timeline)

    def _open(self, start_s: float, frame: Frame) -> None:
        """The frame that was open ends at `start_s`, and `frame` begins."""
        if self.num_steps == 0:
            self._begin_s = start_s
        else:
            time_s = start_s - self._frame_s
            self._integrals = [
                total + value * time_s for total, value in zip(self._integrals, self._frame, strict=True)
            ]
        self._frame_s, self._frame = start_s, frame
        self._peak_batch = max(self._peak_batch, frame.scheduled)
        self._most_held = max(self._most_held, self._capacity - frame.free)

    def _mark(self, start_s: Column, scheduled: Column, waiting: Column, free: Column) -> None:
        """Put every so manieth step into the timeline; where it gets too long, every second point goes."""
        timeline, num_steps, step = self._timeline, len(start_s), -self.num_steps % self._stride
        while step < num_steps:
            room = TIMELINE_POINTS + 1 - len(timeline)
            chosen = slice(step, min(num_steps, step + room * self._stride), self._stride)
            held = self._capacity - free[chosen]
            columns = (
                start_s[chosen].tolist(),
                *(each.astype(np.int64).tolist() for each in (scheduled[chosen], waiting[chosen], held)),
            )
            timeline.extend(zip(*columns, strict=True))
            step += len(held) * self._stride
            if len(timeline) > TIMELINE_POINTS:
                del timeline[1::2]
                self._stride *= 2
                step += -(self.num_steps + step) % self._stride
