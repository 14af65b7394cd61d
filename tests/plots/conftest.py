"""Recordings to draw: one small run of each kind, made by hand, and the real ones that come with kvsim."""

from __future__ import annotations

import pytest

from kvsim.recording import Meta, Pool, Recording, RecordingBuilder, RequestStatus, find, read


def extents(
    *, step_time: str = "", step_s: float = 1.0, name: str = "by-hand", bytes_per_slot: int = 1024
) -> Recording:
    """Two requests in a pool of 40 slots: 4 prompt and 4 output tokens each, 12 slots asked for and 16 given."""
    builder = RecordingBuilder()
    for request in range(2):
        builder.arrived(f"r{request}", 0.0, 4, 4)
    for step in range(4):
        builder.begin_event()
        for request in range(2):
            if not step:
                builder.append_extent(request, 0, 16 * request, 16, 12)
            builder.scheduled(request, step + 3 if step else 0, 1 if step else 4, step * step_s)
        columns = {"prefill_tokens": 0, "decode_tokens": 0, "num_scheduled": 2, "running": 2, "waiting": 3 - step}
        number = builder.step(**columns, preempted=int(step == 2), free_units=8, start_s=step * step_s)
        builder.begin_event()
        builder.output(number, (step + 1) * step_s)
        for request in range(2):
            builder.emitted(request, (step + 1) * step_s)
            if step == 3:
                builder.ended(request, RequestStatus.FINISHED, (step + 1) * step_s)
                builder.release(request, 16, 0)
    meta = Meta(
        source="simulation",
        engine={"name": "kvsim", "step_time": step_time},
        gpu="A GPU",
        model={"name": "tiny"},
        policy={"name": "contiguous", "reserve": "max"},
        pool=Pool(unit_tokens=1, num_units=40, bytes_per_unit=bytes_per_slot),
    )
    return builder.finish(meta, name=name)


@pytest.fixture(scope="session")
def by_hand() -> Recording:
    """The small run: 8 to 14 tokens, 2 x 4 slots never written, 2 x 4 rounded up, 8 free."""
    return extents()


@pytest.fixture(scope="session")
def uncalibrated() -> Recording:
    """The same with a clock that nobody calibrated."""
    return extents(step_time="uncalibrated roofline of A GPU", name="guess")


@pytest.fixture(scope="session")
def frozen() -> Recording:
    """The same on a clock that stands still."""
    return extents(step_s=0.0)


@pytest.fixture(scope="session")
def paged() -> Recording:
    """A real run of vLLM in a pool that is too small."""
    return read(find("vllm-h200-llama-3-8b-sharegpt-pressure"))


@pytest.fixture(scope="session")
def static() -> Recording:
    """A real run of `generate()`."""
    return read(find("hf-h200-granite-350m-batch500"))
