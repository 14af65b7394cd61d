"""Panel with the images in the encoder cache, below the pool: in use, kept, and free space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from ..look.wording import plural
from ..pool.encoder_cells import LEGEND, strip_keys
from .drawn_panel import DrawnPanel

if TYPE_CHECKING:
    from kvsim.replay.encoder_contents import EncoderContents

    from ..look.states import Symbols
    from ..playback.session import Session


class EncoderStrip(DrawnPanel):
    """Strip of the images in the encoder cache, by share of its capacity, with a legend below if there is room."""

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="encoder")

    def show_frame(self) -> None:
        """Show the session's current frame; the title states how full the cache is."""
        contents = self.session.encoder
        if contents is not None and self.size.width:
            self.show_title(titles_of(contents, self.session.replay.frame))
        super().show_frame()

    def write(self) -> list[Strip]:
        """Return the strip, then its legend."""
        contents, (width, height) = self.session.encoder, self.size
        if contents is None:
            return []
        keys = strip_keys(contents, self.session.replay.frame, width, half_blocks=self.symbols.color)
        strips = [Strip([Segment(*self._brush[key]) for key in keys.tolist()], width).simplify()]
        if height > 1:
            segments: list[Segment] = []
            for paint, words in LEGEND:
                segments += [self.text("  ")] * bool(segments) + [self.sample(paint), self.text(f" {words}", "weak")]
            strips.append(Strip(segments))
        return strips


def titles_of(contents: EncoderContents, frame: int) -> tuple[str, ...]:
    """Return the title, and then a shorter title for narrow places."""
    held, kept = int(contents.held_tokens[frame]), int(contents.kept_tokens[frame])
    images = contents.images_at(frame)
    num_held = sum(1 for image in images if image.users)
    full = f"{held + kept:,} of {contents.capacity_tokens:,}"
    there = f"{plural(num_held, 'image')} in use, {len(images) - num_held:,} kept"
    return f"encoder cache: {full} tokens, {there}", f"encoder: {full}, {num_held:,} in use"
