"""When a program has nothing left to do: told by its event loop, where Textual sleeps to see whether time is spent.

After each key, Textual sleeps 20 ms at a time until hardly any processor time goes by, and a screen waits for the next
of 60 ticks a second before it is drawn: two thirds of what tests of screens took. Where nothing is ready, no timer is
due soon and no thread has been begun, sleeping changes nothing.
"""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING, Any

from textual._wait import SLEEP_GRANULARITY, wait_for_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

TICK_S = 0.002
"""Seconds between ticks at which a screen is drawn."""
_SOON_S = 2 * SLEEP_GRANULARITY
"""Seconds that Textual sleeps at least after each key: in them, timers that are due go off."""


def waiting(threads: set[threading.Thread]) -> Callable[[float, float], Coroutine[Any, Any, None]]:
    """Textual's `wait_for_idle`, for a program whose event loop has all that is to be done.

    Where there is a thread that is not among `threads`, it may have something for the loop at any time, and Textual's
    own function waits.
    """

    async def wait(min_sleep: float = SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
        loop: Any = asyncio.get_running_loop()
        slept_s = 0.0
        while slept_s < _SOON_S:
            await asyncio.sleep(0)
            if loop._ready:
                continue
            if not threads.issuperset(threading.enumerate()):
                await wait_for_idle(min_sleep, max_sleep)
                break
            due_s = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=math.inf)
            left_s = max(due_s - loop.time(), 0)
            if left_s > _SOON_S:
                break
            await asyncio.sleep(left_s)
            slept_s += left_s

    return wait
