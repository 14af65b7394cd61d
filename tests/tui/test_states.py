"""Eight states that everybody can tell apart."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from kvsim.memory.waste import SlotState
from kvsim_tui.look.states import ASCII, COLOR, DARK, GLYPHS, LIGHT, LOOKS, STACK, Palette, Symbols, luma
from kvsim_tui.pool.paint import CURSOR, DIM, paint_colors

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
    assert set(LOOKS) == set(STACK) == set(SlotState)


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
    assert max(len(look.meaning) for look in LOOKS.values()) <= 20


def test_shade_is_nearer_to_the_background() -> None:
    dark, light = paint_colors(DARK), paint_colors(LIGHT)
    assert luma(dark[DIM + CURSOR]) < luma(dark[CURSOR]) * 0.6
    assert luma(light[DIM + CURSOR]) > luma("#ffffff") / 2
