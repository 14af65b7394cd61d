"""Strip of the encoder cache: what is drawn is what the recording says of every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim_tui.playback.session import Session
from kvsim_tui.pool.brush import GLYPH, keys_of
from kvsim_tui.pool.paint import EMPTY
from kvsim_tui.pool.strip_cells import HELD, KEPT, NEW, encoder_keys
from kvsim_tui.widgets.encoder_strip import EncoderStrip, titles_of

from ..simulation.test_images import served
from .test_app import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim_tui.app import KvsimApp

WIDTH = 400


def test_the_strip_has_the_shares_of_the_account() -> None:
    contents = Session(served()).encoder
    assert contents is not None
    seen = set()
    for frame in range(contents.num_steps):
        keys = encoder_keys(contents, frame, WIDTH, half_blocks=False)[0].tolist()
        images = contents.images_at(frame)
        for paints, tokens, count in (
            ((NEW, HELD), contents.held_outputs[frame], sum(1 for image in images if image.holders)),
            ((KEPT,), contents.idle_outputs[frame], sum(1 for image in images if not image.holders)),
        ):
            drawn = sum(keys.count(key_of(paint)) for paint in paints)
            assert abs(drawn - tokens * WIDTH / contents.capacity_outputs) <= 2 * count
            seen |= {paint for paint in paints if key_of(paint) in keys}
    assert seen == {NEW, HELD, KEPT}


def key_of(paint: int) -> int:
    return int(keys_of(GLYPH, np.array([[paint]], np.uint8), EMPTY)[0, 0])


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_interface_shows_the_cache_below_the_pool(
    make_app: Callable[..., KvsimApp], size: tuple[int, int]
) -> None:
    app = make_app(served())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        strip = app.screen.query_one(EncoderStrip)
        contents = strip.session.encoder
        assert contents is not None
        assert strip.size.height >= 1
        assert str(strip.border_title) in titles_of(contents, strip.session.replay.frame)
        if strip.size.height > 1:
            assert "kept until room is needed" in text_of(strip)


async def test_a_run_without_images_has_no_strip(make_app: Callable[..., KvsimApp], tiny: object) -> None:
    app = make_app(tiny)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert not app.screen.query(EncoderStrip)
