"""Free memory in one line: the number of free units, and the units that will be allocated next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..look.wording import plural
from ..pool.free_queue import next_units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..playback.session import Session


def free_line(session: Session, width: int) -> str:
    """Return the number of free units and, as far as `width` permits, those that will be allocated next, in order."""
    replay, unit = session.replay, session.unit_name
    num_free = int((replay.refs == 0).sum())
    if not num_free:
        texts = [f"no {unit} is free until a request ends or is preempted", f"no {unit} is free"]
        return next((text for text in texts if len(text) <= width), texts[-1])
    free = f"{plural(num_free, unit)} free" + " or cached" * bool(replay.cached.any())
    numbers = (next_units(replay) + replay.first_unit).tolist()
    if not numbers:
        return free
    series = list(_ranges_of(numbers))
    for kept in range(len(series), 0, -1):
        listed = ", then ".join(filter(None, (series[0], ", ".join(series[1:kept]))))
        units = unit + "s" * (" to " in series[0])
        for begin in (f"{free}, allocated next: {units} ", f"{free}, next: "):
            if len(begin + listed) <= width:
                return begin + listed
    return free


def _ranges_of(numbers: list[int]) -> Iterator[str]:
    """Yield each range of consecutive `numbers` in words: `1,203`, `412 to 419`."""
    for each in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        yield f"{each[0]:,}" if len(each) == 1 else f"{each[0]:,} to {each[-1]:,}"
