"""Lines of entries: none is cut in half, but for the first where there is no room for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style

from kvsim_tui.widgets.entries import whole_entries

LINE = ["one preempted", "  two taken", "  three freed"]


def shown(texts: list[str], room: int) -> str:
    return whole_entries([[Segment(text)] for text in texts], room, Style(), "…").text


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (37, "one preempted  two taken  three freed"),
        (36, "one preempted  two taken +1 more"),
        (31, "one preempted +2 more"),
        (20, "one preempt… +2 more"),
    ],
)
def test_what_does_not_fit_is_counted(room: int, expected: str) -> None:
    assert shown(LINE, room) == expected


def test_no_entries_are_an_empty_line() -> None:
    assert shown([], 10) == ""


@given(st.lists(st.text("ab ", min_size=1, max_size=12), min_size=1, max_size=8), st.integers(12, 60))
def test_a_line_never_takes_more_than_its_room_and_shows_whole_entries(texts: list[str], room: int) -> None:
    line = shown(texts, room)
    assert len(line) <= room
    whole = [number for number in range(1, len(texts) + 1) if line.startswith("".join(texts[:number]))]
    assert "…" in line or line in {
        "".join(texts[:number]) + (f" +{len(texts) - number} more" if number < len(texts) else "") for number in whole
    }
