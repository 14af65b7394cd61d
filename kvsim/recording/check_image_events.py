"""Check that each event of the encoder cache is possible at its moment: in a step, with an output, or at an abort."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from kvsim.recording.model import Recording
from kvsim.recording.order import expanded
from kvsim.recording.rules import require
from kvsim.recording.tables import EncoderEvents, ImageEventKind, IntArray, MemoryKind, PromptImages


def check_image_events(recording: Recording, images: PromptImages, events: EncoderEvents, file: Path) -> None:
    """Check that images are computed while a step is scheduled, and that a request releases an image only when it does
    not need the image any more.

    Releases are not checked if the recording begins in the middle of a run.
    """
    steps, kind, seq = recording.steps, events.kind, events.seq
    following = np.searchsorted(steps.schedule_seq, seq)
    require(events.step == following, file, "step should be the first that is scheduled at seq or later")
    in_step = np.append(steps.schedule_seq, -1)[following] == seq
    in_step |= events.step == len(steps)  # the recording ends while a step is being scheduled
    require((kind != ImageEventKind.COMPUTE) | in_step, file, "an image should be computed when a step is scheduled")
    elsewhere = np.isin(seq, steps.output_seq) | np.isin(seq, recording.requests.arrival_seq)
    rule = "an image can only be released at an output, and does not change at an arrival"
    let_go = kind == ImageEventKind.LET_GO
    require(~elsewhere | (let_go & np.isin(seq, steps.output_seq)), file, rule)
    if recording.meta.begins_in_the_middle:
        return  # outputs of steps that were under way are not in it
    holds = np.ones(len(events), np.bool_)
    ends = _sole_ends(images)
    released = _released(recording)
    in_vain = {(request, image, int(seq[row])) for row, request, image in _rows_of(events, kind == ImageEventKind.HOLD)}
    for row, request, image in _rows_of(events, let_go):
        steps_of_request = _RequestSteps(recording, request)
        end = None if recording.has_drafts else ends.get((request, image))
        at = int(seq[row])
        is_other = (request, at) in released or (request, image, at) in in_vain
        holds[row] = is_other or steps_of_request.may_release(at, int(following[row]), end)
    rule = (
        "an image should be released with its table, or with the first output after which its request does not need it"
    )
    require(holds, file, rule)


def _released(recording: Recording) -> set[tuple[int, int]]:
    memory = recording.memory
    rows = np.flatnonzero(memory.kind == MemoryKind.RELEASE)
    return set(zip(memory.request[rows].tolist(), memory.seq[rows].tolist(), strict=True))


def _rows_of(events: EncoderEvents, chosen: np.ndarray) -> list[tuple[int, int, int]]:
    rows = np.flatnonzero(chosen)
    return list(zip(rows.tolist(), events.request[rows].tolist(), events.image[rows].tolist(), strict=True))


def _sole_ends(images: PromptImages) -> dict[tuple[int, int], int]:
    """Return, for each pair of a request and an image, the number of prompt tokens up to the end of the image.

    An image that occurs several times in a prompt is left out.
    """
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    columns = (images.request, images.image, images.place, images.tokens)
    for request, image, place, tokens in zip(*(each.tolist() for each in columns), strict=True):
        ends[request, image].append(place + tokens)
    return {pair: places[0] for pair, places in ends.items() if len(places) == 1}


class _RequestSteps:
    """Steps that compute one request, in order. Arrays have one entry for each step."""

    def __init__(self, recording: Recording, request: int) -> None:
        schedule, steps = recording.schedule, recording.steps
        rows = np.flatnonzero(schedule.request == request)
        run, offset = expanded(schedule.repeats[rows])
        step = schedule.step[rows][run] + offset
        tokens = schedule.tokens[rows].astype(np.int64)[run]
        self._after: IntArray = schedule.computed_before[rows][run] + tokens * (offset + 1)
        """Number of computed tokens after each step."""
        self._steps = set(step.tolist())
        self._schedule_seq, self._output_seq = steps.schedule_seq[step], steps.output_seq[step]
        settings = {**recording.meta.engine, **recording.meta.policy}
        is_ahead = bool(settings.get("async_scheduling", True))
        self._has_placeholder = (self._after >= recording.requests.prompt_tokens[request]) & is_ahead
        """True for each step whose output token counts as computed before it is known, like vLLM's placeholders."""
        self._is_plain = not (recording.requests.preemptions[request] or recording.meta.begins_in_the_middle)

    def may_release(self, seq: int, step: int, end: int | None) -> bool:
        """Tell whether the request may release an image at event `seq`.

        `step` is the first step scheduled at `seq` or later. `end` is the number of prompt tokens up to the end of the
        image; None if it is not known.

        - If an output of the request is processed at `seq`, it must be the first output after which `end` tokens are
          processed. If `end` is None or the request was preempted, any output will do.
        - Otherwise, `step` must not schedule the request.
        """
        outputs = self._output_seq[self._output_seq <= seq]
        if not len(outputs) or outputs[-1] != seq:
            return step not in self._steps
        if end is None or not self._is_plain:
            return True
        before = outputs[-2] if len(outputs) > 1 else -1
        return self._processed(seq) >= end > (self._processed(before) if before >= 0 else 0)

    def _processed(self, seq: int) -> int:
        """Return the number of tokens processed when the output at `seq` comes: computed ones without placeholders."""
        begun = self._schedule_seq < seq
        awaited = int((begun & self._has_placeholder & (self._output_seq >= seq)).sum())
        return int(self._after[begun].max(initial=0)) - awaited
