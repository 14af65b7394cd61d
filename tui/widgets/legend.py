"""Legend below the pools of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_MEANINGS, STATE_NAMES

from ..look.states import STACK
from ..look.wording import bytes_text
from ..pool.flash import FLASH_S
from ..pool.legend_entries import legend_entries
from ..pool.paint import DIM, ColorBy, UnitChange
from ..pool.swatches import paint_swatch
from .entries import whole_entries
from .lane import LaneFigures
from .pool_picture import PoolPicture

if TYPE_CHECKING:
    from rich.style import Style

    from ..look.states import Symbols
    from ..playback.compared_runs import ComparedRuns

_CHANGES: Final = (
    (UnitChange.TAKEN, "taken"),
    (UnitChange.HIT, "hit in the cache"),
    (UnitChange.EVICTED, "evicted"),
    (UnitChange.FREED, "freed"),
)


class Legend(Widget):
    """Legend of the colours of the pools.

    If colours mean states, or if the pools are hidden, the legend explains the states in the bars of memory.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"legend--text"}

    def __init__(
        self, comparison: ComparedRuns, symbols: Symbols, color_by: ColorBy, *, is_fleet: bool = False
    ) -> None:
        """`is_fleet` is true if the lanes are servers that share the requests."""
        super().__init__(id="legend")
        self._sessions = [lane.session for lane in comparison.lanes]
        self._symbols = symbols
        self._is_fleet = is_fleet
        self.color_by = color_by
        self._explains = len(self._sessions) > 2 and self._sessions[0].rows is None
        """True if the legend must explain the percentages beside the bars, because three or more lanes have no room."""

    def show_frame(self) -> None:
        self.refresh()
        if self._has_lights:
            self.set_timer(1.2 * FLASH_S, self.refresh)  # when the highlights have gone

    def render_line(self, y: int) -> Strip:
        """Render the legend (line 0), or what the bars and the highlights mean (line 1).

        States are explained if there is room, otherwise only named.
        """
        style = self.get_component_rich_style("legend--text")
        if y:
            return self._below(style)
        pools = [pool for pool in self.screen.query(PoolPicture) if pool.size.area]
        if self.color_by is not ColorBy.STATE and pools:
            return self._colors_of(pools, style)
        return self._states(pools, style)

    def _colors_of(self, pools: list[PoolPicture], style: Style) -> Strip:
        """Return what the colours mean in `pools` and in the bars below them."""
        width = self.size.width
        entries = legend_entries(
            self.color_by,
            self._sessions,
            self._symbols,
            style,
            width,
            lit=next((name for pool in pools if (name := pool.lit_name) is not None), None),
            marked=next((name for pool in pools if (name := pool.marked_name) is not None), None),
            bars=any(figures.shows_states for figures in self.screen.query(LaneFigures)),
            # The bars show states that the pools may have no room for.
            shows=lambda paint: paint < len(SlotState) or any(pool.shows(paint) for pool in pools),
        )
        return whole_entries(entries, width, style, self._symbols.cut).adjust_cell_length(width, style)

    def _states(self, pools: list[PoolPicture], style: Style) -> Strip:
        """Return the states that occur now and, if there is one line with room for it, the meaning of the bars."""
        width = self.size.width
        gap = Segment("  ", style)
        others = [paint_swatch(SlotState.TOKEN + DIM, self._symbols), Segment(" held by others", style), gap]
        others *= any(pool.has_grey for pool in pools)
        states = [state for state in STACK if any(session.breakdown[state] for session in self._sessions)]
        names = [f" {STATE_NAMES[state]}" for state in states]
        texts = [f"{name}: {STATE_MEANINGS[state]}" for name, state in zip(names, states, strict=True)], names
        bars = self._bars if self.size.height == 1 and (self._explains or self._is_fleet) else ""
        room = width - sum(segment.cell_length for segment in others) - len(bars)
        words = next((line for line in texts if sum(map(len, line)) + 3 * len(line) <= room), texts[-1])
        segments = others + [
            segment
            for state, text in zip(states, words, strict=True)
            for segment in (paint_swatch(int(state), self._symbols), Segment(text, style), gap)
        ]
        used = sum(segment.cell_length for segment in segments)
        if used + len(bars) <= width:
            segments.append(Segment(bars.rjust(width - used), style))
        return Strip(segments).adjust_cell_length(width, style)

    @property
    def _bars(self) -> str:
        sizes = {bytes_text(session.recording.meta.pool.num_bytes) for session in self._sessions}
        pool = sizes.pop() if len(sizes) == 1 else "the pool"
        tokens = "a server's tokens" if self._is_fleet else "output tokens"
        return f"served: of {tokens}; memory: of {pool}"

    @property
    def _has_lights(self) -> bool:
        return any(pool.lights_changes for pool in self.screen.query(PoolPicture) if pool.size.area)

    def _below(self, style: Style) -> Strip:
        # Lanes without pools have the throughput beside figures of this moment.
        rates = "; tokens/s: of the whole run" * self.screen.has_class("-narrow")
        segments, width = [Segment(self._bars + rates, style)], self.size.width
        if self._has_lights:
            for nth, (change, word) in enumerate(_CHANGES):
                segments += [
                    Segment("    last step: " if not nth else "  ", style),
                    paint_swatch(change, self._symbols),
                    Segment(f" {word}", style),
                ]
        return Strip(segments).adjust_cell_length(width, style)
