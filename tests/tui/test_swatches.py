"""Samples of colours: every paint that a picture may use has one, with colours and without."""

from __future__ import annotations

import re
from math import dist

import pytest
from rich.style import Style

from kvsim.display.palette import channels_of
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES
from kvsim.recording import find, read
from kvsim_tui.app import KvsimApp
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.look.states import ASCII, COLOR, DARK, GLYPHS, LIGHT, Palette, Symbols
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.legend_entries import legend_entries
from kvsim_tui.pool.paint import DIM, EMPTY, KEPT, NUM_PAINTS, OWNER, ColorBy, UnitChange, paint_colors
from kvsim_tui.pool.swatches import paint_swatch
from kvsim_tui.widgets.below_pool import BelowPool
from kvsim_tui.widgets.pool_view import PoolView


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
    assert min(dist(channels_of(colors[SlotState.CACHED]), channels_of(other)) for other in others) > 38


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_shade_is_grey_and_no_colour_of_the_legend_is(palette: Palette) -> None:
    """What other requests hold than the followed one cannot be taken for anything that a colour means."""
    colors = paint_colors(palette)
    lit, shade = colors[:DIM], colors[DIM:]
    held_by_none = {SlotState.FREE, SlotState.CACHED, SlotState.EXTERNAL, EMPTY, *UnitChange}
    greys = [channels_of(shade[paint]) for paint in range(NUM_PAINTS) if paint not in held_by_none]
    assert max(max(grey) - min(grey) for grey in greys) <= 8
    assert all(shade[paint] == lit[paint] for paint in held_by_none)
    meanings = [channels_of(lit[paint]) for paint in (*SlotState, *range(OWNER, KEPT))]
    free = channels_of(palette.states[SlotState.FREE])
    assert min(dist(grey, free) for grey in greys) > 20
    assert all(max(meaning) - min(meaning) > 8 for meaning in meanings if dist(meaning, free) > 20)


@pytest.mark.parametrize(("size", "follow"), [((80, 24), None), ((120, 40), "r113"), ((80, 24), "r113")])
async def test_the_legend_says_which_request_is_lit_and_what_the_others_look_like(
    size: tuple[int, int], follow: str | None
) -> None:
    session = Session(read(find("vllm-h200-llama-3-8b-pressure-prefixes")), at_s=4.0)
    session.followed = None if follow is None else session.recording.row_of(follow)
    app = KvsimApp(session, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        below, pool = app.query_one(BelowPool), app.query_one(PoolView)
        app.screen.remove_class("-by-owner")
        for color_by in (ColorBy.OWNER, ColorBy.STATE, ColorBy.SHARING, ColorBy.AGE):
            pool.color_by = color_by
            below.show_frame()
            await pilot.pause()
            legend = " ".join(below.render_line(y).text for y in range(below.size.height)).partition("last step")[0]
            if color_by is ColorBy.OWNER:  # hues do not identify requests: one has a colour, the others that of tokens
                assert ("r113 holds" in legend) == (follow is not None)
                assert re.search(r"■ (r113|r14)( |,).*■ (tokens of )?others", legend)
            else:
                assert ("r113 alone" in legend or "r113 in" in legend) == (follow is not None)
                assert ("all others" in legend) == (follow is not None)


@pytest.mark.parametrize("number", ["2", "5", "12"])
def test_the_legend_has_the_states_and_the_sharing_that_the_pool_shows_now(number: str) -> None:
    guided, seen = Guided(find_lesson(number)), 0
    for caption in guided.captions:
        guided.show(caption.frame)
        for session in guided.sessions:
            refs = session.replay.refs
            entries = legend_entries(ColorBy.OWNER, [session], COLOR, Style(), 200)
            words = [entry[-1].text.strip() for entry in entries]
            for state in (SlotState.RESERVED, SlotState.INTERNAL, SlotState.CACHED, SlotState.PADDING, SlotState.FREE):
                assert (STATE_NAMES[state] in words) == bool(session.breakdown[state])
                seen += STATE_NAMES[state] in words
            shared = [text for text in words if text.startswith("shared")]
            saved = int(refs.sum() - (refs > 0).sum())
            assert shared == ([f"shared, saves {saved} blocks"] if (refs > 1).any() else [])
    assert seen
