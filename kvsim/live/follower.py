"""What a server publishes, as recordings: its last steps for a screen, and all that is kept for who goes back or saves.

A screen is given what has happened since a moment before it looked last: what a look costs does not grow with the time
for which a server is watched. It knows nothing of sockets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvsim.errors import RecordingError
from kvsim.live.events import parse
from kvsim.live.mirror import Mirror
from kvsim.live.tail import Cut, Excerpt, meta_of, tail
from kvsim.recording import eventlog
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.check import check
from kvsim.recording.model import Meta, Recording
from kvsim.recording.provenance import meta_from_document

TAIL_STEPS = 1_024
"""Steps between two moments at which a look may begin; it has as many at least."""
TAIL_VALUES = 32_768
"""Rows of all tables between two such moments, where steps do much."""
MAX_STEPS = 50_000
"""Steps that are kept; when there are more, the first half is given up."""
MAX_VALUES = 4_000_000
"""Rows of all tables, and keys of prompts, that are kept; a server that needs more at once is not followed."""
MAX_REQUESTS = 100_000
"""Requests that are kept."""
_WEIGHED_BYTES = 1 << 18
"""A server may send so much before it is seen how much is kept; a byte makes less than one value."""
_TOO_MUCH = "it holds more than can be shown of a server"
MAX_UNITS = 1 << 22
"""Units of a pool that is shown live."""


class Follower:
    """Hears one event after the other. After an error it hears nothing more; what was heard before stays."""

    def __init__(self, source: str, *, tail_steps: int = TAIL_STEPS) -> None:
        """Args: whom it follows, for messages, and the steps after which a look may begin anew."""
        self._source, self._tail_steps = source, tail_steps
        self._mirror = Mirror()
        self._windows = [_Window()]
        """The one that is kept; and, when that is half full, the one that will take its place."""
        self._meta: Meta | None = None
        self._seen_steps = 0
        """Steps that the server had taken when somebody looked last."""
        self._unweighed_bytes = 0
        """Bytes of the lines since it was seen how much is kept."""

    @property
    def joined(self) -> bool:
        """Whether the state of the server is known."""
        return self._windows[0].numbers is not None

    def hear(self, text: bytes) -> None:
        """Follow one line."""
        event = parse(text)
        if event[0] == "refused":
            raise RecordingError(f"{event[1]}")
        if (event[0] == "meta") == self._mirror.begun:
            raise RecordingError("it does not begin with one line about its origin")
        if event[0] == "meta":
            self._meta = self._checked_meta(event[1])
        if self.joined and (event == ["seq"] or event[0] == "arrive"):  # the server's state is complete here
            self._roll()
        try:
            event = self._mirror.apply(event)
            for window in self._windows:
                window.apply(event)
        except (LookupError, ValueError, TypeError) as error:
            raise RecordingError(f"{event[0]!r} does not follow from the events before it: {error}") from error
        self._unweighed_bytes += len(text)
        if self._unweighed_bytes > _WEIGHED_BYTES:
            self._unweighed_bytes = 0
            if self._windows[-1].builder.num_values > 2 * MAX_VALUES:
                raise RecordingError(_TOO_MUCH)

    def recent(self) -> Excerpt | None:
        """The last steps, and all since this was called last that are kept; None before the first."""
        cut, *_ = [window.cut_before(self._seen_steps) for window in self._windows]
        found = None if cut is None else tail(self._windows[0].builder, cut, self._source)
        if found is None:
            found = self.whole()
        else:
            check(found.recording, Path(self._source))
        self._seen_steps = self._mirror.num_steps
        return found

    def whole(self) -> Excerpt | None:
        """All steps that have been kept; None before the first."""
        window = self._windows[0]
        if self._meta is None or not window.builder.num_steps:
            return None
        recording = window.recording(self._meta, self._source)
        check(recording, Path(self._source))
        return Excerpt(recording, window.first_step, window.num_before)

    def _checked_meta(self, document: dict[str, Any]) -> Meta:
        meta = meta_from_document(document, Path(self._source))
        if meta.pool.num_units is None or meta.pool.num_units > MAX_UNITS:
            raise RecordingError(f"a pool that is shown live has 1 to {MAX_UNITS:,} units, not {meta.pool.num_units}")
        return meta

    def _roll(self) -> None:
        """Begin to keep anew where half of what may be kept is there, and give up what is before where all is."""
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
        """Let looks begin at this moment."""
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
    """A recording that begins at some moment, in its own numbers of requests and steps."""

    def __init__(self) -> None:
        self.builder = RecordingBuilder()
        self.numbers: _Numbers | None = None
        """The server's numbers; None while a snapshot comes in, which has ours."""
        self.first_step = 0
        """Steps that the server had taken before."""
        self.num_before = 0
        """Steps in front of those, which stand for them."""
        self.cached: list[int] = []
        """Blocks that kept a prefix then though nobody held them."""
        self.computed: list[int] = []
        """The most tokens that each request that was there had ever had computed."""
        self.cuts: list[Cut] = []
        """Moments at which a look may begin, in order."""

    def recording(self, meta: Meta, name: str) -> Recording:
        """All that it has heard, of a server with this provenance."""
        return self.builder.finish(meta_of(meta, self.first_step, self.cached, self.computed), name)

    def is_full(self, share: float) -> bool:
        """Whether it has `share` of what may be kept in memory."""
        builder = self.builder
        return (
            builder.num_steps - self.num_before >= share * MAX_STEPS
            or builder.num_values > share * MAX_VALUES
            or builder.num_requests > share * MAX_REQUESTS
        )

    def is_due(self, num_steps: int) -> bool:
        """Whether so many steps have been taken, or so much was done in them, since the last moment to begin at."""
        mark = self.cuts[-1].mark if self.cuts else None
        steps, rows = (mark.num_steps, mark.num_memory_rows) if mark is not None else (self.num_before, 0)
        return self.builder.num_steps - steps >= num_steps or self.builder.num_memory_rows - rows >= TAIL_VALUES

    def cut_before(self, seen_steps: int) -> Cut | None:
        """The last moment but one that came before the last of the server's first `seen_steps`; those before it are
        forgotten.
        """
        usable = [number for number, cut in enumerate(self.cuts[:-1]) if cut.step < seen_steps]
        if not usable:
            return None
        del self.cuts[: usable[-1]]
        return self.cuts[0]

    def rows(self, server_rows: list[int]) -> list[int]:
        """Our numbers of requests that the server has under these."""
        assert self.numbers is not None
        return self.numbers.ours(server_rows)

    def apply(self, event: list[Any]) -> None:
        """Follow one event, in the server's numbers."""
        if event[0] == "meta":
            self.cached, self.computed = event[1].get("initial_cached", []), event[1].get("initial_computed", [])
            return
        if event[0] == "joined":
            rows, next_row, self.first_step = event[1:]
            self.num_before = self.builder.num_steps
            self.numbers = _Numbers(self.builder, rows, next_row, self.first_step)
            return
        local = event if self.numbers is None else self.numbers.translate(event)
        if local is not None:
            eventlog.apply(self.builder, local)


class _Numbers:
    """The server's numbers of requests and steps, and ours, which begin at the snapshot with which we joined."""

    def __init__(self, builder: RecordingBuilder, rows: list[int], next_row: int, next_step: int) -> None:
        """Args: the snapshot's requests in the server's numbers, and the numbers that come next."""
        self._row = {row: local for local, row in enumerate(rows)}
        self._next_row = next_row
        self._next_local = len(rows)
        self._step_offset = builder.num_steps - next_step
        self._first_step = next_step

    def ours(self, rows: list[int]) -> list[int]:
        """Our numbers of some of the server's requests that are there."""
        return [self._row[row] for row in rows]

    def translate(self, event: list[Any]) -> list[Any] | None:
        """The event in our numbers; None if it is about a step from before we joined."""
        match event:
            case ["emit" | "append" | "share" | "release" | "preempt" as kind, row, *rest]:
                return [kind, self._row[row], *rest]
            case ["arrive", *_]:
                self._row[self._next_row] = self._next_local
                self._next_row += 1
                self._next_local += 1
                return event
            case ["output", step, time_s]:
                return ["output", step + self._step_offset, time_s] if step >= self._first_step else None
            case ["tokens", time_s, rows]:
                ours = self._row
                return ["tokens", time_s, [[ours[row], before, count] for row, before, count in rows]]
            case ["end", row, *rest]:
                return ["end", self._row.pop(row), *rest]
            case _:
                return event
