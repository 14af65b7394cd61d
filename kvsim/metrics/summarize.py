"""Summarize a recording by adding up its steps, in the same way as during a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.metrics.slot_account import Waste, waste
from kvsim.metrics.sums import GapFigures, StepFigures, Sums
from kvsim.metrics.waiting import Limits
from kvsim.recording import Recording
from kvsim.recording.tables import ImageEventKind
from kvsim.setting_fields import check_instance

if TYPE_CHECKING:
    from kvsim.metrics.summary import Summary


def summarize(recording: Recording, slots: Waste | None = None) -> Summary:
    """Return the summary of `recording`. `slots` has its slots by state; if it is None, they are computed."""
    check_instance("the recording", recording, Recording, "one that was read, as kvsim.read returns it")
    check_instance("slots", slots, Waste | None, "the result of kvsim.metrics.waste, or None")
    meta = recording.meta
    if slots is None and len(recording.steps):
        slots = waste(recording)
    sums = Sums(slots.capacity if slots else 0, Limits.of(meta.policy, meta.engine))
    if slots:
        gaps = _gap_figures(slots)
        for part in _figures(recording, slots).parts():
            sums.add(part, gaps.between(sums.num_steps, sums.num_steps + len(part)))
    events = recording.encoder
    kinds = (ImageEventKind.HOLD, ImageEventKind.COMPUTE)
    used, computed = (0 if events is None else int((events.kind == kind).sum()) for kind in kinds)
    return sums.summary(
        meta, recording.name, recording.requests, recording.duration_s, images_used=used, images_computed=computed
    )


def _figures(recording: Recording, slots: Waste) -> StepFigures:
    steps, admitted_s = recording.steps, recording.requests.first_scheduled_s
    zero = np.zeros(len(steps), np.int32)
    unusable, out, back = (
        zero if units is None else units
        for units in (steps.unusable_units, steps.swapped_out_units, steps.swapped_in_units)
    )
    return StepFigures(
        start_s=steps.start_s,
        scheduled=steps.num_scheduled,
        running=steps.running,
        waiting=steps.waiting,
        tokens=steps.prefill_tokens.astype(np.int64) + steps.decode_tokens,
        preempted=steps.preempted,
        held=slots.held[:-1],
        states=slots.slots[:-1].T,
        is_fragmented=unusable > 0,
        admitted_before=np.searchsorted(np.sort(admitted_s[~np.isnan(admitted_s)]), steps.start_s, side="right"),
        swapped_out=out,
        swapped_in=back,
    )


def _gap_figures(slots: Waste) -> GapFigures:
    in_gaps = slots.in_gaps
    assert in_gaps is not None
    gaps = in_gaps.gaps
    return GapFigures(
        next_step=gaps.step + 1,
        begin_s=gaps.begin_s,
        running=gaps.running,
        waiting=gaps.waiting,
        held=in_gaps.held,
        states=in_gaps.slots.T,
    )
