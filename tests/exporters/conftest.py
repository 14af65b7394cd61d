"""A run to export: small, with prefix hits, preemptions and a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import Machine, simulate
from kvsim.workload import Ragged, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording


@pytest.fixture(scope="session")
def run(make_machine: Callable[[int], Machine]) -> Recording:
    """Twelve requests in a pool that is too small for them, and one that fits no pool."""
    hashes = [[100, 200 + row, 300 + row, 400 + row] for row in range(12)]
    workload = Workload(
        arrival_s=np.arange(13) * 0.001,
        prompt_tokens=[70] * 12 + [5000],
        output_tokens=[30] * 13,
        prompt_hashes=Ragged.from_rows([*hashes, []], np.int64),
        hash_unit_tokens=16,
    )
    policy = Paged(
        scheduler=ContinuousSettings(max_model_len=256, max_num_batched_tokens=256), cache=PagedSettings(block_size=16)
    )
    recording = simulate(workload, policy, make_machine(480), refuse_misfits=True)
    assert recording.num_preemptions
    assert recording.requests.cached_tokens.any()
    return recording
