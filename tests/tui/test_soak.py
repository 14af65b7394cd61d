"""Random keys, clicks and sizes: whatever a person does, the program goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim_tui.app import KvsimApp
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.playback.compared_runs import ComparedRuns
from kvsim_tui.playback.session import Session

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.recording import Recording

NUM_ACTIONS = int(os.environ.get("KVSIM_SOAK", "60"))
KEYS = (
    *"zZ+-[]flcm12345hjk/?sxq0r#",
    *("space", "left", "right", "up", "down", "shift+left", "shift+right", "home", "end", "tab", "shift+tab"),
    *("enter", "escape", "backspace", "ctrl+p"),
)
SIZES = ((80, 24), (120, 40), (200, 60), (60, 16), (40, 10), (101, 17), (161, 39))


@pytest.mark.parametrize("kind", ["session", "comparison", "lesson"])
async def test_any_keys_in_any_order(
    three_runs: list[Recording], tiny: Recording, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(KvsimApp, "action_quit", lambda _: None)
    opening: dict[str, Callable[[], Session | ComparedRuns | Guided]] = {
        "session": lambda: Session(tiny),
        "comparison": lambda: ComparedRuns(three_runs),
        "lesson": lambda: Guided(find_lesson("6")),
    }
    rng = np.random.default_rng(7)
    now_s = 0.0
    app = KvsimApp(opening[kind](), clock=lambda: now_s, runs=lambda: three_runs)
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(NUM_ACTIONS):
            action = rng.random()
            if action < 0.04:
                await pilot.resize_terminal(*SIZES[rng.integers(len(SIZES))])
            elif action < 0.1:
                offset = (int(rng.integers(app.size.width)), int(rng.integers(app.size.height)))
                await pilot.click(offset=offset)
            else:
                await pilot.press(KEYS[rng.integers(len(KEYS))])
            now_s += 0.05
            app.tick()
        player = app.playback.player
        assert 0 <= player.frame <= player.last_frame
        assert app.return_code is None
