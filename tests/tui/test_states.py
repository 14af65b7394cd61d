"""Eight states that everybody can tell apart."""

from __future__ import annotations

import colorsys
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.color import Color

from kvsim.display.palette import NUM_HUES, luma
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_MEANINGS, STATE_NAMES, STATES_ON_DARK, STATES_ON_LIGHT
from kvsim.plots.colors import THEMES
from kvsim.plots.style import STATE_LABELS
from kvsim.replay import Replay
from kvsim_tui.look.states import ASCII, COLOR, DARK, GLYPHS, LIGHT, STACK, Palette, Symbols
from kvsim_tui.pool.paint import (
    DIM,
    FOLLOWED,
    FOLLOWED_SHARED,
    LOADING_HUED,
    NEXT,
    OWNER,
    PARTLY,
    SHARED,
    ColorBy,
    paint_colors,
)
from kvsim_tui.pool.picture import DrawnUnits, Paints
from kvsim_tui.pool.swatches import paint_swatch, swatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording

# Viénot, Brettel and Mollon (1999): how linear RGB looks to eyes without one kind of cone.
DICHROMACY = {
    "protanopia": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "deuteranopia": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


def _linear(color: str) -> np.ndarray:
    channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.clip(to_xyz @ linear, 1e-6, None) / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_every_state_has_a_look_and_a_place_in_the_stack() -> None:
    assert set(STATE_NAMES) == set(STATE_MEANINGS) == set(STACK) == set(SlotState)


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_the_states_differ_in_greyscale(palette: Palette) -> None:
    grey = sorted(luma(color) for color in palette.states.values())
    assert min(high - low for low, high in pairwise(grey)) > 18


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
@pytest.mark.parametrize("eyes", DICHROMACY)
def test_the_states_differ_to_colour_blind_eyes(eyes: str, palette: Palette) -> None:
    seen = [_lab(np.array(DICHROMACY[eyes]) @ _linear(color)) for color in palette.states.values()]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) > 10


@pytest.mark.parametrize("symbols", [COLOR, GLYPHS, ASCII])
def test_the_states_have_glyphs_of_their_own(symbols: Symbols) -> None:
    assert len(set(symbols.states)) == len(SlotState)


def test_plain_symbols_are_plain() -> None:
    texts = [getattr(ASCII, name) for name in ASCII.__slots__ if name not in ("color", "palette")]
    assert all(text.isascii() for text in texts)


def test_explanations_fit_the_legend() -> None:
    assert max(map(len, STATE_MEANINGS.values())) <= 20


def test_shade_is_nearer_to_the_background() -> None:
    dark, light = paint_colors(DARK), paint_colors(LIGHT)
    assert luma(dark[DIM + LOADING_HUED]) < luma(dark[LOADING_HUED]) * 0.6
    assert luma(light[DIM + LOADING_HUED]) > luma("#ffffff") / 2


def _hue_degrees(color: str) -> float:
    return colorsys.rgb_to_hsv(*(int(color[at : at + 2], 16) for at in (1, 3, 5)))[0] * 360


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_a_state_has_one_colour_in_map_bar_legend_time_line_and_print(palette: Palette) -> None:
    symbols = replace(COLOR, palette=palette)
    for state in SlotState:
        color = palette.states[state]
        assert paint_colors(palette)[state] == color
        for sample in (swatch(state, symbols), paint_swatch(state, symbols)):
            assert sample.style is not None
            assert sample.style.color == Color.parse(color)
    assert THEMES["light"].states == STATES_ON_LIGHT == LIGHT.states
    assert THEMES["dark"].states == STATES_ON_DARK == DARK.states
    assert (THEMES["light"].owners, THEMES["dark"].owners) == (LIGHT.hues, DARK.hues)
    assert THEMES["dark"].ground == DARK.void
    assert DARK.states == STATES_ON_DARK


@pytest.mark.parametrize("state", [state for state in SlotState if state is not SlotState.FREE])
def test_a_state_has_the_same_hue_on_dark_and_light_ground(state: SlotState) -> None:
    one, other = (_hue_degrees(palette.states[state]) for palette in (DARK, LIGHT))
    assert abs((one - other + 180) % 360 - 180) < 16


def test_a_state_has_one_name_in_print_and_on_the_screen() -> None:
    for state, name in STATE_NAMES.items():
        assert STATE_LABELS[state] in (name, f"{name}: {STATE_MEANINGS[state]}")


@pytest.mark.parametrize("by", ColorBy)
@pytest.mark.parametrize("name", ["paged", "static", "offload"])
def test_what_holds_no_token_has_the_colour_of_its_state_whatever_colour_means(
    shipped: Callable[[str], Recording], name: str, by: ColorBy
) -> None:
    """Only what is written, and by age or number of holders what is held, is coloured by something else."""
    replay = Replay(shipped(name))
    replay.seek(replay.num_frames // 2)
    states = DrawnUnits(replay)
    paints = Paints(replay, states, by)
    ordinary = paints.whole != NEXT
    free = (replay.refs == 0) & ordinary
    assert np.array_equal(paints.whole[free], states.dominant[free])
    if by not in (ColorBy.SHARING, ColorBy.AGE):
        assert np.array_equal(paints.rest[ordinary], states.rest[ordinary])


def test_of_more_requests_than_hues_in_scattered_memory_the_followed_one_alone_has_a_colour(
    shipped: Callable[[str], Recording],
) -> None:
    replay = Replay(shipped("paged"))
    assert replay.recording.steps.running.max() > NUM_HUES
    replay.seek(replay.num_frames // 2)
    paints = Paints(replay, DrawnUnits(replay), ColorBy.OWNER)
    colored = [*range(OWNER, OWNER + NUM_HUES), FOLLOWED]
    assert not np.isin(paints.whole, colored).any()
    request = int(replay.live_requests()[3])
    paints.follow(request)
    own = replay.block_table(request)[1] - replay.first_unit
    assert np.array_equal(np.flatnonzero(np.isin(paints.whole, colored)), np.sort(own))
    paints.follow(None)
    assert not np.isin(paints.whole, colored).any()


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_what_marks_units_beside_the_states_has_the_colour_of_none(palette: Palette) -> None:
    colors = paint_colors(palette)
    marks = [colors[paint] for paint in (FOLLOWED, FOLLOWED_SHARED, PARTLY, NEXT, SHARED)]
    others = [*palette.states.values(), palette.void]
    lab = {color: _lab(_linear(color)) for color in (*marks, *others)}
    for nth, mark in enumerate(marks):
        for other in (*others, *marks[:nth]):
            assert float(np.linalg.norm(lab[mark] - lab[other])) > 14, (mark, other)
