"""Seeking in a recording of a million memory events: `pytest benchmarks/bench_replay.py --benchmark-only`.

A thousand sequences run at once in a pool of 30,000 blocks; each grows by a block every sixteenth step, leaves after 24
of them and makes room for the next. The bar is a seek well under a millisecond, forward or backward, near or far.

A run of two million steps, with five sequences at a time, opens from the disk within two seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.recording import Meta, Pool, Recording, RecordingBuilder, RequestStatus, read
from kvsim.replay import Replay
from kvsim.simulation import Machine, record
from kvsim.workload import LogNormal, Poisson, generate

if TYPE_CHECKING:
    from pathlib import Path

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
                builder.begin_event()
                num_events += 1
            builder.scheduled(rows[slot], len(tables[slot]) * BLOCK, BLOCK, float(step))
            builder.append_blocks(rows[slot], len(tables[slot]), [free[-1]])
            tables[slot].append(free.pop())
            num_events += 1
        number = builder.step(start_s=float(step), num_scheduled=NUM_RUNNING, running=NUM_RUNNING, free_units=len(free),
                              prefill_tokens=0, decode_tokens=0, waiting=0, preempted=0)  # fmt: skip
        builder.begin_event()
        builder.output(number, step + 1.0)
        builder.begin_event()
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
        player.slots(player.changed_units(before, player.frame))

    benchmark(step)


@pytest.fixture(scope="module")
def two_million_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    machine = Machine(gpu=gpu, model=model, kv_bytes=112 << 30, step_time=step_times(gpu, model, "vllm"))
    prompt, output = LogNormal(mean_tokens=161, sigma=1), LogNormal(mean_tokens=338, sigma=1)
    workload = generate(32_000, arrivals=Poisson(rate_per_s=3), prompt=prompt, output=output, seed=0)
    return record(workload, Paged(), machine, tmp_path_factory.mktemp("long") / "run")


def test_open_two_million_steps(benchmark: BenchmarkFixture, two_million_steps: Path) -> None:
    player = benchmark.pedantic(lambda: Replay(read(two_million_steps)), rounds=3)  # type: ignore[no-untyped-call]
    assert player.num_frames > 2_000_000


def test_seek_anywhere_in_two_million_steps(benchmark: BenchmarkFixture, two_million_steps: Path) -> None:
    player = Replay(read(two_million_steps))
    frames = iter(np.random.default_rng(0).integers(0, player.num_frames, 100_000).tolist() * 10)
    benchmark(lambda: player.seek(next(frames)))
