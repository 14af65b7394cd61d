"""`kvsim tui --serve` asked by pages that are not its own, and told things that a page of its own does not say."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual_serve")

from aiohttp import ClientSession, ClientWebSocketResponse, ClientWSTimeout, WSServerHandshakeError

from kvsim.cli import serve
from kvsim.cli.serve import LocalServer

pytestmark = pytest.mark.filterwarnings("default")  # the warnings of other people's packages are not ours

ECHO = """
import sys, json
print("__GANGLION__", flush=True)
out = sys.stdout.buffer
while head := sys.stdin.buffer.read(5):
    body = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    if head[:1] == b"M" and json.loads(body)["type"] == "quit":
        break
    out.write(b"D" + len(body).to_bytes(4, "big") + body)
    out.flush()
"""
"""Stands for the interface: sends back what it is told."""


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[LocalServer, str, ClientSession]]:
    (tmp_path / "echo.py").write_text(ECHO)
    server = LocalServer(f"{sys.executable} {tmp_path / 'echo.py'}", 0)
    async with server.listening() as port, ClientSession() as session:
        server._hosts = frozenset({f"{serve.HOST}:{port}", f"localhost:{port}"})
        server._origins = frozenset(f"http://{name}" for name in server._hosts)
        yield server, f"http://{serve.HOST}:{port}", session


async def heard(websocket: ClientWebSocketResponse) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((await websocket.receive_bytes(timeout=20)).decode())
    return said


async def test_a_page_of_its_own_drives_the_interface(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, url, session):
        page = await session.get(url)
        assert (page.status, page.headers["X-Frame-Options"]) == (200, "DENY")
        async with session.ws_connect(f"{url}/ws?width=100&height=30", origin=url) as websocket:
            await websocket.send_json(["resize", {"width": 120, "height": 40}])
            assert await heard(websocket) == {"type": "resize", "width": 120, "height": 40}
            await websocket.send_json(["stdin", "s"])
            assert (await websocket.receive_bytes(timeout=20)) == b"s"
            assert server.num_browsers == 1
        for _ in range(200):
            if not server.num_browsers:
                break
            await asyncio.sleep(0.05)
        assert server.num_browsers == 0, "an interface ends with its browser"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Host": ""},
    ],
)
async def test_a_page_of_another_origin_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with serving(tmp_path) as (server, url, session):
        assert (await session.get(url, headers=headers)).status in {400, 403}
        with pytest.raises(WSServerHandshakeError):
            await session.ws_connect(f"{url}/ws", headers=headers)
        assert server.num_browsers == 0


async def test_a_program_that_says_no_origin_gets_no_interface(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url, session):
        with pytest.raises(WSServerHandshakeError, match="403"):
            await session.ws_connect(f"{url}/ws")


@pytest.mark.parametrize(
    "size", ["width=20000&height=5000", "width=0", "height=-1", "width=many", "width=" + "9" * 5000]
)
async def test_a_terminal_that_nobody_has_is_refused(tmp_path: Path, size: str) -> None:
    async with serving(tmp_path) as (server, url, session):
        with pytest.raises(WSServerHandshakeError, match="400"):
            await session.ws_connect(f"{url}/ws?{size}", origin=url)
        assert server.num_browsers == 0


@pytest.mark.parametrize(
    "message",
    [
        '["resize", {"width": 20000, "height": 5000}]', '["resize", {"width": "x", "height": 5}]', '["resize", 3]',
        '["stdin", 3]', "[]", "{}", "nonsense", "[" * 10_000, '["stdin", "' + "x" * serve.MAX_MESSAGE_BYTES + '"]',
    ],
)  # fmt: skip
async def test_what_no_page_of_its_own_says_ends_the_connection(tmp_path: Path, message: str) -> None:
    async with serving(tmp_path) as (_, url, session), session.ws_connect(f"{url}/ws", origin=url) as websocket:
        await websocket.send_str(message)
        answer = await websocket.receive(timeout=20)
        assert answer.data in {1008, 1009}


async def test_interfaces_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_BROWSERS", 2)
    async with serving(tmp_path) as (server, url, session):
        first = await session.ws_connect(f"{url}/ws", origin=url)
        second = await session.ws_connect(f"{url}/ws", origin=url)
        with pytest.raises(WSServerHandshakeError, match="503"):
            await session.ws_connect(f"{url}/ws", origin=url)
        assert server.num_browsers == 2
        await first.close()
        await second.close()


async def test_an_interface_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_STOP_S", 0.2)
    async with serving(tmp_path) as (server, url, session):
        (tmp_path / "echo.py").write_text("import time; print('__GANGLION__', flush=True); time.sleep(60)")
        async with session.ws_connect(f"{url}/ws", origin=url):
            await asyncio.sleep(0.5)
        for _ in range(100):
            if not server.num_browsers:
                break
            await asyncio.sleep(0.05)
        assert server.num_browsers == 0


async def connected(url: str, number: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """So many connections that say nothing."""
    host, port = url.removeprefix("http://").split(":")
    return [await asyncio.open_connection(host, int(port)) for _ in range(number)]


async def close(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in connections:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_connections_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 4)
    async with serving(tmp_path) as (_, url, session):
        kept = await connected(url, 4)
        await asyncio.sleep(0.1)
        refused = await connected(url, 3)
        ends = [await asyncio.wait_for(reader.read(), 20) for reader, _ in refused]
        assert ends == [b""] * 3
        await close(kept + refused)
        assert (await session.get(url)).status == 200, "those that leave make room"


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: "])
async def test_a_connection_that_asks_for_nothing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(serve, "_ASK_S", 0.2)
    async with serving(tmp_path) as (_, url, session):
        [(reader, writer)] = await connected(url, 1)
        writer.write(said)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        await close([(reader, writer)])
        page = await session.get(url)
        await asyncio.sleep(0.4)
        assert (await session.get(url)).status == page.status == 200, "one that has asked is left alone"


@pytest.mark.parametrize(
    "said",
    [b"\0\xff" * 4000, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: \x1b[31m\r\n\r\n"],
)
async def test_what_is_no_request_shows_nothing_on_the_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    async with serving(tmp_path) as (_, url, session):
        [(reader, writer)] = await connected(url, 1)
        writer.write(said)
        with suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 20)
        await close([(reader, writer)])
        assert (await session.get(url)).status == 200
    assert not caplog.records


async def test_what_the_interface_says_waits_for_a_browser_that_does_not_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, url, session):
        (tmp_path / "echo.py").write_text(FLOOD)
        impatient = ClientWSTimeout(ws_close=0.1)  # it does not read the answer to its farewell either
        async with session.ws_connect(f"{url}/ws", origin=url, timeout=impatient) as websocket:
            assert websocket._response.connection is not None
            websocket._response.connection.transport.pause_reading()
            count, before = tmp_path / "count", -1
            while not count.exists() or (said := int(count.read_text() or 0)) != before:
                before = said if count.exists() else -1
                await asyncio.sleep(0.5)
            assert 0 < said < 64 << 20
        for _ in range(400):
            if not server.num_browsers:
                break
            await asyncio.sleep(0.05)
        assert server.num_browsers == 0


FLOOD = """
import sys, pathlib
print("__GANGLION__", flush=True)
count, out = pathlib.Path(__file__).with_name("count"), sys.stdout.buffer
for said in range(1 << 12):
    out.write(b"D" + (1 << 16).to_bytes(4, "big") + b"x" * (1 << 16))
    out.flush()
    count.write_text(str(said << 16))
"""
"""Stands for an interface that says 256 MiB, and notes how much of that was taken."""
