"""Runs an interface so that the terminal is usable afterwards, even if the interface fails or a signal stops it.

A failure becomes a `DefectError` with one line, instead of a traceback of several screens.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from kvsim.errors import DefectError, KvsimError
from kvsim.files.scratch import ENDING_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

_LEAVE_S = 3.0
"""Seconds from a signal to the end of the process, in which the interface restores the terminal."""


class NoTracebackMixin:
    """Mixin for a Textual application. If it fails, it shows no traceback, which would fill several screens."""

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()  # type: ignore[attr-defined]


def play(app: App[Any], keep: Callable[[], None] = lambda: None) -> None:
    """Run `app` until the user quits.

    Args:
        app: the interface.
        keep: saves data. It is called in another thread when a signal arrives. The process ends a few seconds later in
            any case, because an interface may wait for ever for a terminal that was closed.

    Raises:
        SystemExit: a signal stopped the interface.
        DefectError: the interface failed.
    """
    received = list[int]()
    with asyncio.Runner() as runner:

        def leave(number: int) -> None:
            with suppress(KvsimError):  # the caller reports the error later
                keep()
            with suppress(RuntimeError):  # the event loop has ended meanwhile
                runner.get_loop().call_soon_threadsafe(app.exit)
            time.sleep(_LEAVE_S)
            os._exit(128 + number)

        def begin_to_leave(number: int, _: object) -> None:
            received.append(number)
            if len(received) == 1:  # closing a terminal sends two or three signals
                Thread(target=leave, args=(number,), daemon=True).start()

        before = {number: signal.signal(number, begin_to_leave) for number in ENDING_SIGNALS}
        runner.run(app.run_async())
    if received:
        sys.exit(128 + received[0])
    for number, handler in before.items():
        signal.signal(number, handler)
    if not app.return_code:
        return
    error: BaseException | None = getattr(app, "_exception", None)
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    reason = f"{type(error).__name__}{where}: {error}" if error is not None else "an error"
    raise DefectError(f"the interface failed with {reason}. This is a defect of kvsim.") from error
