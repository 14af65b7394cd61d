"""Line at the bottom that shows the active keys. If they do not all fit, the last ones are left out.

It replaces Textual's footer, which has a widget for each key, and creates all of these again when one key changes. That
took a third of the time of every frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.style import Style
    from textual.binding import ActiveBinding
    from textual.events import Leave, MouseDown, MouseMove
    from textual.screen import Screen

    from ..look.states import Symbols


@dataclass(frozen=True, slots=True)
class Key:
    """A key that has an action on the current screen."""

    name: str
    """Name of the key in Textual."""
    shown: str
    """Name of the key in the line."""
    help: str
    """Text of the tooltip."""
    enabled: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One or more keys with one word for their action, such as `[] Event`."""

    keys: tuple[Key, ...]
    word: str

    @property
    def width(self) -> int:
        """Width in columns, without the space after the entry."""
        return sum(cell_len(key.shown) for key in self.keys) + 1 + cell_len(self.word)


@dataclass(frozen=True, slots=True)
class Keys:
    """Entries of the line, the most important first. The command palette's entry is at the right end."""

    entries: tuple[Entry, ...]
    palette: Entry | None

    def that_fit(self, room: int) -> tuple[Entry, ...]:
        """Return the leading entries that fit into `room` columns, with a space between entries."""
        end = 0
        for num_shown, entry in enumerate(self.entries):
            if end + entry.width > room:
                return self.entries[:num_shown]
            end += entry.width + 1
        return self.entries


def keys_of(screen: Screen[Any]) -> Keys:
    """Return the keys that are active on `screen`, with the names that its application gives them."""
    app = screen.app

    def key(active: ActiveBinding) -> Key:
        binding = active.binding
        return Key(
            binding.key,
            app.get_key_display(binding),
            active.tooltip or binding.tooltip or binding.description,
            active.enabled,
        )

    first: dict[str, ActiveBinding] = {}  # by action
    for active in screen.active_bindings.values():
        if active.binding.show:
            first.setdefault(active.binding.action, active)
    entries: list[Entry] = []
    for group, members in groupby(first.values(), lambda active: active.binding.group):
        if group is None:
            entries.extend(Entry((key(active),), active.binding.description) for active in members)
        else:
            entries.append(Entry(tuple(map(key, members)), group.description))
    palette = screen.active_bindings.get(app.COMMAND_PALETTE_BINDING) if app.ENABLE_COMMAND_PALETTE else None
    return Keys(tuple(entries), None if palette is None else Entry((key(palette),), palette.binding.description))


class KeyLine(Widget):
    """Shows the keys that fit, the most important first. A click on a key presses it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--word", "keys--edge", "keys--idle", "keys--pointed"}

    def __init__(self, symbols: Symbols) -> None:
        super().__init__(id="keys")
        self._edge = "" if symbols.ascii else "▏"
        self._keys: Keys | None = None
        self._pointed: Key | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._tell)

    def on_mouse_move(self, event: MouseMove) -> None:
        self._point_at(self._key_at(event.x))

    def on_leave(self, event: Leave) -> None:
        del event
        self._point_at(None)

    def on_mouse_down(self, event: MouseDown) -> None:
        key = self._key_at(event.x)
        if key is not None and key.enabled:
            self.app.simulate_key(key.name)

    def render_line(self, y: int) -> Strip:
        del y
        parts = [(text, self._style(kind, key)) for text, kind, key in self._parts()]
        return Strip([Segment(text, style) for text, style in parts]).adjust_cell_length(
            self.size.width, self._style("word", None)
        )

    def _tell(self, screen: Screen[Any]) -> None:
        keys = keys_of(screen)
        if keys != self._keys:
            self._keys = keys
            self.add_class("-told")  # marks that the screen is drawn: screenshots and tests wait for this class
            self.refresh()

    def _parts(self) -> Iterator[tuple[str, str, Key | None]]:
        """Yield the texts from left to right, each with its style and the key that a click presses, if any."""
        if self._keys is None:
            return
        palette = self._keys.palette
        at_the_end = 0 if palette is None else len(self._edge) + palette.width + 1
        room = self.size.width - at_the_end
        end = 0
        for entry in self._keys.that_fit(room):
            yield from _parts_of(entry)
            end += entry.width + 1
        if palette is not None:
            if end <= room:
                yield " " * (room - end), "word", None
            yield self._edge, "edge", None
            yield from _parts_of(palette)

    def _key_at(self, column: int) -> Key | None:
        end = 0
        for text, _, key in self._parts():
            end += cell_len(text)
            if column < end:
                return key
        return None

    def _point_at(self, key: Key | None) -> None:
        if key != self._pointed:
            self._pointed = key
            self.tooltip = None if key is None else key.help
            self.refresh()

    def _style(self, kind: str, key: Key | None) -> Style:
        style = self.get_component_rich_style(f"keys--{kind}")
        if key is None:
            return style
        if not key.enabled:
            return style + self.get_component_rich_style("keys--idle", partial=True)
        return style + self.get_component_rich_style("keys--pointed", partial=True) if key == self._pointed else style


def _parts_of(entry: Entry) -> Iterator[tuple[str, str, Key | None]]:
    for key in entry.keys:
        yield key.shown, "key", key
    only = entry.keys[0] if len(entry.keys) == 1 else None
    yield f" {entry.word}", "word", only
    yield " ", "word", None
