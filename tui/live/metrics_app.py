"""Application that watches a server through its Prometheus metrics: usage of the KV cache, requests and times.

It draws no pool, because metrics do not say which request holds which block.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Span, Text
from textual.app import App
from textual.binding import Binding
from textual.containers import Vertical
from textual.widget import Widget

from kvsim.display.text import file_stem, message, printable
from kvsim.errors import UsageError
from kvsim.live.server_load import load_of

from ..export.picture_file import save_new, svg_of
from ..look.states import ASCII, COLOR, GLYPHS
from ..look.themes import THEMES
from ..screens.defects import NoTracebackMixin
from ..widgets.headline import Headline
from ..widgets.key_line import KeyLine
from .metrics_text import cache_lines, chart_lines, event_lines, forecast, request_lines, time_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from kvsim.live.kv_event_ranks import KvEventRanks
    from kvsim.live.metrics_feed import MetricsFeed

POLL_S = 1.0
_QUIET_S = 5.0
"""Seconds without an answer from the server after which the headline reports it."""


class TextPanel(Widget):
    """Panel of text. To draw it, `write` is called with the width and height in characters, and returns the lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "metrics--text",
        "metrics--label",
        "metrics--strong",
        "metrics--weak",
        "metrics--bar",
    }

    def __init__(self, title: str, write: Callable[[int, int], list[Text]], *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.border_title = title
        self._write = write

    def render(self) -> Text:
        lines = self._write(self.size.width, self.size.height)
        for line in lines:
            line.style = self._style(line.style)
            line.spans = [Span(span.start, span.end, self._style(span.style)) for span in line.spans]
        return Text("\n", no_wrap=True, overflow="crop").join(lines)

    def _style(self, name: str | Style) -> Style:
        return self.get_component_rich_style(f"metrics--{name or 'text'}")


class MetricsApp(NoTracebackMixin, App[None]):
    """Shows the metrics of `feed` and, if `cache` is given, the prefix cache as KV events describe it."""

    CSS_PATH = "../kvsim.tcss"
    TITLE = "kvsim"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "save", "Save", id="save"),
        Binding("q", "quit", "Quit", id="quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        feed: MetricsFeed,
        cache: KvEventRanks | None = None,
        *,
        ascii: bool = False,  # noqa: A002 - the flag's name
    ) -> None:
        super().__init__()
        self._feed, self._cache = feed, cache
        self._polls = feed.polls()
        self._load = load_of(self._polls)
        self._ended: str | None = None
        self.symbols = replace(ASCII if ascii else GLYPHS if "NO_COLOR" in os.environ else COLOR)
        self.animation_level = "none"
        self.set_class(ascii, "-ascii")
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name

    def compose(self) -> ComposeResult:
        plain = self.symbols.ascii
        yield Headline(self.symbols)
        with Vertical(id="metrics"):
            yield TextPanel(
                "KV cache", lambda width, _: cache_lines(self._load, width, plain=plain), id="metrics-cache"
            )
            if self._cache is not None:
                yield TextPanel("prefix cache, by KV events", self._cache_lines, id="metrics-events")
            yield TextPanel("requests", lambda width, _: request_lines(self._load, width), id="metrics-requests")
            yield TextPanel("times", lambda width, _: time_lines(self._load, width, plain=plain), id="metrics-times")
            yield TextPanel(
                "history",
                lambda width, height: chart_lines(self._polls, width, height, plain=plain),
                id="metrics-chart",
            )
        yield KeyLine(self.symbols)

    def on_mount(self) -> None:
        self._timer = self.set_interval(POLL_S, self.poll)
        self.poll()

    def poll(self) -> None:
        """Show the newest metrics of the feed."""
        self._polls = self._feed.polls()
        self._load = load_of(self._polls)
        if self._feed.ended is not None and self._ended is None:
            self._ended = message(self._feed.ended)
            self._timer.stop()
            self.screen.add_class("-ended")
            self.notify(f"{self._ended} What was seen stays here.", timeout=10, markup=False)
        self._tell()
        for panel in self.query(TextPanel):
            panel.refresh()

    def _cache_lines(self, width: int, height: int) -> list[Text]:
        assert self._cache is not None
        cache, num_blocks = self._cache, self._load.now.num_blocks
        return event_lines(cache.state(), width, height, ended=cache.ended, num_blocks=num_blocks)

    def file_name(self) -> str:
        """Return a file name without extension for a picture of the screen."""
        return f"metrics-{file_stem(self._feed.name)}"

    def action_save(self) -> None:
        try:
            target = save_new(svg_of(self.screen, self.symbols), self.file_name(), "svg")
        except UsageError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify(f"Saved {target}.", markup=False)

    def _tell(self) -> None:
        name, now = printable(self._feed.name), self._load.now
        quiet_s = self._feed.quiet_s
        ended = [f"ENDED: {self._ended}"] if self._ended is not None else []
        if ended:
            state = [f"ENDED {name}"]
        elif quiet_s > _QUIET_S:
            state = [f"NO ANSWER for {quiet_s:.0f} s", name]
        else:
            state = [f"METRICS {name}"]
        restarts = [f"restarted {self._feed.restarts} times"] if self._feed.restarts else []
        sources = "metrics do" if self._cache is None else "metrics and KV events do"
        about = [printable(now.model) or "unknown model", *restarts, f"which blocks are whose, {sources} not say"]
        self.query_one(Headline).tell([*(ended or state), *about], [*state, *about])
        where = forecast(self._load) if quiet_s <= _QUIET_S and self._ended is None else ""
        self.query_one("#metrics-cache", TextPanel).border_title = f"KV cache{', ' + where if where else ''}"
        seconds = self._load.window_s
        of = f"in the last {seconds:.0f} s" if seconds else "since the server started"
        self.query_one("#metrics-times", TextPanel).border_title = f"times {of}, as exact as the server's buckets"
        span_s = self._polls[-1].time_s - self._polls[0].time_s
        self.query_one("#metrics-chart", TextPanel).border_title = f"the last {span_s:.0f} s"
