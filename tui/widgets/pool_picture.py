"""Widget that shows the picture of a pool: level of detail, meaning of colour, followed request, recent changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.segment import Segment
from textual.cache import LRUCache
from textual.filter import ANSIToTruecolor
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..pool.brush import BLANK, Brush
from ..pool.canvas import Canvas
from ..pool.colors import default_color
from ..pool.flash import FLASH_S, Flash
from ..pool.line_lengths import LineLengths
from ..pool.paint import ColorBy
from ..pool.tiling import one_cell
from ..pool.zoom import Zoom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.filter import LineFilter

    from kvsim.replay.replay import Replay

    from ..look.states import Symbols
    from ..pool.array_types import KeyArray, MaskArray
    from ..pool.tiling import Tiling


class PoolPicture(ScrollView, inherit_bindings=False):
    """Scrollable picture of the pool. Only changed lines are repainted."""

    @dataclass
    class Tiled(Message):
        """The pool was divided into new cells, because its size or level of detail has changed."""

    def __init__(
        self,
        replay: Replay,
        symbols: Symbols,
        *,
        id: str = "pool",  # noqa: A002 - Textual's name
        heading: str | None = None,
        color_by: ColorBy | None = None,
        flash_s: float = FLASH_S,
        shows_slots: bool = True,
        longest_heading: int = 0,
        most_units: int = 0,
    ) -> None:
        """Draw the pool of `replay`.

        If several pools are shown, `heading` is the name of this one, `longest_heading` the number of characters of the
        longest name, and `most_units` the number of units of the largest pool. If `shows_slots` is False, no level of
        detail shows single slots. Changes are highlighted for `flash_s` wall seconds.
        """
        super().__init__(id=id)
        self.border_title = heading  # shown even if there is no room for a picture
        self._symbols = symbols
        self._zoom = Zoom(
            heading,
            half_blocks=symbols.color,
            slots=shows_slots,
            longest=longest_heading,
            most_units=most_units,
        )
        self._flash_s = flash_s
        self._color_by = color_by
        self._brush = Brush(symbols)
        self._strips: LRUCache[bytes, Strip] = LRUCache(1024)
        self.num_lines_painted = 0
        """Number of lines repainted since the widget was created. Tests limit the work per frame with it."""
        self._take(replay)

    def open(self, replay: Replay) -> None:
        """Show the pool of `replay`. Keep the level of detail, the cursor and the followed request."""
        cursor, followed = self._canvas.cursor, self._canvas.followed
        self._color_by = self.color_by
        self._take(replay)
        self._canvas.cursor, self._canvas.followed = cursor, followed
        self._measure()

    def _take(self, replay: Replay) -> None:
        self._replay = replay
        self._lines = LineLengths(replay)
        self._stride = self._stride_now()
        self._canvas = Canvas(
            replay,
            one_cell(replay.num_units),
            half_blocks=self._symbols.color,
            color_by=self._color_by or default_color(replay),
        )
        self._frame = replay.frame
        self._flash = Flash(replay, self._flash_s)
        self._zoom.forget()
        self._keys = np.empty((0, 0), np.int32)

    @property
    def cursor(self) -> int | None:
        """Index of the unit under the cursor, in address order from 0; None without a cursor."""
        return self._canvas.cursor

    @property
    def color_by(self) -> ColorBy:
        """Meaning of the units' colours."""
        return self._canvas.color_by

    @color_by.setter
    def color_by(self, color_by: ColorBy) -> None:
        self._canvas.color_by = color_by
        self._show_title()
        self._repaint()

    @property
    def lit_name(self) -> str | None:
        """Id of the request that keeps its colours while all others are grey; None if all requests are in colour."""
        request = self._canvas.lit_request
        return None if request is None else str(self._replay.recording.requests.id[request])

    @property
    def followed(self) -> int | None:
        """Row of the followed request, which alone has its own colour if `colors_only_followed`; None if none is."""
        return self._canvas.followed

    @property
    def colors_only_followed(self) -> bool:
        """True if only the followed request has its own colour, because there are too few hues for all requests."""
        return self._canvas.colors_only_followed

    @property
    def marked_name(self) -> str | None:
        """Id of the request that has its own colour if `colors_only_followed`; None if no request has one."""
        request = self._canvas.followed
        if request is None or not self._canvas.colors_only_followed or not len(self._replay.block_table(request)[1]):
            return None
        return str(self._replay.recording.requests.id[request])

    @property
    def counts_holders(self) -> bool:
        """True if the number of holders is written on each shared unit."""
        return self._canvas.counts_holders

    @property
    def has_grey(self) -> bool:
        """True if one request alone keeps its colours, so that memory of others is grey."""
        return self.lit_name is not None and len(self._replay.live_requests()) > 1

    def shows(self, paint: int) -> bool:
        """Tell whether the picture shows `paint`: a state, or a mark such as that of shared units.

        True until the size of the picture is known.
        """
        return not self._zoom.ready or self._canvas.shows(paint)

    @property
    def lights_changes(self) -> bool:
        """True if the picture is visible and highlights a change."""
        return self.display and self._canvas.has_lights

    @property
    def tiling(self) -> Tiling:
        """Division of the pool into cells at the current level of detail."""
        return self._canvas.tiling

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters without `ANSIToTruecolor`.

        The pool has no ANSI colours, and this filter would take a third of the time of a frame.
        """
        return [item for item in super().get_line_filters() if not isinstance(item, ANSIToTruecolor)]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._brush = Brush(self._symbols)
        self._strips.clear()

    def show_frame(self) -> None:
        """Show the replay's current frame, and highlight what has changed since the previously shown frame."""
        before, self._frame = self._frame, self._replay.frame
        self._canvas.update()
        self._show_title()
        if self._flash.flash_s > 0 and self._frame != before:
            self._light_up(before)
        stride = self._stride_now()
        if stride != self._stride:
            self._stride = stride
            self._measure()
        else:
            self._repaint()

    def _light_up(self, before: int) -> None:
        if self._flash.see(before, time.monotonic()):
            self.set_timer(self._flash.flash_s * 1.05, self._put_out)
        self._canvas.light_up(self._flash.lights(time.monotonic()))

    def _put_out(self) -> None:
        self._canvas.light_up(self._flash.lights(time.monotonic()))
        self._repaint()

    def follow(self, request: int | None) -> None:
        """Follow `request`: show it in colour and all others in grey. None shows all in colour."""
        self._canvas.followed = request
        self._show_title()
        self._repaint()

    def zoom(self, direction: int) -> bool:
        """Show more (1) or less (-1) detail around the cursor. Return True if that level exists."""
        moved = self._zoom.move(direction)
        if moved:
            self._show_level()
        return moved

    def on_resize(self) -> None:
        self._measure()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._repaint()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not 0 <= y < len(self._keys):
            return Strip.blank(width, self._brush[BLANK][1])
        left = self.scroll_offset.x
        row = self._keys[y, left : left + width]
        name = row.tobytes()
        strip = self._strips.get(name)
        if strip is None:
            strip = self._strips[name] = self._strip(row).adjust_cell_length(width, self._brush[BLANK][1])
        return strip

    def _strip(self, row: KeyArray) -> Strip:
        ends = np.append(np.flatnonzero(row[1:] != row[:-1]) + 1, len(row)).tolist()
        segments, begin = [], 0
        for end in ends:
            character, style = self._brush[int(row[begin])]
            segments.append(Segment(character * (end - begin), style))
            begin = end
        return Strip(segments, len(row))

    def _stride_now(self) -> int | None:
        return self._lines.length_at(self._replay.seq)

    def _measure(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        self._zoom.measure(self._replay, width, height, self._stride)
        self._show_level()

    def _show_level(self) -> None:
        self._canvas.tiling = self._zoom.tiling
        self._show_title()
        self._strips.clear()
        self._keys = np.empty((0, 0), np.int32)
        self.virtual_size = Size(self.tiling.span, self._canvas.height)
        # Textual would keep a scrollbar that was needed only during the layout.
        self.styles.overflow_x = "auto" if self.tiling.span > self.size.width else "hidden"
        self._scroll_to_cursor()
        self._repaint()
        self.post_message(self.Tiled())

    def _show_title(self) -> None:
        if self._zoom.ready:
            meaning, scattered = self.color_by.value, self._canvas.colors_only_followed
            if scattered:
                own = "" if self.marked_name is None else f"{self.marked_name} and "
                meaning = own + ColorBy.STATE.value
            self.border_title = self._zoom.title(
                self._replay.unit_tokens, meaning, self._symbols, self.size.width - 2, scattered=scattered
            )

    @property
    def cell_words(self) -> str:
        """Size of a cell in words; empty before the size of the picture is known."""
        return self._zoom.cell_words(self._replay.unit_tokens, self._symbols) if self._zoom.ready else ""

    @property
    def states_cell_size(self) -> bool:
        """True if the title states the size of a cell."""
        return not self.cell_words or bool(self._zoom.size_in_title(self.cell_words, self.size.width - 2))

    def _scroll_to_cursor(self) -> None:
        if self.cursor is not None:
            x, y = self._canvas.place_of(self.cursor)
            self.scroll_to_region(Region(x, y, self.tiling.wide, 1), animate=False, force=True)

    def _repaint(self) -> None:
        width, height = self.size
        if not self._zoom.ready or not width or not height:
            return
        keys = self._canvas.draw(self.scroll_offset.y, height)
        if keys.shape == self._keys.shape:
            regions = self._regions(keys != self._keys)
        else:
            regions = [Region(0, y, width, 1) for y in range(height)]
        self._keys = keys
        self.num_lines_painted += len(regions)
        if regions:
            self.refresh(*regions)

    def _regions(self, changed: MaskArray) -> list[Region]:
        """Return one region for each changed line, from its first to its last changed character.

        Larger regions, or a region for each change, would be slow over a slow link.
        """
        lines = np.flatnonzero(changed.any(axis=1))
        first = changed[lines].argmax(axis=1) - self.scroll_offset.x
        last = changed.shape[1] - 1 - changed[lines, ::-1].argmax(axis=1) - self.scroll_offset.x
        stretches = zip(lines.tolist(), first.tolist(), last.tolist(), strict=True)
        return [Region(begin, line, end + 1 - begin, 1) for line, begin, end in stretches]
