"""A log of events says what its recording says, and whatever a crash leaves of it can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.conformance import parse_workload
from kvsim.errors import RecordingError
from kvsim.recording import Recording, RecordingBuilder, RequestStatus, eventlog, provenance, read
from kvsim.recording.tables import Memory, Requests, Schedule, Steps
from kvsim.replay import Replay

from ..conformance.recorder import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Logging(RecordingBuilder):
    """Writes down in the log's vocabulary whatever it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[bytes] = []

    def log(self, *event: Any) -> None:
        self.lines.append(eventlog.line(*event))

    def begin_event(self) -> int:
        self.log("seq")
        return super().begin_event()

    def arrived(self, name: str, time_s: float, prompt_tokens: int, max_tokens: int, **more: Any) -> int:
        row = super().arrived(name, time_s, prompt_tokens, max_tokens, **more)
        assert self.lines.pop() == eventlog.line("seq")
        self.log("arrive", name, time_s, prompt_tokens, max_tokens, more["priority"], list(more["prompt_hashes"]))
        return row

    def scheduled(self, request: int, computed_before: int, tokens: int, time_s: float, repeat: int = 1) -> None:
        super().scheduled(request, computed_before, tokens, time_s, repeat)
        self.log("tokens", time_s, [[request, computed_before, tokens]])

    def step(self, **columns: float) -> int:
        self.log("step", columns)
        return super().step(**columns)

    def output(self, step: int, time_s: float) -> None:
        self.log("output", step, time_s)
        super().output(step, time_s)

    def emitted(self, request: int, time_s: float, count: int = 1) -> None:
        self.log("emit", request, time_s, count)
        super().emitted(request, time_s, count)

    def preempted(self, request: int) -> None:
        self.log("preempt", request)
        super().preempted(request)

    def ended(self, request: int, status: RequestStatus, time_s: float) -> None:
        self.log("end", request, status.name.lower(), time_s)
        super().ended(request, status, time_s)

    def append_blocks(self, request: int, position: int, blocks: Iterable[int]) -> None:
        self.log("append", request, position, list(blocks))
        super().append_blocks(request, position, list(blocks))

    def share_blocks(self, request: int, position: int, blocks: Iterable[int]) -> None:
        self.log("share", request, position, list(blocks))
        super().share_blocks(request, position, list(blocks))

    def release(self, request: int, num_units: int, num_cached: int) -> None:
        self.log("release", request, num_units, num_cached)
        super().release(request, num_units, num_cached)

    def evict(self, blocks: Iterable[int]) -> None:
        self.log("evict", list(blocks))
        super().evict(list(blocks))


@pytest.fixture(scope="module")
def run_and_log() -> tuple[Recording, list[bytes]]:
    """A run under memory pressure, and the log that a live engine would have written of it."""
    requests = [
        {"id": f"r{row}", "arrival_step": row, "prompt_len": 9 - row % 4, "output_len": 12, "prefix_group": row % 2,
         "prefix_len": 5}
        for row in range(8)
    ]  # fmt: skip
    settings = {"num_blocks": 20, "block_size": 4, "max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    builder = Logging()
    recording = Watch(parse_workload(settings | {"requests": requests}, "made up"), builder=builder).recording()
    meta = provenance.meta_as_text(recording.meta)
    return recording, [b'["meta",' + " ".join(meta.split()).encode() + b"]\n", *builder.lines]


def assert_same_columns(one: Recording, other: Recording) -> None:
    for table in (Requests, Steps, Schedule, Memory):
        for name, spec in table.columns():
            if spec.dtype.startswith("list"):
                continue
            mine, yours = getattr(getattr(one, table.name), name), getattr(getattr(other, table.name), name)
            np.testing.assert_array_equal(mine, yours, err_msg=f"{table.name}.{name}")


def test_a_log_says_what_its_recording_says(run_and_log: tuple[Recording, list[bytes]], tmp_path: Path) -> None:
    recording, lines = run_and_log
    assert recording.num_preemptions > 0
    (tmp_path / eventlog.FILE_NAME).write_bytes(b"".join(lines))
    again = read(tmp_path)
    assert_same_columns(recording, again)
    assert again.meta.pool == recording.meta.pool


def test_whatever_a_crash_leaves_can_be_read_and_replayed(
    run_and_log: tuple[Recording, list[bytes]], tmp_path: Path
) -> None:
    _, lines = run_and_log
    text = b"".join(lines)
    ends = np.cumsum([len(line) for line in lines])
    for end in ends[:: max(1, len(ends) // 60)].tolist():
        for cut in (end, end + 3):  # after a line, and inside one
            (tmp_path / eventlog.FILE_NAME).write_bytes(text[:cut])
            recording = read(tmp_path)
            assert np.isfinite(recording.steps.end_s).all()
            if len(recording.steps):
                player = Replay(recording)
                player.seek(player.num_frames)
                assert (player.slots().sum(axis=1) == player.unit_tokens).all()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "is empty; a log begins with a line about its origin"),
        (b"not json\n", "line 1: not JSON"),
        (b'{"a": 1}\n', "line 1: an event should be a list"),
        (b'["seq"]\n', 'line 1: a log should begin with ["meta"'),
    ],
)
def test_a_log_that_does_not_begin_as_one(tmp_path: Path, line: bytes, complaint: str) -> None:
    (tmp_path / eventlog.FILE_NAME).write_bytes(line)
    with pytest.raises(RecordingError) as raised:
        read(tmp_path)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("engine", 5, "line 1: engine should be an object, not 5."),
        ("policy", 5, "line 1: policy should be an object, not 5."),
        (
            "policy",
            {"kv_offloading_block_size": 32, "block_size": [16]},
            "line 1: policy.block_size should be a whole number above 0, not [16].",
        ),
    ],
)
def test_a_wrong_value_in_the_first_line_is_named(tmp_path: Path, name: str, value: object, complaint: str) -> None:
    (tmp_path / eventlog.FILE_NAME).write_bytes(eventlog.line("meta", {name: value}))
    with pytest.raises(RecordingError) as raised:
        read(tmp_path)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    "event",
    [
        ["jump"],
        ["seq", 1],
        ["append", 99, 0, 5],
        ["emit", 99, 1.0, 1],
        ["output", 10_000, 1.0],
        ["end", 0, "vanished", 1.0],
        ["tokens", 0.0, [[99, 0, 1]]],
        ["arrive", "x", "soon", 1, 1, 0, []],
    ],
    ids=lambda event: event[0],
)
def test_a_line_that_cannot_follow_is_named(
    run_and_log: tuple[Recording, list[bytes]], tmp_path: Path, event: list[object]
) -> None:
    _, lines = run_and_log
    (tmp_path / eventlog.FILE_NAME).write_bytes(b"".join([*lines[:5], eventlog.line(*event)]))
    with pytest.raises(RecordingError, match=r"events\.jsonl, line 6: "):
        read(tmp_path)
