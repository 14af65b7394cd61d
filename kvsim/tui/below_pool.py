"""The lines below the pool: what its colours mean, and what the last step changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from kvsim.memory.waste import SlotState

from .pool.paint import AGE, AGES, HOLDERS, OWNER, SHARED, TINT, ColorBy
from .step_story import last_step
from .swatches import paint_swatch
from .words import plural, seconds

if TYPE_CHECKING:
    from .pool_view import PoolView
    from .session import Session
    from .states import Symbols


class BelowPool(Widget):
    """One line where the screen is low, about the last step where it changed something; else two."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"below--text", "below--weak", "below--strong"}

    def __init__(self, session: Session, pool: PoolView, symbols: Symbols) -> None:
        super().__init__(id="below")
        self._pool, self._symbols = pool, symbols
        self.open(session)

    def open(self, session: Session) -> None:
        """Show `session` from now on."""
        self._session = session

    def show_frame(self) -> None:
        """Follow the session to its current frame."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The change, or the legend."""
        change = self._change()
        if self.size.height == 1:
            line = change if len(change) > 1 else self._legend()
        else:
            line = self._legend() if y == 0 else change
        width, style = self.size.width, self._style("text")
        strip = Strip(line)
        if strip.cell_length > width:
            strip = Strip([*strip.crop(0, width - len(self._symbols.cut)), Segment(self._symbols.cut, style)])
        return strip.adjust_cell_length(width, style)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"below--{name}")

    def _legend(self) -> list[Segment]:
        entries = legend_segments(self._pool.color_by, self._session, self._symbols, self._style("weak"))
        return [Segment("o ", self._style("strong")), *entries]

    def _change(self) -> list[Segment]:
        segments = [Segment("last step  ", self._style("weak"))]
        for change, text in last_step(self._session):
            if change is not None:
                swatch = paint_swatch(change, self._symbols)
                segments.append(Segment(f"{swatch.text} ", self._style("text") + (swatch.style or Style())))
            segments.append(Segment(f"{text}  ", self._style("strong" if "preempted" in text else "text")))
        return segments


def legend_segments(by: ColorBy, session: Session, symbols: Symbols, style: Style) -> list[Segment]:
    """The legend of the pool's colours, with samples."""
    segments = []
    for paints, text in legend(by, session):
        for paint in paints:
            sample = paint_swatch(paint, symbols)
            segments.append(Segment(sample.text, style + (sample.style or Style())))
        segments.append(Segment(f" {text}  ", style))
    return segments


def legend(by: ColorBy, session: Session) -> list[tuple[tuple[int, ...], str]]:
    """What the paints of the pool mean: samples, and a few words for each."""
    free, cached = (int(SlotState.FREE),), (int(SlotState.CACHED),)
    match by:
        case ColorBy.OWNER:
            entries = [
                (tuple(range(OWNER, OWNER + 4)), "one request each"),
                ((TINT, TINT + 1), "not written yet"),
                ((int(SlotState.INTERNAL),), "waste"),
            ]
            if session.recording.meta.prefix_caching:
                entries += [((SHARED,), f"shared {factor(session)}".strip()), (cached, "cached")]
            return [*entries, (free, "free")]
        case ColorBy.STATE:
            return [((), "colours as in the bar below")]
        case ColorBy.SHARING:
            return [
                ((HOLDERS,), "one holder"),
                ((HOLDERS + 1, HOLDERS + 3, HOLDERS + 5), "2, 8, more"),
                ((), sharing(session) or "no block is shared"),
                (cached, "cached"),
                (free, "free"),
            ]
        case ColorBy.AGE:
            oldest_s = session.player.duration_s / 4
            return [
                ((AGE + AGES - 1,), "just taken"),
                (tuple(range(AGE + AGES - 2, AGE, -1)), ""),
                ((AGE,), f"{seconds(oldest_s / 2, oldest_s / 100)} and older"),
                (free, "free"),
            ]


def sharing(session: Session) -> str:
    """How much sharing saves now: `1,587 blocks hold 3,763: 2.4×`; empty where nothing is shared."""
    held, stands_for = _held(session)
    if stands_for <= held:
        return ""
    return f"{plural(held, session.unit_name)} hold {stands_for:,}: {factor(session)}"


def factor(session: Session) -> str:
    """By how much the tables of all requests exceed the blocks in them; empty where nothing is shared."""
    held, stands_for = _held(session)
    return f"{stands_for / held:.1f}×" if stands_for > held else ""


def _held(session: Session) -> tuple[int, int]:
    """Units that are held, and the entries of all tables."""
    refs = session.replay.refs
    return int((refs > 0).sum()), int(refs.sum())
