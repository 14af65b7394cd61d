"""Films as self-contained HTML pages with a canvas, a play button and a slider."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvsim.display.palette import NUM_HUES
from kvsim.display.text import filled, html_text, script_json
from kvsim.errors import UsageError
from kvsim.files.atomic import whole_file
from kvsim.memory.waste import NUM_STATES, SlotState
from kvsim.plots.colors import THEMES
from kvsim.plots.style import STATE_LABELS
from kvsim.plots.words import spaced
from kvsim.replay.unfolding import NO_OWNER

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from kvsim.plots.film import Film, Reel

_TEMPLATE = Path(__file__).with_name("film_page.html")


def write_page(film: Film, path: str | os.PathLike[str], *, frames_per_s: float, max_bytes: int) -> Path:
    """Write `film` as an HTML page with controls for mouse, touch and keyboard.

    Raises:
        UsageError: the page takes more than `max_bytes`, or cannot be written.
    """
    page = page_of(film, frames_per_s=frames_per_s).encode()
    if len(page) > max_bytes:
        raise UsageError(f"the page takes {len(page):,} bytes, more than the {max_bytes:,} allowed; show fewer frames.")
    with whole_file(path, made_by="animate") as file:
        file.write_bytes(page)
    return Path(path)


def _codes(reel: Reel, *, by_owner: bool) -> npt.NDArray[np.uint8]:
    """Return the index of each cell's colour among the colours of the states, followed by the hues of requests.

    If `by_owner`, cells with tokens have the hue of the request that holds them; other cells have that of their state.
    """
    has_hue = (reel.states == SlotState.TOKEN) & (reel.owners != NO_OWNER) & by_owner
    return np.where(has_hue, NUM_STATES + reel.owners % NUM_HUES, reel.states).astype(np.uint8)


def _keys(film: Film) -> str:
    """Describe the keys for preemptions and for requests, if the film has these; the template lists the other keys."""
    events = ", [ and ] go to the preemption before and after" if len(film.preempted) else ""
    return events + (", o shows states alone or requests too" if film.by_owner else "")


def page_of(film: Film, *, frames_per_s: float) -> str:
    """Return the HTML of `write_page`."""
    data = {
        "times": [round(time_s, 6) for time_s in film.times_s.tolist()],
        "framesPerSecond": frames_per_s,
        "states": [STATE_LABELS[state] for state in SlotState],
        "byRequest": film.by_owner,
        "colors": {  # the states, then the hues of requests; the reader's system chooses the theme
            theme: [*(colors.states[state] for state in SlotState), *colors.owners] for theme, colors in THEMES.items()
        },
        "preempted": film.preempted.tolist(),
        "reels": [
            {
                "name": reel.name,
                "about": spaced(reel.about),
                "cells": reel.states.shape[1],
                "end": round(reel.end_s, 6),
                "requests": reel.num_requests,
                "shares": [[round(share, 2) for share in row] for row in reel.shares_percent.tolist()],
                "batch": reel.batch.tolist(),
                "waiting": reel.waiting.tolist(),
                "finished": reel.finished.tolist(),
                "packed": base64.b64encode(zlib.compress(_codes(reel, by_owner=film.by_owner).tobytes(), 9)).decode(),
            }
            for reel in film.reels
        ],
    }
    *others, last = (html_text(reel.name) for reel in film.reels)
    names = f"{', '.join(others)} and {last}" if others else last
    return filled(
        _TEMPLATE.read_text(encoding="utf-8"),
        {
            "@TITLE@": f"KV pool over time: {names}",
            "@ALT@": html_text(film.alt_text),
            "@SOURCE@": html_text(film.source),
            "@KEYS@": _keys(film),
            "@DATA@": script_json(data),
        },
    )
