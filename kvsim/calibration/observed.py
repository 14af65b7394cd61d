"""Recording as the arrays that calibration needs: the contents of each step, and its recorded times."""

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
from kvsim.recording.order import expanded
from kvsim.recording.tables import CopyKind, FloatArray, ImageEventKind, IntArray, Steps
from kvsim.steptime import TYPICAL, Pace, StepShape
from kvsim.steptime.card import Card
from kvsim.steptime.kernels import KernelsSeen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """Steps of one recording in order. Arrays have one entry per step unless their text says otherwise."""

    name: str
    machine: str
    """Name of the machine; the name of the recording if it states no machine."""
    eager: bool
    """True if the engine captured no graphs."""
    shape: StepShape
    """Contents of the steps. Each field is an array with one entry per step."""
    start_s: FloatArray
    """Time in seconds at which each step was scheduled."""
    end_s: FloatArray
    """Time in seconds at which the output of each step had been processed."""
    last_launched_before_output: IntArray
    """Index of the last step that was scheduled before the output of each step: at least the step's own index."""
    next_step: IntArray
    """Index of the step that was scheduled right after the output of each step; -1 if there is none, or if another
    event, such as an arrival, came first.
    """
    launch_s: FloatArray
    """Seconds in which the host scheduled and launched each step, from its start to the start of the next step. NaN if
    the output of the previous step, or of this one, was processed in between.
    """
    entry_gap_s: FloatArray
    """Seconds between two requests that the engine received directly after each other; one entry per such pair."""
    entry_prompt_tokens: IntArray
    """Number of prompt tokens of the second request of each pair in `entry_gap_s`."""
    offload_s: FloatArray
    """Seconds that the host spent on copies to and from host memory before each launch; 0 until `with_offload` sets
    them.
    """
    pace: Pace = TYPICAL
    """Factors on host and GPU times with which the steps are predicted. By default, both are 1."""

    def __len__(self) -> int:
        return len(self.start_s)


def refuse_rank(recording: Recording) -> None:
    """Refuse the recording of a data-parallel rank, because its steps wait for those of other ranks.

    Raises:
        UsageError: the server had several data-parallel ranks.
    """
    if (num_ranks := int(recording.meta.engine.get("data_parallel_size", 1))) > 1:
        raise UsageError(
            f"{recording.name} is of one of {num_ranks} data-parallel ranks, whose steps wait for those of the others, "
            f"so its times are not its own; kvsim run --data-parallel-size {num_ranks} simulates all ranks."
        )


def observe(recording: Recording) -> Observed:
    """Return the steps of `recording`. Their contents come from its table `schedule`.

    Raises:
        UsageError: the engine had a pipeline, whose stages work on several steps at once, or was a data-parallel rank
            that waited for other ranks.
    """
    refuse_rank(recording)
    if int({**recording.meta.model, **recording.meta.engine}.get("pipeline_parallel_size", 1)) > 1:
        raise UsageError(
            f"{recording.name} is of a pipeline, whose stages work on several steps at once; step times are fitted to "
            "recordings of engines with one stage."
        )
    steps, requests = recording.steps, recording.requests
    launched = np.searchsorted(steps.schedule_seq, steps.output_seq) - 1
    following = np.minimum(launched + 1, len(steps) - 1)
    direct = (launched + 1 < len(steps)) & (steps.schedule_seq[following] == steps.output_seq + 1)
    order = np.argsort(requests.arrival_seq)
    together = np.flatnonzero(np.diff(requests.arrival_seq[order]) == 1)
    return Observed(
        name=recording.name,
        machine=str(recording.meta.extra.get("machine", recording.name)),
        eager=bool(recording.meta.engine.get("enforce_eager")),
        shape=_shape_of(recording),
        start_s=steps.start_s,
        end_s=steps.end_s,
        last_launched_before_output=launched,
        next_step=np.where(direct, following, -1),
        launch_s=_launch_times_s(steps),
        entry_gap_s=np.diff(requests.arrival_s[order])[together],
        entry_prompt_tokens=requests.prompt_tokens[order][together + 1],
        offload_s=np.zeros(len(steps)),
    )


def _shape_of(recording: Recording) -> StepShape:
    """Return the contents of the steps. Each field has one entry per step."""
    schedule, num_steps = recording.schedule, len(recording.steps)
    # A schedule row covers several steps: these arrays have one entry for each row and step.
    row, nth = expanded(schedule.repeats)
    step = schedule.step[row] + nth
    tokens = schedule.tokens[row].astype(np.float64)
    before = schedule.computed_before[row] + tokens * nth
    # Of several tokens, all but the first may be drafts, which are verified like decodes.
    decodes = tokens == 1 if schedule.known is None else before + 1 >= schedule.known[row]
    prefill = ~decodes | (before < recording.requests.prompt_tokens[schedule.request[row]])

    def per_step(values: FloatArray) -> Any:
        return np.bincount(step, values, num_steps)

    context_tokens = per_step(before + tokens)
    return StepShape(
        num_seqs=per_step(np.ones(len(step))),
        num_tokens=per_step(tokens),
        num_prefill_tokens=per_step(tokens * prefill),
        context_tokens=context_tokens,
        # The n-th new token attends to the tokens before it and to n new ones.
        attention_pairs=per_step(prefill * (tokens * before + tokens * (tokens + 1) / 2)),
        **_first_uses(recording),
        shared_tokens=_shared_tokens(recording, context_tokens),
        num_new_seqs=per_step(_joins(schedule.request[row], step, before, tokens)),
        **_encoded(recording),
    )


def _encoded(recording: Recording) -> dict[str, Any]:
    """Return the image fields of `StepShape` for each step: the number of images that are encoded, of their tokens, and
    of the pairs of tokens that attend to each other in an image.
    """
    events, images, num_steps = recording.encoder, recording.images, len(recording.steps)
    names = ("num_images", "image_tokens", "image_pairs")
    if events is None or images is None:
        return dict.fromkeys(names, np.zeros(num_steps))
    sizes = np.zeros(int(images.image.max(initial=0)) + 1)
    sizes[images.image] = images.outputs
    computed = events.kind == ImageEventKind.COMPUTE
    step, tokens = events.step[computed], sizes[events.image[computed]]
    return {
        name: np.bincount(step, weights, num_steps)
        for name, weights in zip(names, (np.ones(len(step)), tokens, tokens**2), strict=True)
    }


def check_distinct(recordings: Sequence[Recording]) -> None:
    """Check that no recording is given twice: it would count double in a fit, and no fit could leave it out.

    Raises:
        UsageError: a recording is given twice.
    """
    for index, item in enumerate(recordings):
        for other in recordings[:index]:
            if np.array_equal(item.steps.start_s, other.steps.start_s) and len(item.steps):
                copy = "twice" if item.name == other.name else f"once more as {item.name}"
                raise UsageError(f"{other.name} is given {copy}; give each recording once.")


def observe_on(card: Card, recording: Recording) -> Observed:
    """Return the steps of `recording`, with the host time that its offload takes on the machine of `card`."""
    costs: dict[str, Any] = host_link(card)
    num_layers = served_model(recording.meta).num_layers
    return with_offload(observe(recording), recording, PagedSettings(**costs), num_layers)


def with_offload(observed: Observed, recording: Recording, cache: PagedSettings, num_layers: int) -> Observed:
    """Return `observed` with the host time of the offload in each step, by the costs in `cache`; unchanged without
    offload.

    Each step has a constant cost and a cost per sequence. Each copy has a cost in the step that submits it: for a load
    the step that decides it, for a store the step after. This cost grows with the number of pieces of the copy, one per
    GPU block and layer.
    """
    copies, num_steps = recording.copies, len(observed)
    if copies is None:
        return observed
    submitted_step = copies.begun_step + (copies.kind == CopyKind.STORE)
    in_run = submitted_step < num_steps  # the last store may not be submitted before the run ends
    first = np.unique(copies.copy[in_run], return_index=True)[1]  # a copy has a row for each of its blocks
    num_copies = np.bincount(submitted_step[in_run][first], minlength=num_steps)
    num_blocks = np.bincount(submitted_step[in_run], minlength=num_steps)
    offload_s = (
        cache.offload_step_s
        + cache.offload_sequence_s * observed.shape.num_seqs
        + cache.copy_submit_s * num_copies
        + cache.copy_piece_s * num_layers * num_blocks
    )
    return replace(observed, offload_s=offload_s)


def _launch_times_s(steps: Steps) -> FloatArray:
    """Return the seconds from the start of each step to the start of the next, if only launching took this time.

    They are NaN if the output of the previous step was processed after the start of the step, or if the next step began
    only after the step's own output. The last step has NaN, too.
    """
    lasted = np.append(np.diff(steps.start_s), np.nan)
    output_before = np.append(-np.inf, steps.end_s[:-1])
    output_between = np.append(steps.start_s[1:], np.inf) >= steps.end_s
    return np.where((output_before <= steps.start_s) & ~output_between, lasted, np.nan)


def _joins(request: IntArray, step: IntArray, before: FloatArray, tokens: FloatArray) -> FloatArray:
    """Return 1 for each row of the schedule in which its sequence joins the batch, else 0.

    A sequence joins in its first row, and in a row that begins with fewer computed tokens than its previous row left,
    because a preemption lost tokens.
    """
    order = np.lexsort((step, request))
    continues = np.diff(request[order], prepend=-1) == 0
    computed_by_previous_row = np.append(0.0, (before + tokens)[order][:-1])
    joins = np.empty(len(order))
    joins[order] = ~continues | (before[order] < computed_by_previous_row)
    return joins


def _shared_tokens(recording: Recording, context_tokens: FloatArray) -> Any:
    """Return, for each step, the number of tokens that it reads more than once, because sequences share their slots.

    This is the number of context tokens minus the number of slots in use, at least 0. It is 0 without a pool, and with
    several KV-cache groups.
    """
    pool = recording.meta.pool
    if pool.num_units is None or pool.groups:  # blocks of several groups hold different numbers of tokens
        return np.zeros(len(context_tokens))
    held_slots = (pool.num_units - recording.steps.free_units.astype(np.float64)) * pool.unit_tokens
    return np.maximum(context_tokens - held_slots, 0.0)


def _first_uses(recording: Recording) -> dict[str, Any]:
    """Return `new_shape` and `new_kernels` of `StepShape` for each step of `generate()`; zeros for other engines."""
    if recording.meta.policy_name != "static":
        none = np.zeros(len(recording.steps))
        return {"new_shape": none, "new_kernels": none}
    gpu, model = find_gpu(recording.meta.gpu), Model.from_shape(recording.meta.model)
    kernels = KernelsSeen(gpu, model, earlier_batches(recording))
    uses = [kernels.run(batch) for batch in batches_of(recording)]
    return {
        "new_shape": np.concatenate([each.choose_times for each in uses]),
        "new_kernels": np.concatenate([each.build_times for each in uses]),
    }
