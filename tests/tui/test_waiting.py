"""Why the head of the queue waits: what it needs, and what is free."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Paged, Radix
from kvsim.policies.settings import ContinuousSettings
from kvsim.policies.sglang import RadixSettings
from kvsim.replay.unfolding import NO_OWNER
from kvsim.simulation import Machine, simulate
from kvsim.workload import generate
from kvsim_tui.app import KvsimApp
from kvsim_tui.facts.wait_reasons import needs, units_needed, wait_reason
from kvsim_tui.lessons import Guided, find_lesson, read_lesson
from kvsim_tui.playback.session import Session
from kvsim_tui.widgets.waiting_list import Queue

from .test_app import text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.recording import Recording

    from ..conftest import MakeMachine


def test_the_head_of_the_queue_needs_more_blocks_than_are_free(shipped: Callable[[str], Recording]) -> None:
    """Where it is told what is needed, that is more than is free: or nobody would see why it waits."""
    session = Session(shipped("paged"))
    told = 0
    for frame in range(0, session.player.last_frame, 37):
        session.player.go_to_frame(frame)
        session.show()
        texts = wait_reason(session)
        needs = [re.fullmatch(r"(?:(\S+) )?needs ([\d,]+) blocks?, ([\d,]+) free", text) for text in texts]
        for match in filter(None, needs):
            head = int(session.replay.waiting_requests()[0])
            need, free = (int(match[group].replace(",", "")) for group in (2, 3))
            assert need == units_needed(session, head) > free == int((session.replay.owner == NO_OWNER).sum())
            told += 1
        assert bool(texts) == (session.recording.steps.waiting[frame] > 0)
    assert told > 20


def test_the_head_of_the_queue_needs_blocks_of_every_group() -> None:
    gpu, model = find_gpu("H200"), find_model("gemma-3-4b-it")
    machine = Machine(gpu=gpu, model=model, kv_bytes=400 << 20, step_time=step_times(gpu, model, "vllm"))
    work = generate(12, prompt=900, output=200, seed=1)
    session = Session(simulate(work, Paged(scheduler=ContinuousSettings(max_model_len=2048)), machine))
    waits = np.flatnonzero(session.recording.steps.waiting > 0)
    session.player.go_to_frame(int(waits[0]))
    session.show()
    head, groups = int(session.replay.waiting_requests()[0]), session.recording.meta.pool.groups
    need = sum(-(-900 // group.block_size) for group in groups)
    assert units_needed(session, head) == need
    assert wait_reason(session)[-1] == f"needs {need:,} blocks, {int((session.replay.owner == NO_OWNER).sum()):,} free"


def test_a_preempted_request_needs_blocks_for_its_answer_too(shipped: Callable[[str], Recording]) -> None:
    session = Session(shipped("paged"))
    requests = session.recording.requests
    request = int(np.flatnonzero((requests.preemptions == 1) & (requests.output_tokens > 200))[0])
    spans = session.residencies(request)
    session.player.go_to_frame(spans[0][1])
    session.show()
    tokens = int(requests.prompt_tokens[request]) + session.num_output_tokens(request)
    assert session.num_output_tokens(request) > 1
    assert units_needed(session, request) == -(-tokens // 16)


def test_a_reservation_needs_slots_in_a_row(tmp_path: Path) -> None:
    """Lesson 1 with a little more memory, which is too little for another reservation."""
    lesson, file = find_lesson("1"), tmp_path / "1-more.toml"
    file.write_text(lesson.file.read_text(encoding="utf-8").replace("kv_tokens = 65536", "kv_tokens = 67816"))
    guided = Guided(read_lesson(file))
    guided.show(guided.captions[1].frame)
    assert wait_reason(guided.sessions[0]) == (
        "E needs 16,384 contiguous slots, 2,280 free",
        "E needs 16,384 contiguous, 2,280 free",
        "needs 16,384 contiguous, 2,280 free",
    )


@pytest.mark.parametrize("page_size", [1, 16])
def test_sglang_keeps_free_slots_for_the_answers_of_running_requests(make_machine: MakeMachine, page_size: int) -> None:
    """The prompt of the head often fits. It waits because its longest answer must fit, too, beside those of others."""
    policy = Radix(cache=RadixSettings(page_size=page_size))
    session = Session(simulate(generate(60, prompt=200, output=200, seed=1), policy, make_machine(6_000)))
    short = kept = 0
    for frame in range(0, session.player.last_frame, 37):
        session.player.go_to_frame(frame)
        session.show()
        if not session.recording.steps.waiting[frame]:
            continue
        text, free = wait_reason(session)[0], int((session.replay.owner == NO_OWNER).sum())
        need = (200 + 200) // page_size + 2
        if f"needs {need:,} {session.unit_name}s with its longest answer, {free:,} free or cached" in text:
            short += 1
            assert need > free
        else:
            kept += 1
            assert f"of {free:,} free or cached, too many are kept for running answers" in text
            assert need <= free
    assert short > 0
    assert kept > 0


def test_one_block_is_needed_in_the_singular() -> None:
    assert needs("A", 1, "block", "0 free") == ("A needs 1 block, 0 free", "A needs 1, 0 free", "needs 1 block, 0 free")


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_those_that_run_come_before_those_whose_rows_are_only_held(size: tuple[int, int]) -> None:
    guided = Guided(find_lesson("2"))
    app = KvsimApp(guided, clock=lambda: 0.0, flash_s=0)
    async with app.run_test(size=size) as pilot:
        await pilot.press("right_square_bracket", "right_square_bracket")
        await pilot.pause()
        lines = text_of(app.query_one(Queue)).splitlines()
        session = guided.sessions[0]
        held = session.num_complete_rows
    complete = [line.split()[-1] == "complete" for line in lines if re.search(r"\b[A-F] ", line)]
    assert 0 < held == sum(complete) < len(complete)
    assert complete == sorted(complete)
