"""Memory follows what happened in a pool, not the size that it is said to have."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.errors import RecordingError
from kvsim.metrics import summarize
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import Recording, read, write
from kvsim.recording.model import MAX_POOL_BYTES, MAX_UNITS
from kvsim.simulation import simulate
from kvsim.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def in_large_pool(make_machine: Callable[[int], Any]) -> Recording:
    """A few steps in the largest pool that there may be."""
    workload = Workload(arrival_s=np.zeros(3), prompt_tokens=[20] * 3, output_tokens=[5] * 3)
    run = simulate(workload, Paged(scheduler=ContinuousSettings(max_model_len=64)), make_machine(640))
    assert run.meta.pool.num_units is not None
    free = run.steps.free_units.astype(np.int64) + MAX_UNITS - run.meta.pool.num_units
    meta = replace(run.meta, pool=replace(run.meta.pool, num_units=MAX_UNITS), initial_free=None)
    return replace(run, meta=meta, steps=replace(run.steps, free_units=free))


def test_what_became_of_a_large_pool_takes_little_memory(in_large_pool: Recording) -> None:
    tracemalloc.start()
    try:
        found = summarize(in_large_pool)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.num_finished == 3
    assert peak < MAX_UNITS, "less than a byte for each unit"


def test_a_pool_larger_than_any_memory_is_refused(make_machine: Callable[[int], Any], tmp_path: Path) -> None:
    workload = Workload(arrival_s=np.zeros(3), prompt_tokens=[20] * 3, output_tokens=[5] * 3)
    run = simulate(workload, Paged(scheduler=ContinuousSettings(max_model_len=64)), make_machine(640))
    meta = write(run, tmp_path / "rec") / "meta.json"
    document = json.loads(meta.read_text())
    pool = document["pool"]
    for claimed, said in (
        ({"num_units": MAX_UNITS + 1}, "pool.num_units should be at most"),
        ({"num_units": MAX_UNITS, "bytes_per_unit": MAX_POOL_BYTES // MAX_UNITS + 1}, "is larger than the 32 TiB"),
    ):
        meta.write_text(json.dumps(document | {"pool": pool | claimed}))
        with pytest.raises(RecordingError, match=said):
            read(tmp_path / "rec")
