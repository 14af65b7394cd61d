"""Server and load of a recording, to simulate changes of that server with `kvsim.fitting`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kvsim.calibration.machines import pace_of
from kvsim.calibration.observed import observe, with_offload
from kvsim.calibration.predict import scaled_errors
from kvsim.conformance.comparable import host_blocks_of
from kvsim.engine.host.tiered import TIERED
from kvsim.engine.paged.kv_cache import PAGED
from kvsim.errors import BudgetError, UsageError
from kvsim.experiments.recorded_run import as_sent, is_stamped_at_entry, policy_of, users_of
from kvsim.fitting import Load, Server, engine_for
from kvsim.hardware import find_gpu
from kvsim.machines import is_in_process, served_model
from kvsim.policies import Paged
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.setting_fields import values_of
from kvsim.steptime import TYPICAL, Pace, Roofline

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import EngineName

_LEAST_SHARE = 0.9
"""A pool with at least this share of the blocks that fit into the GPU counts as sized by vLLM, others by the user."""


def load_of(recording: Recording) -> Load:
    """Return the requests as they were sent: at fixed times, or by users who waited for their previous answers."""
    return Load(
        workload=as_sent(recording),
        users=users_of(recording),
        stamp_at_entry=is_stamped_at_entry(recording),
        repeats=False,
    )


RUNS_BESIDE_CHANGES = 20
"""Typical number of runs of a diagnosis, beside those of the changes."""


def engine_of(recording: Recording, num_runs: int) -> EngineName:
    """Choose compiled or interpreted simulation, whichever takes less time for `num_runs` runs of the recording."""
    memory = TIERED if host_blocks_of(recording.meta) > 0 else PAGED
    return engine_for(load_of(recording), num_runs, memory)


def server_of(recording: Recording, times: str | None = None) -> Server:
    """Return the recorded server with the pool that it had.

    `times` is a profile or a machine card for its step times; None for the best that comes with kvsim.

    Raises:
        UsageError: the server had no paged cache, or its settings or its pool are not known.
    """
    meta, engine = recording.meta, {**recording.meta.policy, **recording.meta.engine}
    pool = meta.pool
    if meta.policy_name != "paged" or pool.num_units is None:
        raise UsageError(
            f"{recording.name} is of {meta.policy_name} batches; kvsim diagnose is for servers with a paged cache."
        )
    policy, kv_bytes = policy_of(recording)
    assert isinstance(policy, Paged)
    num_blocks = pool.num_units + pool.first_unit
    server = Server(
        gpu=find_gpu(meta.gpu),
        model=served_model(meta),
        gpu_memory_utilization=float(engine.get("gpu_memory_utilization", 0.92)),
        block_size=policy.cache.block_size,
        enable_prefix_caching=policy.cache.enable_prefix_caching,
        watermark=policy.cache.watermark,
        cache=policy.cache,
        captured=not engine.get("enforce_eager"),
        in_process=is_in_process(meta),
        times=times,
        **values_of(policy.scheduler),
    )
    server = replace(server, pace=_pace(recording, server))
    try:
        account = server.budget()
    except BudgetError:
        return replace(server, num_blocks=num_blocks).starting()
    if num_blocks < _LEAST_SHARE * account.num_blocks or meta.source == "simulation":
        return replace(server, num_blocks=num_blocks).starting()
    return replace(server, unaccounted_bytes=kv_bytes - account.kv_bytes)


def _pace(recording: Recording, server: Server) -> Pace:
    """Return the factors by which the recorded host and GPU were slower than the step times of `server` predict.

    Hosts differ by up to a third. The factors are 1 for a recorded simulation, and for custom step times.
    """
    usual = server.step_time()
    times = usual.times if isinstance(usual, WatchedProfile) else usual
    if recording.meta.source == "simulation" or not isinstance(times, Roofline):
        return TYPICAL
    observed = with_offload(observe(recording), recording, server.cache, server.model.num_layers)
    return pace_of([observed], partial(scaled_errors, times))
