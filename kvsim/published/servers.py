"""The four servers of the PagedAttention paper, and its machine: OPT-13B on an A100 with 40 GB."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsim.hardware import GIB, find_gpu
from kvsim.machines import card_of, from_card
from kvsim.metrics import WasteShares, waste, waste_shares
from kvsim.metrics.gaps import Gaps
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, Reserve
from kvsim.replay import Replay
from kvsim.simulation import Machine
from kvsim.steptime.overheads import ARITHMETIC_EFFICIENCY, EAGER_LAYER_S, HF_ARITHMETIC_EFFICIENCY

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.policies import Policy
    from kvsim.recording import Recording

KV_BYTES = 12 * GIB
"""KV memory in bytes. Table 1 of the paper says 12 GB and 15.7K slots; 12 GiB / 800 KiB is 15,728.6."""
HOST_STEP_S = 5e-3
"""Host seconds per step in the Python engines of 2023, in which the GPU does not compute."""
HOST_SEQUENCE_S = 0.101e-3
"""Host seconds per step and sequence, for sampling, bookkeeping and detokenization.

The paper states neither this time nor `HOST_STEP_S`. Both were chosen to match vLLM's two batches in Figure 13.
"""
WARM_UP = 0.1
"""Share of a run's steps, at its beginning, that averages leave out, because the sequences start together."""

_SCHEDULER = ContinuousSettings(
    max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=2048, async_scheduling=False
)


def orca(reserve: Reserve) -> Contiguous:
    """Return Orca as the authors of the paper rebuilt it: iteration-level scheduling and a buddy allocator.

    `reserve` decides how much memory is reserved for each request.
    """
    return Contiguous(scheduler=_SCHEDULER, cache=ContiguousSettings(reserve=reserve, fit="buddy"))


def vllm(block_size: int = 16, *, prefix_caching: bool = False) -> Paged:
    """Return the policy of vLLM, with paging."""
    return Paged(scheduler=_SCHEDULER, cache=PagedSettings(block_size=block_size, enable_prefix_caching=prefix_caching))


SERVERS: dict[str, Policy] = {
    "Orca (Max)": orca(Reserve.MAX),
    "Orca (Pow2)": orca(Reserve.POW2),
    "Orca (Oracle)": orca(Reserve.ORACLE),
    "vLLM": vllm(),
}
"""Policies of the servers in the paper, in its order."""


def machine(policy: Policy, model: Model | None = None) -> Machine:
    """Return the machine for `policy` with 12 GiB of KV memory. Without `model`, it serves OPT-13B.

    The engines of 2023 launched PyTorch's kernels one by one, and are assumed to compute as fast as Hugging Face's.
    """
    model = model or find_model("facebook/opt-13b")
    gpu = find_gpu("A100-40G")
    times = from_card(card_of(gpu), gpu, model, "vllm", captured=False)
    # The first vLLM had no null block. The policy reserves one, so the pool gets one block more.
    null_bytes = policy.unit_tokens * model.kv_bytes_per_token if isinstance(policy, Paged) else 0
    return Machine(
        gpu=gpu,
        model=model,
        kv_bytes=KV_BYTES + null_bytes,
        step_time=replace(
            times,
            label=f"{times.label}, an engine of 2023",
            token_s=times.token_s * ARITHMETIC_EFFICIENCY / HF_ARITHMETIC_EFFICIENCY,
            eager_launch_s=model.num_layers * EAGER_LAYER_S,
            power_share=0.0,  # with gaps between kernels, the GPU stays below its power limit
            host_step_s=HOST_STEP_S,
            host_sequence_s=HOST_SEQUENCE_S,
            sampling_share=0.0,  # the GPU does not compute in these host times
        ),
    )


def saturated_shares(recording: Recording) -> WasteShares:
    """Return the mean shares of the pool by state, from the warm-up's end to the last step with waiting requests."""
    slots = waste(recording).with_gaps()
    last = int(np.flatnonzero(recording.steps.waiting)[-1])
    begin_s, end_s = recording.steps.start_s[[int(WARM_UP * last), last]]
    window = (slots.time_s >= begin_s) & (slots.time_s <= end_s)
    return waste_shares(replace(slots, time_s=slots.time_s[window], slots=slots.slots[window], held=slots.held[window]))


def mean_running(recording: Recording, until_s: float) -> float:
    """Return the mean number of running sequences over time, from the end of the warm-up to `until_s`."""
    since_s, running = Gaps.of(Replay(recording)).over_time(recording, "running")
    window = (since_s[:-1] >= WARM_UP * until_s) & (since_s[:-1] < until_s)
    return float(np.average(running[:-1][window], weights=np.diff(since_s)[window]))
