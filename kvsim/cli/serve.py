"""`kvsim tui --serve`: the terminal interface in browsers of this machine.

The server listens on the loopback interface only. It refuses requests that come from web pages of other servers, even
if the name of such a server resolves to this machine (DNS rebinding). The number of browsers and the size of a terminal
are limited.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakSet

from kvsim.errors import MissingExtraError

try:
    from aiohttp import WSMsgType, web
    from aiohttp.http_exceptions import HttpProcessingError
    from textual_serve.app_service import AppService
    from textual_serve.server import Server
except ImportError as error:
    raise MissingExtraError("--serve", "web") from error

HOST = "127.0.0.1"
MAX_BROWSERS = 8
"""Maximum number of browsers. Each has a terminal interface in its own process."""
MAX_CONNECTIONS = 64
"""Maximum number of open sockets; a browser opens about six for each page."""
MAX_COLUMNS, MAX_ROWS = 1_000, 500
"""Largest terminal, in characters. This is enough for a browser across two large screens in a small font."""
MAX_MESSAGE_BYTES = 1 << 16
_STOP_S = 5.0
"""Seconds that an interface may take to end after its browser has disconnected."""
_ASK_S = 10.0
"""Seconds that a new connection may take to send its first request."""
_IDLE_S = 75.0
"""Seconds that an idle connection is kept open."""
_HEADERS = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logging.getLogger("kvsim.serve")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LocalServer(Server):
    """Textual's server, restricted to requests from the pages that it served itself."""

    def __init__(self, command: str, port: int) -> None:
        """Serve on `port` of this machine. `command` starts an interface; it is run for each browser."""
        super().__init__(f"exec {command}", host=HOST, port=port, title="kvsim")
        names = [f"{host}:{port}" for host in (HOST, "localhost")] + ([HOST, "localhost"] if port == 80 else [])
        self._hosts = frozenset(names)
        self._origins = frozenset(f"http://{name}" for name in names)
        self._asked = WeakSet[asyncio.BaseTransport]()
        """Connections that have sent at least one request."""
        self.num_browsers = 0

    def serve(self, debug: bool = False) -> None:  # noqa: ARG002  a parameter of Textual's server
        """Serve until Ctrl+C."""

        async def wait() -> None:
            async with self.listening():
                await asyncio.Event().wait()

        with suppress(KeyboardInterrupt):
            asyncio.run(wait())

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Serve while the `with` block runs; yield the port."""
        log.addFilter(_is_about_server)
        runner = web.AppRunner(
            await self._make_app(), logger=log, access_log=None, keepalive_timeout=_IDLE_S, shutdown_timeout=_STOP_S
        )
        await runner.setup()
        try:
            loop = asyncio.get_running_loop()
            async with await loop.create_server(lambda: self._connection(runner), HOST, self.port) as listener:
                yield listener.sockets[0].getsockname()[1]
        finally:
            await runner.cleanup()

    def _connection(self, runner: web.AppRunner) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection. Excess connections end at once, and silent ones after `_ASK_S`."""
        server = runner.server
        assert server is not None
        if len(server.connections) >= MAX_CONNECTIONS:
            return _HangUp()
        handler = server()

        def end_if_silent() -> None:
            if handler.transport is not None and handler.transport not in self._asked:
                handler.transport.abort()

        asyncio.get_running_loop().call_later(_ASK_S, end_if_silent)
        return handler

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request that the pages of this server would not send; pass any other to `handler`."""
        if request.transport is not None:
            self._asked.add(request.transport)
        origin = request.headers.get("Origin")
        if request.headers.get("Host") not in self._hosts:
            raise web.HTTPForbidden(text="this server is for pages at its own address only")
        if origin not in self._origins and (origin is not None or request.path == "/ws"):
            raise web.HTTPForbidden(text="this server is for its own pages only")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run one interface for one browser."""
        size = _size(request.query.get("width", "80"), request.query.get("height", "24"))
        if size is None:
            raise web.HTTPBadRequest(text=f"a terminal has at most {MAX_COLUMNS} columns and {MAX_ROWS} rows")
        if self.num_browsers >= MAX_BROWSERS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_BROWSERS} interfaces run already, and no more are started")
        self.num_browsers += 1
        websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=MAX_MESSAGE_BYTES)

        async def close() -> None:
            await websocket.close()

        interface = AppService(
            self.command,
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=close,
            download_manager=self.download_manager,
        )
        try:
            await websocket.prepare(request)
            await interface.start(*size)
            await self._process_messages(websocket, interface)
        except (OSError, RuntimeError):  # the browser is gone
            pass
        finally:
            await _stop(interface)
            self.num_browsers -= 1
        return websocket

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """Forward the browser's messages until it disconnects or sends an unknown message."""
        async for message in websocket:
            if message.type != WSMsgType.TEXT or not await _forward(message.data, websocket, app_service):
                await websocket.close(code=1008, message=b"not understood")
                return


def _is_about_server(record: logging.LogRecord) -> bool:
    """Tell whether a log record is about this server, not about a client that sent invalid HTTP."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class _HangUp(asyncio.Protocol):
    """Protocol that closes its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


async def _forward(text: str, websocket: web.WebSocketResponse, interface: AppService) -> bool:
    """Forward one message to the interface; return False if it is malformed."""
    try:
        envelope: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    match envelope:
        case ["stdin", str(keys)]:
            await interface.send_bytes(keys.encode("utf-8", "replace"))
        case ["resize", {"width": width, "height": height}]:
            size = _size(width, height)
            if size is None:
                return False
            await interface.set_terminal_size(*size)
        case ["ping", str() | int() | float() as number]:
            await websocket.send_json(["pong", number])
        case ["blur", *_]:
            await interface.blur()
        case ["focus", *_]:
            await interface.focus()
        case _:
            return False
    return True


def _size(width: object, height: object) -> tuple[int, int] | None:
    texts = str(width)[:8], str(height)[:8]
    if not all(text.isascii() and text.isdigit() for text in texts):
        return None
    columns, rows = map(int, texts)
    return (columns, rows) if 1 <= columns <= MAX_COLUMNS and 1 <= rows <= MAX_ROWS else None


async def _stop(interface: AppService) -> None:
    """Stop the interface of one browser, and kill its process if it does not end within `_STOP_S` seconds."""
    with suppress(asyncio.TimeoutError, OSError, RuntimeError, AssertionError):
        await asyncio.wait_for(interface.stop(), _STOP_S)
    process = interface._process
    if process is not None and process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    if process is not None:
        # Output that no browser has read is still in the pipe; the process is reaped only after the pipe is read.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.communicate(), _STOP_S)
