"""Figures below the pool of a compared run: progress, slots by state, requests, duration and its reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..facts.headlines import selection
from ..facts.telling import Gap
from ..look.stack import bar_text
from ..look.wording import duration, plural, shortened
from ..pool.paint import ColorBy
from .pool_picture import PoolPicture
from .waste_bar import layer_bar, state_bar

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRun

_TOO_MANY_TO_NAME = 12
"""If at least this many requests wait, their number is shown without their names."""
MOST_POOLS_NARROW: Final = 3
"""Largest number of compared runs whose pools a narrow screen shows."""
_LABEL_WIDTH = 9
_LEAST_FOR_MEMORY = 3
"""Least height of the widget, in lines, with a line for the slots by state."""
_LEAST_FOR_SELECTION = 4
"""Least height with a line for the unit or request that the user selected."""
_LEAST_WITHOUT_RATE = 4
"""Least height at which the tokens per second are not beside the numbers of requests."""
_LEAST_FOR_TWO_COUNTS = 6
"""Least height with one line for running requests and one for waiting requests."""
_LEAST_FOR_CELL = 9
"""Least height with a line for the size of a cell."""
_WIDE = 28
"""Least width of the widget, in columns, with room for words after a percentage, such as `of tokens`."""


class LaneFigures(Widget):
    """Lines with the figures of a run, each with a label. If the widget has few lines, it shows the first figures."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "lane--text",
        "lane--label",
        "lane--strong",
        "lane--served",
        "lane--left",
        "lane--name",
    }

    def __init__(
        self,
        lane: ComparedRun,
        symbols: Symbols,
        *,
        pool: PoolPicture,
        num_lanes: int,
        id: str,  # noqa: A002 - Textual's name
    ) -> None:
        """`pool` is the picture above the figures, and `num_lanes` the number of lanes on the screen.

        A narrow screen shows no pools for more than `MOST_POOLS_NARROW` runs. Then this one also shows its run's name.
        """
        super().__init__(id=id)
        self._pool, self._num_lanes = pool, num_lanes
        self._lane = lane
        self._symbols = symbols
        self._gap, self._ample = Gap(), 0.0
        self.set_class(lane.session.rows is not None, "-rows")

    def set_gap(self, gap: Gap, ample_tokens_per_s: float = 0.0) -> None:
        """Set the gap to the fastest run, and the output tokens per second with unlimited memory (0 if unknown)."""
        self._gap, self._ample = gap, ample_tokens_per_s
        self.refresh()

    def show_frame(self) -> None:
        self.refresh()

    def render_line(self, y: int) -> Strip:
        names = self._figure_names()
        line = Strip(self._segments(names[y], self.size.width) if y < len(names) else [])
        return line.adjust_cell_length(self.size.width, self._style("text"))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"lane--{name}")

    @property
    def _replaces_pool(self) -> bool:
        return self.screen.query_one("#lanes").has_class("-many") and self.screen.has_class("-narrow")

    def _figure_names(self) -> list[str]:
        """Return the names of the figures that have a line, from top to bottom.

        The last one is "selected" if the user has selected a unit or a request and there are more than 3 lines, except
        in a lane without a picture of its pool.
        """
        height, session = self.size.height, self._lane.session
        if self._replaces_pool:
            lines = self.screen.query_one("#lanes").size.height // self._num_lanes
            return {4: "name served memory gap", 3: "name served memory"}.get(min(lines, 4), "name memory").split()
        last = ["selected"] if height >= _LEAST_FOR_SELECTION and selection(session) else []
        if session.rows is not None:
            return ["served", "counts"][: height - len(last)] + last
        names = ["served"] + ["memory"] * (height >= _LEAST_FOR_MEMORY)
        names += ["running", "waiting"] if height >= _LEAST_FOR_TWO_COUNTS else ["counts"]
        names += ["gap", "speed"] + ["ample"] * bool(self._ample) + ["reason"] * bool(self._gap.reason)
        # All lanes have this line if one needs it, so that lines side by side are about the same figure.
        untitled = not all(pool.states_cell_size for pool in self.screen.query(PoolPicture))
        names = ["cell"] * (height >= _LEAST_FOR_CELL and untitled) + names
        return names[: height - len(last)] + last

    @property
    def shows_states(self) -> bool:
        """True if a bar of states is shown, with one colour for all tokens."""
        return "memory" in self._figure_names() and self._pool.color_by is not ColorBy.LAYERS

    def _segments(self, figure: str, width: int) -> list[Segment]:
        """Return the line of `figure`, one of `_figure_names`, in `width` cells."""
        text, label, room = self._style("text"), self._style("label"), width - _LABEL_WIDTH
        match figure:
            case "name":
                counts = self._counts(width - len(self._lane.label) - 1, with_rate=True).removeprefix("now ")
                room = width - len(counts) - 1
                name = shortened(self._lane.label, room, "").ljust(room + 1)
                return [Segment(name, self._style("name")), Segment(counts, text)]
            case "served":
                return self._progress(room, self._done_words(width))
            case "memory":
                has_layers = self._pool.color_by is ColorBy.LAYERS and self._symbols.color
                session = self._lane.session
                bar = (
                    layer_bar(session, room, self._symbols)
                    if has_layers
                    else state_bar(session.breakdown, room, self._symbols)
                )
                return [Segment("memory".ljust(_LABEL_WIDTH), label), *bar]
            case "counts":
                counts = self._counts(width, with_rate=self.size.height < _LEAST_WITHOUT_RATE)
                return [Segment(counts, self._style("strong") if self._lane.over else text)]
            case "selected":
                return [Segment(self._selected(width), text)]
        name, *texts = {
            "running": self._running_words,
            "waiting": self._waiting_words,
            "gap": self._in_all,
            "reason": self._why_longer,
            "speed": self._speed,
            "ample": self._with_ample_memory,
            "cell": self._cell,
        }[figure]()
        value = next((each for each in texts if len(each) <= room), texts[-1])
        style = self._style("strong") if self._lane.over and figure == "running" else text
        return [Segment(name.ljust(_LABEL_WIDTH), label), Segment(shortened(value, room, self._symbols.cut), style)]

    def _selected(self, width: int) -> str:
        """Describe the unit or request that the user selected.

        If the text is too long, the following are left out, one after the other: the size of the memory, what the
        request does, and its number of blocks.
        """
        words = [selection(self._lane.session)]
        words.append(re.sub(r" = [\d.,]+ \w+", "", words[0]))
        words.append(re.sub(r"(found|running), .*", r"\1", words[1]))
        words.append(re.sub(r": [\d,]+ \w+, ", ": ", words[2]))
        return next((text for text in words if len(text) <= width), shortened(words[-1], width, self._symbols.cut))

    @property
    def _done_share(self) -> float:
        """Share of the run's output tokens that are served. In training: share of slots with tokens in used rows."""
        rows, session = self._lane.session.rows, self._lane.session
        if rows is None:
            return float(session.served[session.player.frame] / max(int(session.served[-1]), 1))
        return rows.num_tokens / max(rows.num_rows * rows.row_tokens, 1)

    def _done_words(self, width: int) -> str:
        # The share of an unfinished run must not be rounded to 100%.
        percents = f"{min(100 * self._done_share, 99.0 if self._done_share < 1 else 100.0):.0f}%"
        meaning = " of tokens" if self._lane.session.rows is None else " of used rows"
        return f" {percents:>4}{meaning * (width >= _WIDE)}"

    def _progress(self, room: int, share: str) -> list[Segment]:
        label = "served" if self._lane.session.rows is None else "tokens"
        done = bar_text(self._done_share, room, self._symbols)
        left = (" " if self._symbols.color else self._symbols.states[-1]) * (room - len(done))
        bar = Strip(
            [
                Segment(done, self._style("left") + Style(color=self._style("served").color)),
                Segment(left, self._style("left")),
            ]
        )
        # The end of the bar must not divide the words: they are left or right of it, and shorter in a narrow lane.
        end = len(done)
        share = share if 2 * len(share) < room else share[:5]
        begin = max(end - len(share) - 1 if room - end < len(share) else room - len(share), 0)
        on_bar = Style(color=self._style("left").bgcolor, bgcolor=self._style("served").color, bold=True)
        style = on_bar if self._symbols.color and begin < end else self._style("left") + self._on_left
        words = Segment(share[: room - begin], style)
        rest = bar.crop(begin + len(words.text), room)
        return [Segment(label.ljust(_LABEL_WIDTH), self._style("label")), *bar.crop(0, begin), words, *rest]

    @property
    def _on_left(self) -> Style:
        return Style(color=self._style("strong").color, bold=True)

    def _counts(self, width: int, *, with_rate: bool) -> str:
        session, dot = self._lane.session, self._symbols.dot
        if session.rows is not None:
            return str(session.rows) if len(str(session.rows)) <= width else session.rows.in_short
        parts = [f"{session.num_refused:,} refused"] if session.num_refused else []
        if with_rate and self._rate and not self.screen.has_class("-lesson"):  # its legend has no room to explain it
            parts.append(f"{self._rate} tokens/s" + f", ample memory {self._ample:,.0f}" * bool(self._ample))
        if self._lane.over:
            done = f"done after {duration(session.player.duration_s)}"
            return next((text for text in (f" {dot} ".join([done, *parts]), done) if len(text) <= width), done)
        idle = session.num_complete_rows
        held = [f"{plural(idle, 'row')} held"] if idle else []
        running = f"{session.num_requests('running') - idle:,} running"
        parts = [f"{session.num_requests('waiting'):,} waiting", *parts]
        texts = [
            start + f" {dot} ".join([running, *held, *parts]) for start in (("now ", "") if width >= _WIDE else ("",))
        ]
        texts += [f" {dot} ".join([running, *held, *parts[:1]]), f" {dot} ".join([running, *(held or parts[:1])])]
        return next((text for text in texts if len(text) <= width), texts[-1])

    @property
    def _rate(self) -> str:
        session = self._lane.session
        duration_s = session.player.duration_s
        return f"{int(session.served[-1]) / duration_s:,.0f}" if duration_s else ""

    def _running_words(self) -> tuple[str, ...]:
        session = self._lane.session
        if self._lane.over:
            return "done", f"after {duration(session.player.duration_s)}"
        idle = session.num_complete_rows
        running = f"{session.num_requests('running') - idle:,}"
        if not idle:
            return "running", running
        rows = (f"and {plural(idle, 'finished row')} held", f"{plural(idle, 'row')} held")
        return "running", *(f"{running}, {words}" for words in rows)

    def _waiting_words(self) -> tuple[str, ...]:
        session = self._lane.session
        refused = f", {session.num_refused:,} refused" if session.num_refused else ""
        if self._lane.over:
            return "finished", plural(session.num_finished, "request") + refused, f"{session.num_finished:,}{refused}"
        words = f"{session.num_requests('waiting'):,}{refused}"
        names = [session.request_name(row) for row in session.replay.waiting_requests()[:_TOO_MANY_TO_NAME].tolist()]
        return "waiting", f"{words}, first {' '.join(names)}" if 0 < len(names) < _TOO_MANY_TO_NAME else words, words

    def _in_all(self) -> tuple[str, ...]:
        gap = self._gap
        if self._replaces_pool:
            return "in all", gap.in_full
        return "in all", *([f"{gap.duration}, {gap.factor}"] if gap.factor else []), gap.duration

    def _speed(self) -> tuple[str, ...]:
        return "tokens/s", f"{self._rate} over the run", self._rate

    def _with_ample_memory(self) -> tuple[str, ...]:
        return "", f"{self._ample:,.0f} with ample memory", f"{self._ample:,.0f}, ample memory"

    def _why_longer(self) -> tuple[str, ...]:
        return "reason", self._gap.reason

    def _cell(self) -> tuple[str, ...]:
        return "1 cell", self._pool.cell_words
