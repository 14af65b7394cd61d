"""The text panels beside the pool: the inspector, the block table, and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from kvsim.recording.tables import RequestStatus

from .facts import RequestFacts, request_facts, request_lines, unit_heading, unit_lines, unit_story
from .group_tables import AHEAD, HELD, LET_GO, table_rows, uniform_words
from .stack import stacked
from .states import STACK
from .swatches import owner_swatch, stack_cells
from .words import ending, plural, shortened

if TYPE_CHECKING:
    from textual import events
    from textual.geometry import Size

    from kvsim.recording.tables import IntArray

    from .session import Session
    from .states import Symbols

_LABEL_WIDTH = 12


class Panel(Widget):
    """A box of lines about the session's current frame."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "panel--text",
        "panel--label",
        "panel--strong",
        "panel--weak",
        "panel--cursor",
    }

    class Picked(Message):
        """Somebody clicked a request."""

        def __init__(self, request: int) -> None:
            super().__init__()
            self.request = request

    def __init__(self, session: Session, symbols: Symbols, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.session = session
        self.symbols = symbols
        self._lines: list[Strip] = []

    def open(self, session: Session) -> None:
        """Show `session` from now on."""
        self.session = session

    def on_resize(self) -> None:
        """Write the lines for this size."""
        self.show_frame()

    def show_frame(self) -> None:
        """Follow the session to its current frame."""
        if not self.size.area:
            return
        rest = self.get_component_rich_style("panel--text")
        lines = [line.adjust_cell_length(self.size.width, rest) for line in self.write()]
        if lines != self._lines:
            grown = len(lines) != len(self._lines)
            self._lines = lines
            self.refresh(layout=grown and self.styles.is_auto_height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as there are, where the style sheet leaves it open."""
        del container, viewport, width
        return max(len(self._lines), 1)

    def render_line(self, y: int) -> Strip:
        """One line of the box."""
        return self._lines[y] if y < len(self._lines) else self.blank()

    def write(self) -> list[Strip]:
        """The lines of the current frame, at most as many as there is room for."""
        raise NotImplementedError

    def text(self, text: str, kind: str = "text") -> Segment:
        """Text in the style of a component class: `text`, `label`, `strong`, `weak`."""
        return Segment(text, self.get_component_rich_style(f"panel--{kind}"))

    def blank(self) -> Strip:
        """An empty line."""
        return Strip([self.text(" " * self.size.width)], self.size.width)

    def labelled(self, lines: list[tuple[str, str]]) -> list[Strip]:
        """Labels and values in two columns."""
        width = max(self.size.width - _LABEL_WIDTH, 1)
        cut = self.symbols.cut
        return [
            Strip([self.text(label.ljust(_LABEL_WIDTH), "label"), self.text(shortened(value, width, cut))])
            for label, value in lines
        ]


class Inspector(Panel):
    """The selected unit, and the followed request."""

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="inspector")
        self.border_title = "inspector"

    def write(self) -> list[Strip]:
        """The unit first, then the request."""
        session = self.session
        lines = []
        if session.selected is not None:
            unit = session.selected
            lines += [Strip([self.text(unit_heading(session, unit), "strong")])]
            lines += self.labelled(unit_lines(session, unit) + unit_story(session, unit))
        elif session.hovered is not None:
            # What a tooltip says must not be known to mice alone.
            lines += [Strip([self.text(unit_heading(session, session.hovered), "strong")])]
            lines += self.labelled(unit_lines(session, session.hovered))
        else:
            lines += [Strip([self.text("click the pool to select a " + session.unit_name, "weak")])]
        lines.append(self.blank())
        if session.followed is None:
            return [*lines, Strip([self.text("enter or / follows a request", "weak")])]
        facts = request_facts(session, session.followed)
        sample = owner_swatch(session.followed, self.symbols)
        heading = self.text(f"request {session.request_name(session.followed)} ", "strong")
        style = self.get_component_rich_style("panel--text") + (sample.style or Style())
        lines.append(Strip([heading, Segment(sample.text, style)]))
        lines += self.labelled(request_lines(session, session.followed, facts))
        if facts.holds:
            lines += [self.blank(), self._bar(facts)]
        return lines

    def _bar(self, facts: RequestFacts) -> Strip:
        first, second, eighths = stacked(np.array(facts.slots)[None, list(STACK)], self.size.width)
        cells = zip(first[0].tolist(), second[0].tolist(), eighths[0].tolist(), strict=True)
        return Strip(stack_cells(cells, self.symbols.right, self.symbols))


class BlockTable(Panel):
    """Where the followed request's tokens are: logical units to physical ones."""

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="table")
        unit = session.unit_name
        several = len(session.replay.groups) > 1
        self.border_title = (
            f"{unit} tables, by kind of layers" if several else f"{unit} table: logical {symbols.arrow} physical"
        )

    def write(self) -> list[Strip]:
        """Runs of neighbouring units, newest last; the newest are kept where there are too many."""
        session = self.session
        if session.followed is None:
            return [Strip([self.text("follow a request to see its table", "weak")])]
        positions, addresses = session.replay.block_table(session.followed)
        if not len(positions):
            return [Strip([self.text("it holds no memory now", "weak")])]
        if len(session.replay.groups) > 1:
            return self._group_rows(session.followed)
        order = np.argsort(positions)
        entries = [self._entry(*run) for run in _runs(positions[order], addresses[order])]
        width = max(map(len, entries)) + 2
        per_line = max(self.size.width // width, 1)
        room = max(self.size.height, 1) * per_line
        hidden = len(entries) - room
        if hidden > 0:
            entries = [self.symbols.cut + f" {hidden + 1:,} more", *entries[hidden + 1 :]]
        return [
            Strip([self.text("".join(entry.ljust(width) for entry in entries[at : at + per_line]))])
            for at in range(0, len(entries), per_line)
        ]

    def _group_rows(self, request: int) -> list[Strip]:
        """A row of blocks for each kind of layers: what is held of the sequence, and what its window has let go."""
        width = max(self.size.width - 2, 8)
        glyphs = {LET_GO: self.symbols.dot, HELD: self.symbols.up[-1], AHEAD: " "}
        strips = []
        for row in table_rows(self.session, request, width):
            let_go = f", {row.num_let_go:,} let go" if row.num_let_go else ""
            strips += [
                Strip([self.text(row.words, "strong"), self.text(f"  {row.num_held:,} held{let_go}", "weak")]),
                Strip([self.text("".join(glyphs[part] for part in row.parts))]),
            ]
        if words := uniform_words(self.session, request):
            strips.append(Strip([self.text(words, "weak")]))
        return strips

    def _entry(self, position: int, address: int, length: int) -> str:
        arrow, dash = self.symbols.arrow, self.symbols.dash
        if length == 1:
            return f"{position}{arrow}{address}"
        return f"{position}{dash}{position + length - 1} {arrow} {address}{dash}{address + length - 1}"


def _runs(positions: IntArray, addresses: IntArray) -> list[tuple[int, int, int]]:
    """Runs of neighbours that stay neighbours, as (position, address, length); blocks of short runs stand alone."""
    breaks = np.flatnonzero((np.diff(positions) != 1) | (np.diff(addresses) != 1)) + 1
    begins = np.concatenate(([0], breaks))
    lengths = np.diff(np.append(begins, len(positions)))
    return list(zip(positions[begins].tolist(), addresses[begins].tolist(), lengths.tolist(), strict=True))


class Queue(Panel, can_focus=True, inherit_bindings=False):
    """Who runs, with progress, and who waits. With the keyboard, a cursor goes along all of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="queue.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="queue.down"),
        Binding("enter", "follow", "Follow", id="queue.follow"),
        Binding("escape", "leave", "Leave queue", show=False, id="queue.leave"),
    ]

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="queue")
        self.border_title = "queue"
        self._requests: list[int | None] = []
        self._cursor: int | None = None
        """The request under the cursor, while the queue has the keyboard."""

    def on_focus(self) -> None:
        """Begin at the followed request, or at the first."""
        self._cursor = self.session.followed
        self.action_move(0)

    def on_blur(self) -> None:
        """The cursor goes."""
        self._cursor = None
        self.show_frame()

    def action_move(self, lines: int) -> None:
        """Move the cursor along those who wait, and then those who run."""
        waiting, running = self._everybody()
        order = [*waiting, *running]
        if order:
            at = order.index(self._cursor) + lines if self._cursor in order else len(waiting) if running else 0
            self._cursor = order[min(max(at, 0), len(order) - 1)]
        self.show_frame()

    def action_follow(self) -> None:
        """Follow the request under the cursor."""
        if self._cursor is not None:
            self.post_message(self.Picked(self._cursor))

    def action_leave(self) -> None:
        """Give the arrow keys back to the player."""
        self.screen.set_focus(None)

    def on_click(self, event: events.Click) -> None:
        """Follow the request on the clicked line."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < len(self._requests):
            request = self._requests[offset.y]
            if request is not None:
                self.post_message(self.Picked(request))

    def _everybody(self) -> tuple[list[int], list[int]]:
        """Who waits, next first, and who runs, newest first."""
        replay = self.session.replay
        return replay.waiting_requests().tolist(), replay.live_requests()[::-1].tolist()

    def write(self) -> list[Strip]:
        """The head of the waiting queue, and the running requests, newest first; around the cursor, where it is."""
        host = self._host()
        height = self.size.height - len(host)
        waiting, running = self._everybody()
        room = max(min(len(waiting), height // 3), height - len(running) - 4)
        shown_waiting = self._around(waiting, min(room, len(waiting)))
        shown_running = self._around(running, max(height - len(shown_waiting) - 3, 1))
        strips = [*host, self._heading("waiting", len(waiting), len(shown_waiting), "next first")]
        self._requests = [None] * len(strips)
        for request in shown_waiting:
            strips.append(self._waiting_line(request))
            self._requests.append(request)
        strips += [self.blank()]
        idle = self.session.num_idle
        order = f"{idle:,} more hold a row for nothing" if idle else "newest first"
        strips += [self._heading("running", len(running) - idle, len(shown_running), order)]
        self._requests += [None, None]
        computed = self.session.replay.computed(np.array(shown_running, np.int64))
        for request, tokens in zip(shown_running, computed.tolist(), strict=True):
            strips.append(self._running_line(request, tokens))
            self._requests.append(request)
        return strips

    def _host(self) -> list[Strip]:
        """What stands in host memory, and what crosses the link to it, where there is such a second tier."""
        host, frame = self.session.host, self.session.replay.frame
        if host is None:
            return []
        used, num_slots = int(host.used[frame]), host.num_slots
        crossing = f"{int(host.going[frame]):,} blocks going, {int(host.coming[frame]):,} coming back"
        words = f" {used:,} of {num_slots:,} host blocks"
        bar = self._progress(min(used / num_slots, 1.0), max(min(self.size.width - len(words), 20), 4))
        return [Strip([bar, self.text(words, "strong")]), Strip([self.text(crossing, "weak")]), self.blank()]

    def _around(self, requests: list[int], room: int) -> list[int]:
        """As many of `requests` as there is room for, the cursor's among them."""
        begin = 0
        if self._cursor in requests:
            begin = min(max(requests.index(self._cursor) - room // 2, 0), max(len(requests) - room, 0))
        return requests[begin : begin + room]

    def _heading(self, name: str, number: int, shown: int, order: str) -> Strip:
        more = f"  {order}, {shown:,} shown" if number > shown else f"  {order}" if number > 1 else ""
        return Strip([self.text(f"{number:,} {name}", "strong"), self.text(more, "weak")])

    def _called(self, request: int, width: int) -> list[Segment]:
        mark = ">" if request == self.session.followed else " "
        name = ending(self.session.request_name(request), width - 4, self.symbols.cut)
        sample = owner_swatch(request, self.symbols)
        kind = "cursor" if request == self._cursor else "strong" if mark == ">" else "text"
        return [
            self.text(mark, kind),
            Segment(sample.text, self.get_component_rich_style("panel--text") + (sample.style or Style())),
            self.text(f" {name}".ljust(width - 2), kind),
        ]

    def _waiting_line(self, request: int) -> Strip:
        requests = self.session.recording.requests
        again = requests.first_scheduled_s[request] < self.session.replay.time_s
        prompt, unit_tokens = int(requests.prompt_tokens[request]), self.session.replay.unit_tokens
        tokens = f"{prompt:,} prompt"
        if unit_tokens > 1 and not again and len(self.session.replay.groups) == 1:  # what it waits for
            tokens += f", needs {plural(-(-prompt // unit_tokens), self.session.unit_name)}"
        return Strip(
            [*self._called(request, 12), self.text("preempted, " if again else "", "label"), self.text(tokens, "weak")]
        )

    def _running_line(self, request: int, computed: int) -> Strip:
        full = self._full(request)
        room = max(self.size.width - 23, 4)
        share = min(computed / full if full else 1.0, 1.0)
        bar = self._progress(share, room)
        figures = f" {min(computed, full)}/{full}".rjust(11)
        return Strip([*self._called(request, 12), bar, self.text(figures, "weak")])

    def _full(self, request: int) -> int:
        """Tokens that a request has in the end; that it may have, where nobody has seen the end."""
        requests, full = self.session.recording.requests, int(self.session.replay.full[request])
        if requests.status[request] != RequestStatus.UNFINISHED:
            return full
        return max(full, int(requests.prompt_tokens[request] + requests.max_tokens[request]) - 1)

    def _progress(self, share: float, room: int) -> Segment:
        eighths = round(share * room * 8)
        glyphs = self.symbols.up if not self.symbols.right else self.symbols.right
        whole, part = divmod(eighths, 8)
        bar = glyphs[8] * whole + (glyphs[part] if part and self.symbols.right else "")
        return Segment(bar.ljust(room), self.get_component_rich_style("panel--label") + Style(bold=False))
