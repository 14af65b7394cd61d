"""Samples of colours: every paint that a picture may use has one, with colours and without."""

from __future__ import annotations

import pytest

from kvsim.tui.look.states import ASCII, COLOR, GLYPHS, Symbols
from kvsim.tui.pool.paint import DIM, NUM_PAINTS
from kvsim.tui.pool.swatches import paint_swatch


@pytest.mark.parametrize("symbols", [COLOR, GLYPHS, ASCII], ids=["color", "glyphs", "ascii"])
def test_every_paint_has_a_sample_and_one_in_shade(symbols: Symbols) -> None:
    for paint in range(NUM_PAINTS):
        sample, shade = paint_swatch(paint, symbols), paint_swatch(paint + DIM, symbols)
        assert len(sample.text) == 1
        assert shade.text == sample.text
        assert symbols is not ASCII or sample.text.isascii()
