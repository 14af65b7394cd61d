"""Whose memory it is can be seen: by any eyes, in every theme, and without colours."""

from __future__ import annotations

import numpy as np
import pytest
from textual.theme import BUILTIN_THEMES

from kvsim.display.palette import NUM_HUES
from kvsim.memory.waste import SlotState
from kvsim_tui.look.states import ASCII, COLOR, DARK, GLYPHS, LIGHT, Palette, Symbols, contrast
from kvsim_tui.look.themes import THEMES, palette_of
from kvsim_tui.pool.paint import NUM_PAINTS, OWNER, UnitChange, hue_of, paint_glyphs

# Machado, Oliveira and Fernandes (2009): how linear RGB looks to eyes without one kind of cone.
EYES = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
ALL_THEMES = [theme for theme in (*THEMES, *BUILTIN_THEMES.values()) if "ansi" not in theme.name]


def _oklab(color: str, eyes: str) -> np.ndarray:
    channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(EYES[eyes]) @ linear, 0, None)
    cones = np.cbrt(
        np.array([[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]) @ seen
    )
    return np.array([[0.21045, 0.79362, -0.00407], [1.978, -2.42859, 0.45059], [0.0259, 0.78277, -0.80868]]) @ cones


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
@pytest.mark.parametrize("eyes", EYES)
def test_requests_that_follow_each_other_look_different_to_all_eyes(palette: Palette, eyes: str) -> None:
    seen = [_oklab(color, eyes) for color in palette.hues]
    for number, one in enumerate(seen):
        for later in (1, 2, 3):
            assert np.linalg.norm(one - seen[(number + later) % NUM_HUES]) > 0.055


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_no_request_has_the_colour_of_a_state(palette: Palette) -> None:
    beside = (
        SlotState.TOKEN,
        SlotState.RESERVED,
        SlotState.INTERNAL,
        SlotState.PADDING,
        SlotState.CACHED,
        SlotState.EXPIRED,
    )
    states = [_oklab(palette.states[state], "usual") for state in beside]
    assert min(np.linalg.norm(_oklab(hue, "usual") - state) for hue in palette.hues for state in states) > 0.1


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_no_kind_of_layers_has_the_colour_of_a_request_of_a_lesson_or_of_a_state(palette: Palette) -> None:
    """Lessons have at most eight requests in colour; drawings compare things in the first two colours of kinds."""
    others = [_oklab(color, "usual") for color in (*palette.hues[:8], *palette.states.values())]
    kinds = [_oklab(color, "usual") for color in palette.kinds[:2]]
    assert min(np.linalg.norm(kind - other) for kind in kinds for other in others) > 0.09
    for eyes in EYES:
        full, window = (_oklab(color, eyes) for color in palette.kinds[:2])
        assert np.linalg.norm(full - window) > 0.15


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_no_request_is_a_lighter_or_darker_green_of_cached_memory(palette: Palette) -> None:
    cached = _oklab(palette.states[SlotState.CACHED], "usual")
    assert min(np.linalg.norm((_oklab(hue, "usual") - cached)[1:]) for hue in palette.hues) > 0.06


@pytest.mark.parametrize("theme", ALL_THEMES, ids=lambda theme: theme.name)
def test_free_memory_stands_out_from_the_background_of_every_theme(theme: object) -> None:
    palette = palette_of(theme)  # type: ignore[arg-type]
    assert contrast(palette.states[SlotState.FREE], palette.void) >= 1.6


@pytest.mark.parametrize("theme", ALL_THEMES, ids=lambda theme: theme.name)
def test_what_is_held_stands_out_from_the_background_of_every_theme(theme: object) -> None:
    palette = palette_of(theme)  # type: ignore[arg-type]
    assert min(contrast(hue, palette.void) for hue in palette.hues) > 2


@pytest.mark.parametrize("symbols", [GLYPHS, ASCII])
def test_without_colours_every_owner_has_a_letter(symbols: Symbols) -> None:
    glyphs = paint_glyphs(symbols)
    assert len(glyphs) == NUM_PAINTS
    assert len(set(glyphs[OWNER : OWNER + NUM_HUES])) == NUM_HUES
    assert glyphs[: len(SlotState)] == symbols.states


def test_a_request_keeps_its_hue() -> None:
    assert all(len(set(palette.changes)) == len(UnitChange) for palette in (DARK, LIGHT))
    assert hue_of(5) == hue_of(5 + NUM_HUES)
    assert len({hue_of(request) for request in range(NUM_HUES)}) == NUM_HUES
    assert COLOR.palette is DARK
