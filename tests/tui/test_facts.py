"""What the inspector says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import simulate
from kvsim.workload import Workload
from kvsim_tui.dialogs.find_dialog import look_up
from kvsim_tui.facts.headlines import headline, selection
from kvsim_tui.facts.preemption import last_preemption
from kvsim_tui.facts.requests import request_facts, request_lines, share_lines
from kvsim_tui.facts.units import unit_lines, unit_summary
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.look.wording import bytes_text, ending, percent, plural, seconds, shortened
from kvsim_tui.playback.session import Session
from kvsim_tui.pool.free_queue import next_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording
    from kvsim.simulation import Machine


@pytest.mark.parametrize(
    ("request_row", "time_s", "state"),
    [
        (0, 0, "running: reading prompt"),
        (0, 1, "running: generating"),
        (0, 4, "finished"),
        (1, 0, "waiting"),
        (1, 2, "preempted, waits again"),
        (1, 4, "running: recomputing"),
        (1, 5, "running: generating"),
        (2, 0, "refused: it can never fit"),
    ],
)
def test_the_state_of_a_request_in_words(tiny: Recording, request_row: int, time_s: float, state: str) -> None:
    assert request_facts(Session(tiny, at_s=time_s), request_row).state == state


def test_the_figures_of_a_request(tiny: Recording) -> None:
    session = Session(tiny, at_s=1)
    facts = request_facts(session, 0)
    assert (facts.computed, facts.final_slots, facts.num_units, facts.generated_tokens) == (7, 8, 2, 1)
    lines = dict(request_lines(session, 0, facts))
    assert lines["prompt"] == "6 tokens"
    assert lines["output"] == "1 of 3"
    assert lines["holds"] == "2 blocks"
    assert lines["will finish"].startswith("3.0")


def test_drafts_that_were_wrong_are_neither_outputs_nor_computed_again(
    make_machine: Callable[[int], Machine],
) -> None:
    drafting = {"method": "eagle", "model": "a draft model", "num_speculative_tokens": 3}
    policy = Paged(
        scheduler=ContinuousSettings(
            max_model_len=128, async_scheduling=False, speculative_config=drafting, acceptance=0.5
        )
    )
    workload = Workload(arrival_s=[0.0], prompt_tokens=[20], output_tokens=[30], max_tokens=[30])
    recording = simulate(workload, policy, make_machine(400), engine="interpreted")
    session, outputs = Session(recording), []
    for frame in range(session.replay.num_frames - 1):
        session.player.go_to_frame(frame)
        session.show()
        facts = request_facts(session, 0)
        outputs.append(facts.generated_tokens)
        assert facts.state == f"running: {'generating' if frame else 'reading prompt'}"
    begins = recording.schedule.computed_before[1:]
    assert np.diff(begins).min() == 1 < np.diff(begins).max(), "some drafts were wrong, and some were right"
    assert outputs == [0, *(begins - 20 + 1).tolist()], "a token is there at the end of its step"


def test_a_preemption_takes_memory_and_no_outputs(shipped: Callable[[str], Recording]) -> None:
    recording = shipped("paged")
    session = Session(recording)
    requests = recording.requests
    request = int(np.flatnonzero((requests.preemptions == 2) & (requests.output_tokens > 60))[0])
    spans = session.residencies(request)
    assert len(spans) == 3
    outputs, preemptions = [], []
    for frame in range(spans[0][0], spans[-1][1] + 2):
        session.player.go_to_frame(frame)
        session.show()
        facts = request_facts(session, request)
        outputs.append(facts.generated_tokens)
        preemptions.append(facts.preemptions)
        lost = frame >= spans[0][1] and not any(begin <= frame < end for begin, end in spans)
        if lost and frame < spans[-1][1]:
            assert facts.state == "preempted, waits again"
            assert facts.generated_tokens > 0
            assert not facts.holds
        if frame in (spans[1][0], spans[2][0]):
            assert facts.state == "running: recomputing"
    assert outputs == sorted(outputs), "what has been put out stays so"
    assert outputs[-1] == requests.output_tokens[request]
    assert [preemptions.index(number) + spans[0][0] for number in (1, 2)] == [spans[0][1], spans[1][1]]
    assert (preemptions[0], preemptions[-1]) == (0, 2)
    session.player.go_to_frame(spans[1][0])
    session.show()
    assert dict(request_lines(session, request, request_facts(session, request)))["preempted"] == ("1 so far, 2 in all")


def test_a_unit_says_what_it_holds_and_for_whom(tiny: Recording) -> None:
    session = Session(tiny)
    assert dict(unit_lines(session, 1)) == {
        "is": "2 tokens, 2 reserved",
        "held by": "first",
        "its tokens": "tokens 5 to 8",
    }
    assert dict(unit_lines(session, 7)) == {
        "is": "4 free",
        "held by": "no request",
        "allocated": "as number 4 from now",
    }
    assert unit_summary(session, 7).endswith("4 free, held by no request, allocated as number 4 from now")
    assert next_units(session.replay).tolist().index(7) == 3


def test_a_row_that_is_only_held_says_so(batch: Recording) -> None:
    assert request_facts(Session(batch), 0).state == "running: reading prompt"
    assert request_facts(Session(batch, at_s=1), 0).state == "complete, row is held"
    assert request_facts(Session(batch, at_s=1), 1).state == "running: generating"
    assert request_facts(Session(batch), 0).pad == 2


def test_one_line_for_screens_without_an_inspector(tiny: Recording) -> None:
    session = Session(tiny)
    assert selection(session) == ""
    session.followed = 0
    assert selection(session) == "first: 2 blocks = 0.01 KiB, running: reading prompt"
    session.selected = 1
    assert (
        selection(session)
        == "block 2: 2 tokens, 2 reserved, held by first; first: 2 blocks = 0.01 KiB, running: reading prompt"
    )


def test_residencies_are_the_spans_in_which_a_request_holds_memory(tiny: Recording) -> None:
    session = Session(tiny)
    assert session.residencies(0) == [(0, 3)]
    assert session.residencies(1) == [(1, 2), (4, 6)]
    assert session.residencies(2) == []


def test_the_headline_tells_a_real_run_from_a_simulation(tiny: Recording, shipped: Callable[[str], Recording]) -> None:
    assert headline(Session(shipped("static")), short=False)[:2] == [
        "real run of transformers 5.17.0",
        "static",
    ]
    assert headline(Session(tiny), short=True)[0] == "simulation"
    rough = replace(tiny, meta=replace(tiny.meta, notes="uncalibrated: step times from the roofline"))
    assert headline(Session(rough), short=True)[0] == "simulation, uncalibrated"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("second", ("request", 1)),
        ("sec", ("request", 1)),
        ("2", ("request", 2)),
        ("#8", ("unit", 7)),
        ("#1", ("unit", 0)),
        ("#0", None),
        ("#9", None),
        ("#x", None),
        ("", None),
        ("7", None),
        ("nobody", None),
    ],
)
def test_finding(tiny: Recording, text: str, found: tuple[str, int] | None) -> None:
    assert look_up(Session(tiny), text) == found


def test_numbers_in_words() -> None:
    assert [plural(1, "block"), plural(1204, "slot")] == ["1 block", "1,204 slots"]
    assert [bytes_text(3 << 30), bytes_text(40 * 2**30), bytes_text(5 << 20)] == ["3.00 GiB", "40.0 GiB", "5.00 MiB"]
    assert [percent(1, 3), percent(1, 10**6), percent(0, 5), percent(0, 0)] == ["33.3%", "<0.1%", "0.0%", "0.0%"]
    assert [seconds(1.23456), seconds(2, 1), seconds(float("nan"))] == ["1.235 s", "2 s", "-"]
    assert [shortened("abcdef", 4, "…"), shortened("abc", 4, "…"), shortened("abc", 0, "…")] == ["abc…", "abc", "…"]
    assert [ending("abcdef", 4, "…"), ending("abc", 4, "…"), ending("abc", 1, "…")] == ["…def", "abc", "…"]


def test_a_preempted_request_says_why_and_what_it_lost(shipped: Callable[[str], Recording]) -> None:
    session = Session(shipped("paged"))
    checked = 0
    for request in np.flatnonzero(session.recording.requests.preemptions)[:5].tolist():
        (begin, end), *_ = session.residencies(request)
        session.player.go_to_frame(end - 1)
        session.show()
        assert end > begin
        assert last_preemption(session, request) is None
        held, computed = len(session.replay.block_table(request)[1]), request_facts(session, request).computed
        session.player.go_to_frame(end)
        session.show()
        lines = dict(request_lines(session, request, request_facts(session, request)))
        assert lines["because"] == "short of blocks"
        assert lines["lost"] == f"{plural(held, 'block')}, {plural(computed, 'token')}"
        assert session.request_name(request) not in lines.get("gave way to", "").split(" and ")
        checked += 1
    assert checked == 5


def test_a_request_says_with_whom_it_shares() -> None:
    session = Guided(find_lesson("5")).sessions[0]
    session.player.go_to_frame(session.residencies(session.recording.row_of("B"))[0][0])
    session.show()
    for name, others in (("A", "B"), ("B", "A")):
        lines = dict(share_lines(session, session.recording.row_of(name)))
        assert lines == {"shares": "10 blocks", "with": others}
    session.player.go_to_frame(0)
    session.show()
    assert share_lines(session, session.recording.row_of("A")) == []


def test_with_host_memory_those_that_wait_and_hold_blocks_are_not_counted_as_running(
    shipped: Callable[[str], Recording],
) -> None:
    recording = shipped("offload")
    step = int(np.argmax(recording.steps.preempted > 10))
    session = Session(recording, at_s=float(recording.steps.start_s[step]))
    live = len(session.replay.live_requests())
    assert session.num_held_back == live - recording.steps.running[session.replay.frame] > 0
    assert Session(recording, at_s=0).num_held_back == 0
