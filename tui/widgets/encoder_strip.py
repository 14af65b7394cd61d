"""Panel with the images in the encoder cache, below the pool: in use, kept, and free space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..look.wording import plural
from ..pool.strip_cells import IMAGES, encoder_keys
from .drawn_panel import DrawnPanel

if TYPE_CHECKING:
    from textual.strip import Strip

    from kvsim.replay.encoder_contents import EncoderContents

    from ..look.states import Symbols
    from ..playback.session import Session


class EncoderStrip(DrawnPanel):
    """Strip of the images in the encoder cache, with a legend below if there is room.

    The width of an image is its share of the cache's capacity.
    """

    def __init__(self, session: Session, symbols: Symbols) -> None:
        super().__init__(session, symbols, id="encoder")

    def show_frame(self) -> None:
        contents = self.session.encoder
        if contents is not None and self.size.width:
            self.show_title(titles_of(contents, self.session.replay.frame))
        super().show_frame()

    def write(self) -> list[Strip]:
        contents, frame = self.session.encoder, self.session.replay.frame
        if contents is None:
            return []
        return self.lines_of(encoder_keys(contents, frame, self.size.width, half_blocks=self.symbols.color), IMAGES)


def titles_of(contents: EncoderContents, frame: int) -> tuple[str, ...]:
    """Return the title, then a shorter one for narrow screens."""
    held, kept = int(contents.held_outputs[frame]), int(contents.idle_outputs[frame])
    images = contents.images_at(frame)
    num_held = sum(1 for image in images if image.holders)
    full = f"{held + kept:,} of {contents.capacity_outputs:,}"
    there = f"{plural(num_held, 'image')} in use, {len(images) - num_held:,} kept"
    return f"encoder cache: {full} tokens, {there}", f"encoder: {full}, {num_held:,} in use"
