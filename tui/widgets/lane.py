"""Figures below the pool of a compared run: progress, states of the slots, running and waiting requests."""

from __future__ import annotations

from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from ..facts.headlines import selection
from ..look import digits
from ..look.wording import duration, plural, shortened, whole_words
from .waste_bar import state_bar

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRun

_NAMES_SHOWN = 12
"""Largest number of waiting requests that are named."""
MANY_LANES: Final = 3
"""Largest number of runs whose pools are shown on a narrow screen."""
_WORD = 8
"""Width of the name of a bar, in columns."""
_LONG_LINE = 52
"""Width from which the throughput of the whole run is written in long words, in columns."""
_SHARE = 15
"""Width of the share beside a bar of one line, in columns."""
_SHORT_LINE = 9
"""Width of the words beside large digits, in columns."""


class LaneFigures(Widget):
    """Bar of the tokens served so far, bar of states, and running and waiting requests, or the end of the run."""

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
        num_lanes: int,
        id: str,  # noqa: A002 - Textual's name
    ) -> None:
        """`num_lanes` is the number of lanes on the screen.

        A narrow screen shows no pools for more than `MANY_LANES`; then this widget shows the name of the run, too.
        """
        super().__init__(id=id)
        self._num_lanes = num_lanes
        self._lane = lane
        self._symbols = symbols
        self._gap, self._ample = "", 0.0
        self.set_class(lane.session.rows is not None, "-rows")
        self._num_running, self._num_waiting = (lane.session.counts(name) for name in ("running", "waiting"))

    def learn(self, gap: str, ample_tokens_per_s: float = 0.0) -> None:
        """Set the text about the gap to the fastest run, and the throughput with ample memory, 0 if unknown."""
        self._gap, self._ample = gap, ample_tokens_per_s
        self.refresh()

    def show_frame(self) -> None:
        """Show the current frame of the run."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render a line: first the progress in as many lines as there are, then the bar of states, then texts."""
        width, height = self.size
        if self._num_lanes > MANY_LANES and self.screen.has_class("-narrow"):
            line = self._in_short(y, width)
            return line.adjust_cell_length(width, self._style("text"))
        num_bars = max(height - 3, 1) if height > 4 else 1
        if y < num_bars:
            line = self._progress(width, y, num_bars)
        elif y == num_bars and height > 2:
            line = state_bar(self._lane.session.breakdown, width, self._symbols)
        elif y == min(num_bars + 1, height - 1):
            line = Strip(self._counts(with_rate=height < 4))
        else:
            line = Strip(self._who())
        return line.adjust_cell_length(width, self._style("text"))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"lane--{name}")

    def _in_short(self, y: int, width: int) -> Strip:
        """Render a line of a run without its pool: name and requests, progress, bar of states, gap to the fastest."""
        lanes = self.screen.query_one("#lanes").size.height // self._num_lanes
        kinds = {4: "name served memory gap", 3: "name served memory"}.get(min(lanes, 4), "name memory").split()
        match kinds[y] if y < len(kinds) else "blank":
            case "name":
                counts = self._counts(with_rate=True)
                room = width - sum(len(segment.text) for segment in counts) - 1
                return Strip(
                    [Segment(shortened(self._lane.label, room, "").ljust(room + 1), self._style("name")), *counts]
                )
            case "served":
                bar = self._progress(width - _WORD, 0, 1, short=True)
                return Strip([Segment("served".ljust(_WORD), self._style("label")), *bar])
            case "memory":
                bar = state_bar(self._lane.session.breakdown, width - _WORD - _SHARE, self._symbols)
                return Strip([Segment("memory".ljust(_WORD), self._style("label")), *bar])
            case "gap":
                words = shortened(self._gap, width - _WORD, self._symbols.cut)
                return Strip(
                    [Segment("in all".ljust(_WORD), self._style("label")), Segment(words, self._style("text"))]
                )
        return Strip([])

    def _progress(self, width: int, y: int, num_bars: int, *, short: bool = False) -> Strip:
        """Render line `y` of the progress bar: the share of output tokens served, or of a batch's slots with tokens."""
        rows, session = self._lane.session.rows, self._lane.session
        if rows is None:
            share = session.served[session.player.frame] / max(int(session.served[-1]), 1)
            meaning = "of its tokens served"
        else:
            share, meaning = rows.num_tokens / max(rows.num_rows * rows.row_tokens, 1), "tokens in used rows"
        # The share of an unfinished run must not be rounded to 100%.
        percents = f"{min(100 * share, 99.0 if share < 1 else 100.0):.0f}%"
        figures = [f" {percents:>4} of tokens"] if short else self._figures(percents, meaning, num_bars)
        room = max(width - len(figures[0]), 1)
        whole, part = divmod(max(round(share * room * 8), share > 0), 8)
        glyphs = self._symbols.right or self._symbols.up
        edge = glyphs[part] if part and self._symbols.right else ""
        done = self._style("served")
        return Strip(
            [
                Segment(glyphs[8] * whole + edge, self._style("left") + Style(color=done.color)),
                Segment(
                    (" " if self._symbols.color else self._symbols.states[-1]) * (room - whole - len(edge)),
                    self._style("left"),
                ),
                Segment(figures[y], self._style("strong")),
            ]
        )

    def _figures(self, share: str, meaning: str, num_lines: int) -> list[str]:
        """Return the equally long lines beside the bar, with large digits if there is room and Unicode."""
        if num_lines < digits.HEIGHT or self._symbols.ascii:
            lines = [f" {share:>4} {meaning} "]
        else:
            lines = [f" {line}" for line in digits.tall(share.rjust(4))]
            if num_lines > digits.HEIGHT:
                lines.append(f" {meaning}")
            else:
                words = wrap(meaning, _SHORT_LINE)
                lines = [f"{line} {word}" for line, word in zip_longest(lines, words, fillvalue="")]
        width = max(map(len, lines))
        return [line.ljust(width) for line in lines] + [" " * width] * (num_lines - len(lines))

    @property
    def _rate(self) -> str:
        session, time_s = self._lane.session, self._lane.session.player.clock_s
        return f"so far {int(session.served[session.player.frame]) / time_s if time_s else 0:,.0f} tokens/s"

    def _counts(self, *, with_rate: bool) -> list[Segment]:
        session, dot = self._lane.session, self._symbols.dot
        if session.rows is not None:
            text = str(session.rows) if len(str(session.rows)) <= self.size.width else session.rows.in_short
            return [Segment(text, self._style("strong" if self._lane.over else "text"))]
        frame = session.player.frame
        parts = [f"{session.num_refused:,} refused"] if session.num_refused else []
        if with_rate and self._rate:
            parts.append(self._rate)
        if self._lane.over:
            done = Segment(f"done after {duration(session.player.duration_s)}", self._style("strong"))
            return [done, Segment("".join(f" {dot} {part}" for part in parts), self._style("text"))]
        idle = session.num_idle
        held = [f"{idle:,} held"] if idle else []
        running = f"{self._num_running[frame] - idle:,} running"
        parts = [f"{self._num_waiting[frame]:,} waiting", *parts]
        choices: tuple[tuple[str, list[str]], ...] = (("now ", held), ("", held), ("now ", []), ("", []))
        texts = [now + f" {dot} ".join([running, *extra, *parts]) for now, extra in choices]
        if held:  # without the held rows, the numbers would not add up to all requests
            texts.insert(2, texts[1].replace("running", "run").replace("waiting", "wait"))
        return [Segment(next((text for text in texts if len(text) <= self.size.width), texts[-1]), self._style("text"))]

    def _who(self) -> list[Segment]:
        """Return the last line: what the user selected, or else throughputs, or else the head of the queue."""
        session, cut, dot = self._lane.session, self._symbols.cut, self._symbols.dot
        inspected = selection(session)
        if inspected:
            return [Segment(shortened(inspected, self.size.width, cut), self._style("text"))]
        if self._ample and session.player.duration_s:
            # Throughput with ample memory is known for the whole run alone, so compare it with that of the whole run.
            whole_run = int(session.served[-1]) / session.player.duration_s
            texts = (
                f"whole run: {whole_run:,.0f} tokens/s, with ample memory {self._ample:,.0f}",
                f"{whole_run:,.0f} tokens/s, ample {self._ample:,.0f}",
            )
            text = texts[self.size.width < _LONG_LINE]  # the same words in all runs
            return [Segment(shortened(text, self.size.width, cut), self._style("text"))]
        waiting = session.replay.waiting_requests()[:_NAMES_SHOWN].tolist()
        if not waiting or self._lane.over:
            finished = plural(session.num_finished, "request") + " finished" if session.rows is None else ""
        else:
            finished = f"next: {' '.join(session.request_name(request) for request in waiting)}"
        rate = self._rate if session.rows is None else ""
        text = f" {dot} " * bool(rate and finished) + finished
        if not waiting and len(rate) + len(text) > self.size.width:
            text = f" {dot} {session.num_finished:,} done" if rate else ""
        label = self._style("label")
        return [
            Segment(rate, self._style("text")),
            Segment(whole_words(text, self.size.width - len(rate), cut).removesuffix(f" {dot} next: {cut}"), label),
        ]
