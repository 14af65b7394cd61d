"""Strip of the drafts of one request: each slot is where the schedule of the recording has it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import simulate
from kvsim.workload import Workload
from kvsim_tui.facts.draft_slots import draft_slots
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.brush import GLYPH, keys_of
from kvsim_tui.pool.paint import EMPTY
from kvsim_tui.pool.strip_cells import KNOWN, LOOKAHEAD, REJECTED, UNDER_WAY, draft_keys
from kvsim_tui.widgets.draft_strip import DraftStrip, titles_of

from ..simulation.test_engines import machine_of
from .test_app import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording
    from kvsim_tui.app import KvsimApp

NUM_DRAFTS = 3


@cache
def drafted(*, is_async: bool) -> Recording:
    config = {"method": "eagle", "model": "a draft model", "num_speculative_tokens": NUM_DRAFTS}
    scheduler = ContinuousSettings(
        max_model_len=200, speculative_config=config, acceptance="0.6", async_scheduling=is_async
    )
    requests = Workload(arrival_s=np.zeros(4), prompt_tokens=[20] * 4, output_tokens=[40] * 4)
    return simulate(requests, Paged(scheduler=scheduler, cache=PagedSettings(block_size=4)), machine_of(150))


def keys(*paints: int) -> list[int]:
    return [int(keys_of(GLYPH, np.array([[paint]], np.uint8), EMPTY)[0, 0]) for paint in paints]


@pytest.mark.parametrize("is_async", [False, True])
def test_every_slot_is_where_the_schedule_has_it(is_async: bool) -> None:
    recording = drafted(is_async=is_async)
    assert recording.num_preemptions
    session, taken_back, schedule = Session(recording), 0, recording.schedule
    assert schedule.known is not None
    for step in range(len(recording.steps)):
        session.replay.seek(step)
        for request in session.replay.live_requests().tolist():
            session.followed = request
            slots = draft_slots(session)
            assert slots is not None
            row = np.flatnonzero((schedule.request == request) & (schedule.step <= step))[-1]
            computed = int(schedule.computed_before[row]) + int(schedule.tokens[row])
            assert slots.known == min(int(schedule.known[row]), computed)
            assert slots.known + slots.under_way == computed
            assert 0 <= slots.num_rejected <= NUM_DRAFTS
            assert (slots.known + slots.under_way + slots.lookahead) % 4 == 0
            line = draft_keys(slots, 400, half_blocks=False)[0].tolist()
            known, under_way, back, ahead = (line.count(key) for key in keys(KNOWN, UNDER_WAY, REJECTED, LOOKAHEAD))
            assert back == slots.num_rejected
            assert known + under_way + back + ahead == slots.known + slots.under_way + slots.lookahead
            assert known <= slots.known
            assert ahead <= slots.lookahead
            taken_back += slots.num_rejected
    assert taken_back > 20


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_interface_marks_drafts_and_lookahead(
    make_app: Callable[..., KvsimApp], size: tuple[int, int]
) -> None:
    app = make_app(drafted(is_async=False))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        strip = app.screen.query_one(DraftStrip)
        slots = draft_slots(strip.session)
        assert slots is not None
        assert str(strip.border_title) in titles_of(slots, strip.session.request_name(slots.request))
        if strip.size.height > 1:
            assert "lookahead" in text_of(strip)
