"""Samples of colours: every paint that a picture may use has one, with colours and without."""

from __future__ import annotations

from math import dist

import pytest

from kvsim.display.palette import channels_of
from kvsim.memory.waste import SlotState
from kvsim.recording import find, read
from kvsim.tui.app import KvsimApp
from kvsim.tui.look.states import ASCII, COLOR, DARK, GLYPHS, LIGHT, Palette, Symbols
from kvsim.tui.playback.session import Session
from kvsim.tui.pool.brush import OUTLINE
from kvsim.tui.pool.paint import DIM, NUM_PAINTS, REUSABLE, paint_colors
from kvsim.tui.pool.swatches import paint_swatch
from kvsim.tui.widgets.below_pool import BelowPool
from kvsim.tui.widgets.pool_view import PoolView


@pytest.mark.parametrize("symbols", [COLOR, GLYPHS, ASCII], ids=["color", "glyphs", "ascii"])
def test_every_paint_has_a_sample_and_one_in_shade(symbols: Symbols) -> None:
    for paint in range(NUM_PAINTS):
        sample, shade = paint_swatch(paint, symbols), paint_swatch(paint + DIM, symbols)
        assert len(sample.text) == 1
        assert shade.text == sample.text
        assert symbols is not ASCII or sample.text.isascii()


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_cached_memory_is_told_from_every_owner_and_from_free_memory(palette: Palette) -> None:
    colors = paint_colors(palette)
    others = [*palette.hues, colors[SlotState.FREE]]
    assert min(dist(channels_of(colors[REUSABLE]), channels_of(other)) for other in others) > 38


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_the_legend_shows_cached_units_as_the_picture_does(size: tuple[int, int]) -> None:
    session = Session(read(find("vllm-h200-llama-3-8b-pressure-prefixes")), at_s=16.0)
    app = KvsimApp(session, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        draws_outlines = app.query_one(PoolView).draws_outlines
        legend = app.query_one(BelowPool).render_line(0).text
    assert draws_outlines == (size == (200, 60))
    assert "cached" in legend
    assert (f"{OUTLINE} cached" in legend) == draws_outlines
