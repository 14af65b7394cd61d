"""Describe a recording for calibration: the contents of each step, and its times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.hf_memory import batches_of, earlier_batches
from kvsim.machines import host_link, served_model
from kvsim.models import Model
from kvsim.policies.settings import PagedSettings
from kvsim.recording import Recording
from kvsim.recording.order import units_of_runs
from kvsim.recording.tables import CopyKind, FloatArray, IntArray, Steps
from kvsim.steptime import TYPICAL, Pace, StepShape
from kvsim.steptime.card import Card
from kvsim.steptime.kernels import KernelsSeen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """The steps of one recording, in order."""

    name: str
    machine: str
    """Machine of the recording; its own name if the machine is not stated."""
    eager: bool
    """True if the engine captured no graphs."""
    shape: StepShape
    """Arrays, one entry per step."""
    start_s: FloatArray
    """Times at which the steps were scheduled, in seconds: one entry per step."""
    end_s: FloatArray
    """Times at which the outputs of the steps had been processed, in seconds: one entry per step."""
    launched_before_output: IntArray
    """Last step that was scheduled before each step's output was processed: the host was busy with it until then."""
    next_step: IntArray
    """Step that was scheduled right after each step's output; -1 if the engine did something else first."""

    launch_s: FloatArray
    """Seconds that the host was busy with each step, if it went straight on to the next; else NaN."""
    entry_gap_s: FloatArray
    """Seconds between two requests that the engine received one after the other without doing anything else."""
    entry_prompt_tokens: IntArray
    """Prompt tokens of the second request of each such pair."""
    offload_s: FloatArray
    """Seconds that the host spent on copies between GPU and host memory before each launch; zeros without an offload,
    or if its costs are unknown (`with_offload`)."""
    pace: Pace = TYPICAL
    """Assumed pace of the machine."""

    def __len__(self) -> int:
        return len(self.start_s)


def observe(recording: Recording) -> Observed:
    """Return the steps of `recording`, from its schedule.

    Raises:
        UsageError: its engine had the stages of a pipeline at work on several steps at once.
    """
    if int({**recording.meta.model, **recording.meta.engine}.get("pipeline_parallel_size", 1)) > 1:
        raise UsageError(
            f"{recording.name} is of a pipeline, whose stages work on several steps at once; step times are fitted to "
            "recordings of engines with one stage."
        )
    schedule, steps = recording.schedule, recording.steps
    index, nth = units_of_runs(schedule.repeats)
    step = schedule.step[index] + nth
    tokens = schedule.tokens[index].astype(np.float64)
    before = schedule.computed_before[index] + tokens * nth
    prefill = (tokens > 1) | (before < recording.requests.prompt_tokens[schedule.request[index]])

    def per_step(values: FloatArray) -> Any:
        return np.bincount(step, values, len(steps))

    launched = np.searchsorted(steps.schedule_seq, steps.output_seq) - 1
    following = np.minimum(launched + 1, len(steps) - 1)
    direct = (launched + 1 < len(steps)) & (steps.schedule_seq[following] == steps.output_seq + 1)
    requests = recording.requests
    order = np.argsort(requests.arrival_seq)
    together = np.flatnonzero(np.diff(requests.arrival_seq[order]) == 1)
    return Observed(
        name=recording.name,
        machine=str(recording.meta.extra.get("machine", recording.name)),
        eager=bool(recording.meta.engine.get("enforce_eager")),
        shape=StepShape(
            num_seqs=per_step(np.ones(len(step))),
            num_tokens=per_step(tokens),
            num_prefill_tokens=per_step(tokens * prefill),
            context_tokens=per_step(before + tokens),
            attention_pairs=per_step(prefill * (tokens * before + tokens * (tokens + 1) / 2)),
            **_first_uses(recording),
            shared_tokens=_shared_tokens(recording, per_step(before + tokens)),
            num_new_seqs=per_step(_joins(schedule.request[index], step, before, tokens)),
        ),
        start_s=steps.start_s,
        end_s=steps.end_s,
        launched_before_output=launched,
        next_step=np.where(direct, following, -1),
        launch_s=_launches(steps),
        entry_gap_s=np.diff(requests.arrival_s[order])[together],
        entry_prompt_tokens=requests.prompt_tokens[order][together + 1],
        offload_s=np.zeros(len(steps)),
    )


def check_distinct(recordings: Sequence[Recording]) -> None:
    """Check that no recording is given twice: it would count double in a fit, and could not be held out.

    Raises:
        UsageError: two of `recordings` are one and the same run.
    """
    for index, item in enumerate(recordings):
        for other in recordings[:index]:
            if np.array_equal(item.steps.start_s, other.steps.start_s) and len(item.steps):
                copy = "twice" if item.name == other.name else f"once more as {item.name}"
                raise UsageError(f"{other.name} is there {copy}; give each recording once.")


def observe_on(card: Card, recording: Recording) -> Observed:
    """Return the steps of `recording`, with the costs of an offload on a host as fast as the card's."""
    costs: dict[str, Any] = host_link(card)
    num_layers = served_model(recording.meta).num_layers
    return with_offload(observe(recording), recording, PagedSettings(**costs), num_layers)


def with_offload(observed: Observed, recording: Recording, cache: PagedSettings, num_layers: int) -> Observed:
    """Add the host time of the offload of `recording` to `observed`, by the costs in `cache`.

    Each step has a cost per sequence. A load is submitted in the step that decides it, a store in the next step. Each
    copy has as many pieces as it has blocks on the GPU times layers.
    """
    copies, num_steps = recording.copies, len(observed)
    if copies is None:
        return observed
    handed_in = copies.begun_step + (copies.kind == CopyKind.STORE)
    there = handed_in < num_steps
    first = np.unique(copies.copy[there], return_index=True)[1]
    num_copies = np.bincount(handed_in[there][first], minlength=num_steps)
    num_blocks = np.bincount(handed_in[there], minlength=num_steps)
    offload_s = (
        cache.offload_step_s
        + cache.offload_sequence_s * observed.shape.num_seqs
        + cache.copy_submit_s * num_copies
        + cache.copy_piece_s * num_layers * num_blocks
    )
    return replace(observed, offload_s=offload_s)


def _launches(steps: Steps) -> FloatArray:
    """Return the time to the next schedule call, if no output was processed in between; else NaN."""
    lasted = np.append(np.diff(steps.start_s), np.nan)
    output_before = np.append(-np.inf, steps.end_s[:-1])
    output_between = np.append(steps.start_s[1:], np.inf) >= steps.end_s
    return np.where((output_before <= steps.start_s) & ~output_between, lasted, np.nan)


def _joins(request: IntArray, step: IntArray, before: FloatArray, tokens: FloatArray) -> FloatArray:
    """Return 1 for each schedule row in which a sequence joins the batch: its first, or one that recomputes lost
    tokens."""
    order = np.lexsort((step, request))
    goes_on = np.diff(request[order], prepend=-1) == 0
    had = np.append(0.0, (before + tokens)[order][:-1])
    joins = np.empty(len(order))
    joins[order] = ~goes_on | (before[order] < had)
    return joins


def _shared_tokens(recording: Recording, context_tokens: FloatArray) -> Any:
    """Return the tokens that each step of a paged cache reads more than once: read tokens beyond the slots in use."""
    pool = recording.meta.pool
    if pool.num_units is None or pool.groups:  # blocks of several groups hold different numbers of tokens
        return np.zeros(len(context_tokens))
    held_slots = (pool.num_units - recording.steps.free_units.astype(np.float64)) * pool.unit_tokens
    return np.maximum(context_tokens - held_slots, 0.0)


def _first_uses(recording: Recording) -> dict[str, Any]:
    """Return the shapes and kernels that each step of `generate()` is the first of its process to need; else zeros."""
    if recording.meta.policy_name != "static":
        none = np.zeros(len(recording.steps))
        return {"new_shape": none, "new_kernels": none}
    gpu, model = find_gpu(recording.meta.gpu), Model.from_shape(recording.meta.model)
    kernels = KernelsSeen(gpu, model, earlier_batches(recording))
    uses = [kernels.run(batch) for batch in batches_of(recording)]
    return {
        "new_shape": np.concatenate([each.shapes for each in uses]),
        "new_kernels": np.concatenate([each.kernels for each in uses]),
    }
