"""Panel with the waiting requests and the reason why they wait, and the running requests with their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.strip import Strip

from kvsim.memory.waste import SlotState
from kvsim.recording.tables import RequestStatus

from ..facts.wait_reasons import units_needed, wait_reason
from ..look.wording import ending, plural
from ..pool.colors import paint_of
from .panel import Panel

if TYPE_CHECKING:
    import numpy.typing as npt
    from textual import events

    from ..look.states import Symbols
    from ..playback.session import Session

_NAME_WIDTH = 12
"""Width of a line up to the end of the request's name, in characters."""


_FIGURES = 13
"""Width in characters of the figures of a running request, such as ` 12,345/16,384`."""


class Queue(Panel, can_focus=True, inherit_bindings=False):
    """Waiting and running requests. While the panel has the focus, a cursor moves through both lists."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="queue.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="queue.down"),
        Binding("enter", "follow", "Follow", id="queue.follow"),
        Binding("escape", "leave", "Leave queue", show=False, id="queue.leave"),
    ]

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="queue")
        self.border_title = f"requests {symbols.dot} slots now/at its end"
        self._requests: list[int | None] = []
        self._cursor: int | None = None
        """Row of the request under the cursor; None while the panel has no focus."""

    def on_focus(self) -> None:
        """Put the cursor on the followed request. If that neither waits nor runs, put it on the first running one, or
        else on the first waiting one.
        """
        self._cursor = self.session.followed
        self.action_move(0)

    def on_blur(self) -> None:
        self._cursor = None
        self.show_frame()

    def action_move(self, lines: int) -> None:
        """Move the cursor by `lines` requests, through the waiting and then the running ones."""
        waiting, running = self._waiting_and_running()
        order = [*waiting, *running]
        if order:
            at = order.index(self._cursor) + lines if self._cursor in order else len(waiting) if running else 0
            self._cursor = order[min(max(at, 0), len(order) - 1)]
        self.show_frame()

    def action_follow(self) -> None:
        if self._cursor is not None:
            self.post_message(self.Picked(self._cursor))

    def action_leave(self) -> None:
        self.screen.set_focus(None)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._requests):
            request = self._requests[offset.y]
            if request is not None:
                self.post_message(self.Picked(request))

    def _waiting_and_running(self) -> tuple[list[int], list[int]]:
        replay = self.session.replay
        running = replay.live_requests()[::-1]
        # Requests with complete answers, whose rows are held until the batch ends, come last.
        return replay.waiting_requests().tolist(), running[np.argsort(self._is_held(running), kind="stable")].tolist()

    def _is_held(self, requests: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        replay = self.session.replay
        if self.session.recording.meta.policy_name != "static" or self.session.rows is not None:
            return np.zeros(len(requests), np.bool_)
        held: npt.NDArray[np.bool_] = replay.computed(requests) > replay.full[requests]
        return held

    def _fitting(self, texts: tuple[str, ...]) -> str:
        return next((text for text in texts if len(text) <= self.size.width), texts[-1] if texts else "")

    def write(self) -> list[Strip]:
        """Return the waiting and the running requests that fit: the first of each list, or those around the cursor."""
        height = self.size.height
        waiting, running = self._waiting_and_running()
        reasons = [self._fitting(wait_reason(self.session))] if len(waiting) else []
        height -= len(reasons)
        room = max(min(len(waiting), height // 3), height - len(running) - 4)
        shown_waiting = self._around(waiting, min(room, len(waiting)))
        shown_running = self._around(running, max(height - len(shown_waiting) - 3, 1))
        held_back = self.session.num_held_back
        strips = [self._heading("waiting", len(waiting) + held_back, shown=len(shown_waiting), order="next first")]
        strips += [Strip([self.text(reason, "text")]) for reason in reasons]
        self._requests = [None] * len(strips)
        needs = [self._need_words(request, short=False) for request in shown_waiting]
        if max(map(len, needs), default=0) > self.size.width - _NAME_WIDTH:
            needs = [self._need_words(request, short=True) for request in shown_waiting]
        for request, need in zip(shown_waiting, needs, strict=True):
            strips.append(Strip([*self._called(request, _NAME_WIDTH), self.text(need, "weak")]))
            self._requests.append(request)
        strips += [self.blank()]
        idle = self.session.num_complete_rows
        held = f"{plural(idle, 'row')} held for nothing" if idle else ""
        if held_back:
            idle, held = held_back, f"{held_back:,} waiting hold blocks"
        num_running = len(running) - idle
        strips += [self._heading("running", num_running, shown=len(shown_running), order="newest first", reason=held)]
        self._requests += [None, None]
        computed = self.session.replay.computed(np.array(shown_running, np.int64))
        for request, tokens in zip(shown_running, computed.tolist(), strict=True):
            strips.append(self._running_line(request, tokens))
            self._requests.append(request)
        return strips

    def _around(self, requests: list[int], room: int) -> list[int]:
        begin = 0
        if self._cursor in requests:
            begin = min(max(requests.index(self._cursor) - room // 2, 0), max(len(requests) - room, 0))
        return requests[begin : begin + room]

    def _heading(self, name: str, number: int, *, shown: int, order: str, reason: str = "") -> Strip:
        """Return the heading of a list: the number of requests and, if there is room, further texts.

        These are `order`, how the list is sorted; `shown`, the number of requests with a line; and `reason`, if given.
        """
        count = f"{number:,} {name}"
        order, listed = order * (number > 1), f"{shown:,} shown" * (number > shown)
        kept = ((order, listed, reason), (order, reason), (listed, reason), (reason,))
        texts = [", ".join(filter(None, parts)) for parts in kept]
        room = self.size.width - len(count) - 2
        more = next((text for text in texts if len(text) <= room), "")
        return Strip([self.text(count, "strong"), self.text(f"  {more}" * bool(more), "weak")])

    def _called(self, request: int, width: int) -> list[Segment]:
        mark = ">" if request == self.session.followed else " "
        name = ending(self.session.request_name(request), width - 4, self.symbols.cut)
        kind = "cursor" if request == self._cursor else "strong" if mark == ">" else "text"
        return [
            self.text(mark, kind),
            self._color_sample(request),
            self.text(f" {name}".ljust(width - 2), kind),
        ]

    def _color_sample(self, request: int) -> Segment:
        """Return a sample of the request's colour; a space if it has the same colour as all others."""
        paint = paint_of(self.session, request)
        return self.text(" ") if paint == SlotState.TOKEN else self.sample(paint)

    def _need_words(self, request: int, *, short: bool) -> str:
        requests = self.session.recording.requests
        again = requests.first_scheduled_s[request] < self.session.replay.time_s
        tokens = f"{requests.prompt_tokens[request]:,} prompt"
        needed = units_needed(self.session, request) if self.session.replay.unit_tokens > 1 else None
        if needed is None:
            return "preempted" if again and short else f"preempted, {tokens}" if again else f"{tokens} tokens"
        units = plural(needed, self.session.unit_name)
        if again:
            return f"preempted, {units}"
        return f"needs {units}" if short else f"{tokens} = {units}"

    def _running_line(self, request: int, computed: int) -> Strip:
        pad = int(self.session.replay.pad[request])
        computed, full = max(computed - pad, 0), self._tokens_at_end(request) - pad
        room = max(self.size.width - _NAME_WIDTH - _FIGURES, 4)
        share = min(computed / full if full else 1.0, 1.0)
        bar = self._progress(share, room)
        figures = f" {min(computed, full):,}/{full:,}".rjust(_FIGURES)
        if self._is_held(np.array([request]))[0]:
            bar, figures = [self.text(" " * room)], "complete".rjust(_FIGURES)
        return Strip([*self._called(request, _NAME_WIDTH), *bar, self.text(figures, "weak")])

    def _tokens_at_end(self, request: int) -> int:
        """Return the number of tokens of a request when it ends.

        If it does not end within the recording, return the largest number that it may reach.
        """
        requests, full = self.session.recording.requests, int(self.session.replay.full[request])
        if requests.status[request] != RequestStatus.UNFINISHED:
            return full
        return max(full, int(requests.prompt_tokens[request] + requests.max_tokens[request]) - 1)

    def _progress(self, share: float, room: int) -> list[Segment]:
        # Seven eighths of a line, so that the bars of neighbouring lines stay apart.
        full = self.symbols.up[7 if self.symbols.right else 8]
        rest = full if self.symbols.color else self.symbols.states[-1]
        cells = round(share * room)
        style = self.get_component_rich_style("panel--label") + Style(bold=False)
        return [Segment(full * cells, style), self.text(rest * (room - cells), "track")]
