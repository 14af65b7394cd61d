"""`kvsim tui --serve` in a real browser: a key, a click, a drag and a screenshot, through Chromium's own protocol.

What they do is seen from the files that `x` saves, which name the step that is shown.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.image
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the browser's protocol client
]


class Page:
    """A page of a browser, spoken to over its debugging socket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json(timeout=PATIENCE_S)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def press(self, key: str, code: int = 0) -> None:
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code or ord(key.upper()),
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    async def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def screenshot(self) -> bytes:
        return base64.b64decode((await self.send("Page.captureScreenshot"))["data"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts, until the block ends."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE_S)


async def until(condition: Any) -> Any:
    """What `condition` returns as soon as that is something."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        await asyncio.sleep(0.2)
    return found


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """The interface over the recording that comes first, in a browser window of 1200 by 800 pixels."""
    aiohttp = pytest.importorskip("aiohttp")
    pytest.importorskip("textual_serve")
    port, profile = free_port(), tmp_path / "profile"
    serve = [sys.executable, "-m", "kvsim", "tui", "--serve", "--port", str(port)]
    browse = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1200,800",
        "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
        f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
    ]  # fmt: skip
    with running(serve, tmp_path, tmp_path / "server.log"), running(browse, tmp_path, tmp_path / "browser.log"):
        listening = profile / "DevToolsActivePort"
        debugging_port = (await until(lambda: listening.exists() and listening.read_text().split()))[0]
        await until(lambda: answers(port))
        async with aiohttp.ClientSession() as session:
            address = f"http://127.0.0.1:{debugging_port}/json/new?http://127.0.0.1:{port}"
            async with session.put(address) as answer:
                target = await answer.json()
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as connection:
                page = Page(connection)
                await page.send("Emulation.setFocusEmulationEnabled", enabled=True)
                await page.send("Page.bringToFront")
                yield page


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def saved_step(page: Page, folder: Path) -> int:
    """The step that is shown, from the name of the file that `x` saves."""
    for file in folder.glob("*.csv"):
        file.unlink()
    end = time.monotonic() + PATIENCE_S
    while not (files := list(folder.glob("*.csv"))):
        assert time.monotonic() < end, "x saved nothing"
        # Until there is a program behind the page that hears it; a page hears keys once it has been clicked.
        await page.click(900, 8)
        await page.press("x")
        await asyncio.sleep(0.5)
    return int(files[0].stem.rpartition("step")[2])


async def test_a_key_a_click_and_a_screenshot(page: Page, tmp_path: Path) -> None:
    opened = await saved_step(page, tmp_path)
    assert opened > 0, "it opens on its story, and plays on"
    await page.press(" ", 32)
    await page.press("Home", 36)
    await asyncio.sleep(1)
    assert await saved_step(page, tmp_path) == 0
    await page.press("ArrowRight", 39)
    await page.press("ArrowRight", 39)
    await asyncio.sleep(1)
    assert await saved_step(page, tmp_path) == 2

    # The timeline lies above the keys: a click in its middle goes to the middle of the run.
    await page.click(500, 590)
    await asyncio.sleep(1)
    step = await saved_step(page, tmp_path)
    assert 500 < step < 2500

    await page.press("v", 86)  # in physical order
    await page.press("o", 79)  # the state, then the age of what each block holds
    await page.press("o", 79)
    await asyncio.sleep(1)
    picture = tmp_path / "browser.png"
    picture.write_bytes(await page.screenshot())
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[0] > 600
    # The pool is there: the upper left shows blocks of many ages, and little of the ground below.
    pool = (pixels[60:300, :840, :3] * 255).round().astype(int).reshape(-1, 3)
    colours, counts = np.unique(pool, axis=0, return_counts=True)
    assert (counts > len(pool) / 200).sum() > 3
    assert counts[colours.max(axis=-1) < 60].sum() < len(pool) / 10
