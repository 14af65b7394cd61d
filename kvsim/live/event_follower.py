"""Recordings from the published events of a server: the last steps for a screen, all kept steps for a file.

A screen gets only the steps since shortly before its last update, so that the cost of an update does not grow with
time. This module does no networking.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import RecordingError
from kvsim.live.events import parse
from kvsim.live.mirror import Mirror
from kvsim.live.tail import Cut, Excerpt, joined_meta, tail
from kvsim.recording import eventlog
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.check import check
from kvsim.recording.model import Meta, Recording
from kvsim.recording.provenance import meta_from_document

TAIL_STEPS = 1_024
"""Largest number of steps between two moments (cuts) at which an `Excerpt` may begin. An excerpt begins at a cut before
the newest one, so that it is not too short.
"""
TAIL_VALUES = 32_768
"""Number of new table rows after which an excerpt may begin before `TAIL_STEPS` steps have passed."""
MAX_STEPS = 50_000
"""Limit for the number of steps that are kept; beyond it, the first half is dropped."""
MAX_VALUES = 4_000_000
"""Limit for the table rows and prompt hashes that are kept. A server that needs more at once is not followed."""
MAX_REQUESTS = 100_000
"""Limit for the number of requests that are kept; beyond it, the first half of the steps is dropped."""
_CHECK_EVERY_BYTES = 1 << 18
"""Number of received bytes between two checks against `MAX_VALUES`. One byte adds less than one row or hash."""
_TOO_MUCH = "it holds more than can be shown of a server"
MAX_UNITS = 1 << 22
"""Largest number of units of a pool that is shown live."""


class EventFollower:
    """Receiver of events. After an error it accepts no more events, and keeps those before the error."""

    def __init__(self, source: str, *, tail_steps: int = TAIL_STEPS) -> None:
        """Args:
        source: name of the server, for messages.
        tail_steps: number of steps between two moments at which an excerpt may begin.
        """
        self._source, self._tail_steps = source, tail_steps
        self._mirror = Mirror()
        self._windows = [_Window()]
        """Current window; once it is half full, also the window that will replace it."""
        self._meta: Meta | None = None
        self._seen_steps = 0
        """Number of steps that the server had run at the last call of `recent`."""
        self._unchecked_bytes = 0
        self._marks_changes = False
        """True if the server has sent an empty line. Older recorders send none."""
        self.is_complete = True
        """False while a change of the engine's state is received in part. Always True with older recorders."""

    @property
    def joined(self) -> bool:
        """True if the state of the server is known."""
        return self._windows[0].ids is not None

    def hear(self, text: bytes) -> None:
        """Apply one line. An empty line marks that a change of the engine's state is complete.

        Raises:
            RecordingError: the line is no event, does not follow from those before it, or the server has too much to
                show.
        """
        self._marks_changes |= text == b"\n"
        self.is_complete = not self._marks_changes or text == b"\n"
        if text == b"\n":
            return
        event = parse(text)
        if event[0] == "refused":
            raise RecordingError(f"{event[1]}")
        if (event[0] == "meta") == self._mirror.begun:
            raise RecordingError("it does not begin with one line about its origin")
        if event[0] == "meta":
            self._meta = self._checked_meta(event[1])
        try:
            if self.joined and (event == ["seq"] or event[0] == "arrive"):  # the server's state is complete here
                self._roll()
            event = self._mirror.apply(event)
            for window in self._windows:
                window.apply(event)
        except (LookupError, ValueError, TypeError) as error:
            raise RecordingError(f"{event[0]!r} {eventlog.not_following(error)}") from error
        self._unchecked_bytes += len(text)
        if self._unchecked_bytes > _CHECK_EVERY_BYTES:
            self._unchecked_bytes = 0
            if self._windows[-1].builder.num_values > 2 * MAX_VALUES:
                raise RecordingError(_TOO_MUCH)

    def recent(self) -> Excerpt | None:
        """Return the last steps, at least all kept ones since the previous call; None before the first step."""
        cut, *_ = [window.cut_before(self._seen_steps) for window in self._windows]
        found = None if cut is None else tail(self._windows[0].builder, cut, self._source)
        if found is None:
            found = self.whole()
        else:
            check(found.recording, Path(self._source))
        self._seen_steps = self._mirror.num_steps
        return found

    def whole(self) -> Excerpt | None:
        """Return all kept steps; None before the first step."""
        window = self._windows[0]
        if self._meta is None or not window.builder.num_steps:
            return None
        recording = window.recording(self._meta, self._source)
        check(recording, Path(self._source))
        return Excerpt(recording, window.first_step, window.num_summary_steps)

    def _checked_meta(self, document: dict[str, Any]) -> Meta:
        meta = meta_from_document(document, Path(self._source))
        if meta.pool.num_units is None or meta.pool.num_units > MAX_UNITS:
            raise RecordingError(f"a pool that is shown live has 1 to {MAX_UNITS:,} units, not {meta.pool.num_units}")
        if meta.exchanges_kv or "host_blocks" in meta.policy:
            raise RecordingError(
                "it moves KV to host memory or to other servers, which is recorded (KVSIM_RECORD) and not shown live"
            )
        return meta

    def _roll(self) -> None:
        if len(self._windows) == 1 and self._windows[0].is_full(0.5):
            self._windows.append(self._window())
        if self._windows[0].is_full(1):
            if self._windows[-1].is_full(1):
                raise RecordingError(_TOO_MUCH)
            del self._windows[0]
        if self._windows[0].is_due(self._tail_steps):
            self._cut()

    def _window(self) -> _Window:
        window = _Window()
        for event in self._mirror.snapshot():
            window.apply(event)
        return window

    def _cut(self) -> None:
        assert self._meta is not None
        before = self._window()
        recording, next_seq = before.recording(self._meta, self._source), before.builder.mark().seq + 1
        for window in self._windows:
            cut = Cut(
                step=before.first_step,
                mark=window.builder.mark(),
                rows=np.array(window.rows(self._mirror.rows), np.int64),
                before=recording,
                next_seq=next_seq,
            )
            window.cuts.append(cut)


class _Window:
    """Recording that begins in the middle of a server's run. Requests and steps are numbered from its beginning."""

    def __init__(self) -> None:
        self.builder = RecordingBuilder()
        self.ids: _LocalIds | None = None
        """Mapping from the server's ids of requests and steps to those of this recording.

        None while the opening snapshot is read, whose ids are those of this recording.
        """
        self.first_step = 0
        """Number of steps that the server had run before the recording begins."""
        self.num_summary_steps = 0
        """Number of steps, 0 or 1, at the beginning that replace all earlier steps of the server."""
        self.cached: list[int] = []
        self.computed: list[int] = []
        self.images: list[list[int]] = []
        """[image id, number of encoder outputs] of each image in the encoder cache when the recording begins."""
        self.cuts: list[Cut] = []
        """Moments at which an excerpt may begin, in order."""

    def recording(self, meta: Meta, name: str) -> Recording:
        return self.builder.finish(joined_meta(meta, self.first_step, self.cached, self.computed, self.images), name)

    def is_full(self, share: float) -> bool:
        builder = self.builder
        return (
            builder.num_steps - self.num_summary_steps >= share * MAX_STEPS
            or builder.num_values > share * MAX_VALUES
            or builder.num_requests > share * MAX_REQUESTS
        )

    def is_due(self, num_steps: int) -> bool:
        """Tell whether a cut is due: `num_steps` steps or `TAIL_VALUES` rows have come since the last one."""
        mark = self.cuts[-1].mark if self.cuts else None
        steps, rows = (mark.num_steps, mark.num_memory_rows) if mark is not None else (self.num_summary_steps, 0)
        return self.builder.num_steps - steps >= num_steps or self.builder.num_memory_rows - rows >= TAIL_VALUES

    def cut_before(self, seen_steps: int) -> Cut | None:
        """Return the latest cut before step `seen_steps`, and delete those before it; None if there is no such cut.

        The newest cut is never returned, so that an excerpt has at least the steps between two cuts.
        """
        usable = [number for number, cut in enumerate(self.cuts[:-1]) if cut.step < seen_steps]
        if not usable:
            return None
        del self.cuts[: usable[-1]]
        return self.cuts[0]

    def rows(self, server_rows: list[int]) -> list[int]:
        assert self.ids is not None
        return self.ids.ours(server_rows)

    def apply(self, event: list[Any]) -> None:
        if event[0] == "meta":
            self.cached, self.computed = event[1].get("initial_cached", []), event[1].get("initial_computed", [])
            self.images = event[1].get("initial_images", [])
            return
        if event[0] == "joined":
            rows, next_row, self.first_step = event[1:]
            self.num_summary_steps = self.builder.num_steps
            self.ids = _LocalIds(self.builder, rows, next_row, self.first_step)
            return
        local = event if self.ids is None else self.ids.translate(event)
        if local is not None:
            eventlog.apply(self.builder, local)


class _LocalIds:
    """Mapping from the ids of requests and steps on the server to local ids.

    Local ids of requests count from 0, first those in the snapshot, then those that arrive.
    """

    def __init__(self, builder: RecordingBuilder, rows: list[int], next_row: int, next_step: int) -> None:
        self._row = {row: local for local, row in enumerate(rows)}
        self._next_row = next_row
        self._next_local = len(rows)
        self._step_offset = builder.num_steps - next_step
        self._first_step = next_step

    def ours(self, rows: list[int]) -> list[int]:
        return [self._row[row] for row in rows]

    def translate(self, event: list[Any]) -> list[Any] | None:
        """Return the event with local ids; None for an event of a step before the snapshot."""
        match event:
            case ["encoder", kind, row, image]:
                return ["encoder", kind, self._row[row] if row >= 0 else row, image]
            case ["emit" | "append" | "share" | "release" | "let_go" | "preempt" | "images" as kind, row, *rest]:
                return [kind, self._row[row], *rest]
            case ["arrive", *_]:
                self._row[self._next_row] = self._next_local
                self._next_row += 1
                self._next_local += 1
                return event
            case ["end", row, *rest]:
                return ["end", self._row.pop(row), *rest]
            case _:
                return self._translate_step(event)

    def _translate_step(self, event: list[Any]) -> list[Any] | None:
        match event:
            case ["tokens", time_s, rows]:
                return ["tokens", time_s, self._rows_of(rows)]
            case ["output" | "proposed", step, *_] if step < self._first_step:
                return None
            case ["output", step, time_s, *given]:
                return ["output", step + self._step_offset, time_s, *map(self._rows_of, given)]
            case ["proposed", step, rows]:
                return ["proposed", step + self._step_offset, self._rows_of(rows)]
            case _:
                return event

    def _rows_of(self, rows: list[list[int]]) -> list[list[int]]:
        ours = self._row
        return [[ours[row], *rest] for row, *rest in rows]
