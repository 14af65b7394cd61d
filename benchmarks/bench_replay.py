"""Seeking in a recording of a million memory events: `pytest benchmarks/bench_replay.py --benchmark-only`.

A thousand sequences run at once in a pool of 30,000 blocks; each grows by a block every sixteenth step, leaves after 24
of them and makes room for the next. The bar is a seek well under a millisecond, forward or backward, near or far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.recording import Meta, Pool, Recording, RecordingBuilder, Replay, RequestStatus

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

NUM_EVENTS = 1_000_000
NUM_RUNNING = 1_000
NUM_UNITS = 30_000
BLOCK = 16
BLOCKS_PER_REQUEST = 24


def long_recording() -> Recording:
    """In every step, the sixteenth part of the requests gets a block each; the full ones leave, and others come."""
    builder, free = RecordingBuilder(), list(range(1, NUM_UNITS + 1))
    rows = [builder.arrived(f"r{slot}", 0.0, BLOCK, BLOCK * BLOCKS_PER_REQUEST) for slot in range(NUM_RUNNING)]
    tables: list[list[int]] = [[] for _ in rows]
    num_events = step = 0
    while num_events < NUM_EVENTS:
        for slot in range(step % BLOCK, NUM_RUNNING, BLOCK):
            if len(tables[slot]) == BLOCKS_PER_REQUEST:
                builder.release(rows[slot], BLOCKS_PER_REQUEST, 0)
                builder.ended(rows[slot], RequestStatus.FINISHED, float(step))
                free += reversed(tables[slot])
                tables[slot] = []
                rows[slot] = builder.arrived(f"r{slot}-{step}", float(step), BLOCK, BLOCK * BLOCKS_PER_REQUEST)
                builder.next_seq()
                num_events += 1
            builder.scheduled(rows[slot], len(tables[slot]) * BLOCK, BLOCK, float(step))
            builder.append_blocks(rows[slot], len(tables[slot]), [free[-1]])
            tables[slot].append(free.pop())
            num_events += 1
        number = builder.step(start_s=float(step), num_scheduled=NUM_RUNNING, running=NUM_RUNNING, free_units=len(free),
                              prefill_tokens=0, decode_tokens=0, waiting=0, preempted=0)  # fmt: skip
        builder.next_seq()
        builder.output(number, step + 1.0)
        builder.next_seq()
        step += 1
    pool = Pool(unit_tokens=BLOCK, num_units=NUM_UNITS, first_unit=1, bytes_per_unit=1)
    return builder.finish(Meta(source="simulation", engine={}, gpu="", model={}, policy={"name": "paged"}, pool=pool))


@pytest.fixture(scope="module")
def recording() -> Recording:
    return long_recording()


@pytest.fixture(scope="module")
def player(recording: Recording) -> Replay:
    return Replay(recording)


def test_open(benchmark: BenchmarkFixture, recording: Recording) -> None:
    assert len(recording.memory) >= NUM_EVENTS
    benchmark.pedantic(Replay, args=(recording,), rounds=3)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("direction", [1, -1], ids=["forward", "backward"])
def test_one_step(benchmark: BenchmarkFixture, player: Replay, direction: int) -> None:
    player.seek(player.num_frames // 2)
    benchmark(lambda: player.seek((player.frame + direction) % player.num_frames))


def test_seek_anywhere(benchmark: BenchmarkFixture, player: Replay) -> None:
    frames = iter(np.random.default_rng(0).integers(0, player.num_frames, 100_000).tolist() * 10)
    benchmark(lambda: player.seek(next(frames)))


def test_what_a_step_of_the_interface_asks_for(benchmark: BenchmarkFixture, player: Replay) -> None:
    player.seek(player.num_frames // 2)

    def step() -> None:
        before = player.frame
        player.seek((before + 1) % player.num_frames)
        player.slots(player.touched(before, player.frame))

    benchmark(step)
