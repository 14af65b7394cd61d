"""Step times of a run whose server speculates or serves adapters, and the label of these times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.machines.known_errors import (
    ADAPTERS_BY_CONSTANTS,
    DRAFTS_BY_CONSTANTS,
    N_GRAMS_BY_CONSTANTS,
    served_otherwise,
)
from kvsim.policies import Paged, Policy, Radix
from kvsim.policies.drafter import drafter_of
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.steptime import Roofline, StepTimeModel
from kvsim.steptime.features import MEASURED_METHODS, with_adapters, with_drafting, with_n_grams
from kvsim.steptime.overheads import MAX_CAPTURED_TOKENS

if TYPE_CHECKING:
    from kvsim.policies.settings import ContinuousSettings
    from kvsim.simulation.machine import Machine
    from kvsim.workload import Workload

_LARGEST_RANK = 16
"""Largest rank of adapters whose time was measured."""


class FeatureTimes(NamedTuple):
    """Step times of a run, and their label."""

    step_time: StepTimeModel
    label: str
    """Label of the step times. It names the features whose time is left out, and those whose time is a constant."""


def feature_times(machine: Machine, base: Policy, workload: Workload) -> FeatureTimes:
    """Return the step times of `machine` with those features of the run whose time was measured."""
    label = machine.step_time.label
    if isinstance(base, Radix):
        return FeatureTimes(
            machine.step_time, served_otherwise(label, {"SGLang": "the pace of SGLang's host"}, engine="SGLang")
        )
    profile = machine.step_time if isinstance(machine.step_time, WatchedProfile) else None
    times = machine.step_time if profile is None else profile.times
    untimed = {}  # kind of measurement -> what the times lack, in the words of the label
    constants: list[str] = []
    if isinstance(base, Paged) and base.scheduler.drafting is not None:
        drafted = _with_drafting(times, machine, base.scheduler)
        untimed["drafts"] = "drafting" if drafted is None else ""
        if drafted is not None:
            times = drafted
            constants.append(N_GRAMS_BY_CONSTANTS if base.scheduler.drafting.looks_up else DRAFTS_BY_CONSTANTS)
    if workload.adapter.any():
        named = np.unique(workload.adapter[workload.adapter > 0])
        adapted = _with_adapters(times, machine, base, num_named=len(named))
        untimed["adapters"] = "kernels of adapters" if adapted is None else ""
        if adapted is not None:
            times = adapted
            constants.append(ADAPTERS_BY_CONSTANTS)
    if workload.images is not None:
        untimed["images"] = "the encoder" if machine.model.vision is None else ""
    if machine.model.decode_context_parallel_size > 1:
        untimed["divided contexts"] = "what GPUs exchange of divided contexts"
    if not constants:
        return FeatureTimes(machine.step_time, served_otherwise(label, untimed))
    assert isinstance(times, Roofline)
    made = times if profile is None else profile.with_times(times)
    return FeatureTimes(made, served_otherwise(label, untimed, constants="; ".join(constants)))


def _is_measured(times: Roofline) -> bool:
    """Tell whether `times` are those of the engine in which features were measured: one GPU, with captured graphs."""
    return times.max_captured_tokens > 0 and times.piecewise_launch_s > 0


def _with_adapters(times: StepTimeModel, machine: Machine, base: Policy, *, num_named: int) -> Roofline | None:
    """Return `times` with the kernels of adapters; None if the time of such adapters was not measured.

    Measured are ranks up to `_LARGEST_RANK`. `num_named` is the number of adapters that requests name.
    """
    if not isinstance(base, Paged) or not isinstance(times, Roofline) or not _is_measured(times):
        return None
    if base.scheduler.max_lora_rank > _LARGEST_RANK:
        return None
    in_a_step = min(num_named, base.scheduler.max_loras)
    return with_adapters(times, num_layers=machine.model.num_layers, num_adapters=in_a_step)


def _with_drafting(times: StepTimeModel, machine: Machine, settings: ContinuousSettings) -> Roofline | None:
    """Return `times` with drafting; None if the time of such drafting was not measured.

    Measured are n-grams, and EAGLE heads and draft models that draft equally many tokens in every step, one in each
    pass.
    """
    config = settings.drafting
    assert config is not None
    if not isinstance(times, Roofline) or not _is_measured(times):
        return None
    if config.method not in MEASURED_METHODS or config.is_parallel or config.by_batch:
        return None
    times = _with_graphs_of_drafts(times, config.num_tokens)
    drafter, model = drafter_of(config, machine.model), machine.model
    bandwidth = machine.gpu.bandwidth_bytes_per_s
    logits_read_s = model.vocab_size / bandwidth
    if drafter is None:
        return with_n_grams(times, num_drafts=config.num_tokens, logits_read_s=logits_read_s)
    return with_drafting(
        times,
        model_layers=model.num_layers,
        num_layers=len(drafter.layers),
        num_drafts=config.num_tokens,
        read_s=drafter.weight_bytes / bandwidth,
        logits_read_s=logits_read_s,
    )


def _with_graphs_of_drafts(times: Roofline, num_drafts: int) -> Roofline:
    """Return `times` of a server that captures graphs for its largest decode step with drafts.

    vLLM captures steps of up to twice as many tokens as the largest decode step has, at most `MAX_CAPTURED_TOKENS`
    (`_set_cudagraph_sizes` in vLLM's `config/vllm.py`). `times` captures those without drafts.
    """
    captured = min(times.max_captured_tokens * (1 + num_drafts), MAX_CAPTURED_TOKENS)
    return replace(times, max_captured_tokens=max(captured, times.max_captured_tokens))
