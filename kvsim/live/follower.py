"""What a server publishes, as recordings: its last thousands of steps for a screen, and all that was heard for a file.

A screen is given a window that begins afresh, from the state at that moment, every few thousand steps: what it costs
to show does not grow with the time for which it is watched. It knows nothing of sockets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.errors import RecordingError
from kvsim.live.events import parse
from kvsim.live.mirror import Mirror
from kvsim.recording import eventlog
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.check import check
from kvsim.recording.model import Meta, Recording
from kvsim.recording.provenance import meta_from_document

WINDOW_STEPS = 8_192
"""A window is shown from its first so many steps on until it has twice as many."""
MAX_STEPS = 50_000
"""Steps that are kept for a file; what came before is given up."""
MAX_VALUES = 4_000_000
"""Rows of all tables, and keys of prompts, that a window may have; a server that needs more at once is not followed."""
MAX_REQUESTS = 100_000
"""Requests of a window."""
_WEIGHED_BYTES = 1 << 18
"""A server may send so much before it is seen how much is kept; a byte makes less than one value."""
_TOO_MUCH = "it holds more than can be shown of a server"
MAX_UNITS = 1 << 22
"""Units of a pool that is shown live."""


class Follower:
    """Hears one event after the other. After an error it hears nothing more; what was heard before stays."""

    def __init__(self, source: str, *, window_steps: int = WINDOW_STEPS) -> None:
        """Args: whom it follows, for messages, and the length of windows."""
        self._source, self._window_steps = source, window_steps
        self._mirror = Mirror()
        self._whole = _Window()
        self._windows = [self._whole]
        self._growing = [self._whole]
        """Each window that hears events, once."""
        self._meta: Meta | None = None
        self._unweighed_bytes = 0
        """Bytes of the lines since it was seen how much is kept."""

    @property
    def joined(self) -> bool:
        """Whether the state of the server is known."""
        return self._whole.numbers is not None

    def hear(self, text: bytes) -> None:
        """Follow one line.

        Raises:
            RecordingError: it is no event, or does not follow from those before.
        """
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
            for window in self._growing:
                window.apply(event)
        except (LookupError, ValueError, TypeError) as error:
            raise RecordingError(f"{event[0]!r} does not follow from the events before it: {error}") from error
        self._unweighed_bytes += len(text)
        if self._unweighed_bytes > _WEIGHED_BYTES:
            self._unweighed_bytes = 0
            if self._windows[-1].builder.num_values > 2 * MAX_VALUES:
                raise RecordingError(_TOO_MUCH)

    def recent(self) -> Recording | None:
        """The last steps; None before the first.

        Raises:
            RecordingError: they contradict each other.
        """
        return self._recording(self._windows[0])

    def whole(self) -> Recording | None:
        """All steps that have been kept; None before the first.

        Raises:
            RecordingError: they contradict each other.
        """
        return self._recording(self._whole)

    def _recording(self, window: _Window) -> Recording | None:
        if self._meta is None or not window.builder.num_steps:
            return None
        meta = self._meta
        if window.first_step:
            # What was cached before, and what the first steps decided, is not known here.
            meta = replace(meta, initial_free=None, extra={**meta.extra, "joined_at_step": window.first_step})
        recording = window.builder.finish(meta, self._source)
        check(recording, Path(self._source))
        return recording

    def _checked_meta(self, document: dict[str, Any]) -> Meta:
        meta = meta_from_document(document, Path(self._source))
        if meta.pool.num_units is None or meta.pool.num_units > MAX_UNITS:
            raise RecordingError(f"a pool that is shown live has 1 to {MAX_UNITS:,} units, not {meta.pool.num_units}")
        return meta

    def _roll(self) -> None:
        """Begin a new window where the last one is full enough, and forget the one before it."""
        last = self._windows[-1]
        if last.is_full(self._window_steps):
            window = self._window()
            if window.too_long:
                raise RecordingError(_TOO_MUCH)
            self._windows = [window] if last.too_long else [last, window]
        if self._whole.is_full(MAX_STEPS):
            self._whole = self._windows[0]
        self._growing = [window for window in self._windows if window is not self._whole] + [self._whole]

    def _window(self) -> _Window:
        window = _Window()
        for event in self._mirror.snapshot():
            window.apply(event)
        return window


class _Window:
    """A recording that begins at some moment, in its own numbers of requests and steps."""

    def __init__(self) -> None:
        self.builder = RecordingBuilder()
        self.numbers: _Numbers | None = None
        """The server's numbers; None while a snapshot comes in, which has ours."""
        self.first_step = 0
        """Steps that the server had taken before."""
        self._begin = 0

    def is_full(self, num_steps: int) -> bool:
        """Whether it has `num_steps` of its own, or is too long."""
        own_steps = self.builder.num_steps - self._begin
        return own_steps >= num_steps or self.too_long

    @property
    def too_long(self) -> bool:
        """Whether it has as much as anything may have that is kept in memory."""
        return self.builder.num_values > MAX_VALUES or self.builder.num_requests > MAX_REQUESTS

    def apply(self, event: list[Any]) -> None:
        """Follow one event, in the server's numbers."""
        if event[0] == "meta":
            return
        if event[0] == "joined":
            rows, next_row, self.first_step = event[1:]
            self.numbers = _Numbers(self.builder, rows, next_row, self.first_step)
            self._begin = self.builder.num_steps
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
                return ["tokens", time_s, [[self._row[row], *rest] for row, *rest in rows]]
            case ["end", row, *rest]:
                return ["end", self._row.pop(row), *rest]
            case _:
                return event
