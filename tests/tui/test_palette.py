"""Commands by name, however fast somebody types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from textual import events
from textual.widgets import Input, OptionList

from kvsim_tui.dialogs.command_palette import PaletteScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording
    from kvsim_tui.app import KvsimApp

SIZE = (100, 30)


def listed(app: KvsimApp) -> list[str]:
    return [str(option.prompt).split("  ")[0] for option in app.screen.query_one(OptionList).options]


def press_at_once(app: KvsimApp, *keys: str) -> None:
    """Keys that are all there before the first of them is looked at."""
    for key in keys:
        event = events.Key(key, key if len(key) == 1 else None)
        event.set_sender(app)
        app.post_message(event)


async def test_every_action_of_the_player_is_listed(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, PaletteScreen)
        wanted = {"Play or pause", "Next event", "Next eviction", "Find", "Save a picture", "Theme", "Quit"}
        assert wanted <= set(listed(app))


async def test_typing_narrows_the_list_and_enter_does_it(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", *"refus")
        assert listed(app) == ["Next refusal"]
        await pilot.press("enter")
        assert app.playback.player.frame == 1
        await pilot.press("ctrl+p", *"next", "down", "enter")
        assert app.playback.player.frame != 1


async def test_nothing_matches_and_escape_closes(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", *"zzzz", "enter")
        assert isinstance(app.screen, PaletteScreen)
        assert listed(app) == []
        await pilot.press("escape")
        assert app.screen is app.playback


async def test_a_click_chooses(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", *"play")
        await pilot.pause()
        await pilot.click(OptionList, offset=(2, 0))
        assert app.playback.player.playing


async def test_themes_are_chosen_in_the_same_way(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", *"theme", "enter")
        assert "kvsim-light" in listed(app)
        await pilot.press(*"kvsim-contr", "enter")
        assert app.theme == "kvsim-contrast"


@pytest.mark.parametrize(
    "keys",
    [
        ("ctrl+p", "escape", "ctrl+p", "escape"),
        ("ctrl+p", "ctrl+p", "a", "enter", "escape"),
        ("ctrl+p", "escape", "slash", "escape", "l", "escape", "question_mark", "escape"),
        ("slash", "ctrl+p", "l", "enter", "down", "enter"),
    ],
)
async def test_keys_in_a_hurry(make_app: Callable[..., KvsimApp], tiny: Recording, keys: tuple[str, ...]) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        for _ in range(3):
            press_at_once(app, *keys)
            await pilot.pause()
        await pilot.press("escape", "escape", "escape")
        await app.workers.wait_for_complete()
    assert app.return_code in (None, 0)


async def test_keys_behind_a_q_are_not_heard(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        press_at_once(app, "q", *["l"] * 20, "slash", "question_mark", "a")
        await pilot.pause()
    assert app.return_code == 0


async def test_input_has_the_keyboard(make_app: Callable[..., KvsimApp], tiny: Recording) -> None:
    app = make_app(tiny)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", "q", "c", "l")
        assert app.screen.query_one(Input).value == "qcl"
