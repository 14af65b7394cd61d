"""Output tokens of a run, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


def tokens_served(replay: Replay) -> npt.NDArray[np.int64]:
    """Return the output tokens before each frame, including those before the recording began for requests that were
    running then: int64[num_frames].

    A token counts when it is first sampled; tokens that are recomputed after a preemption do not count again.
    """
    schedule, requests = replay.recording.schedule, replay.recording.requests
    repeats = schedule.repeats.astype(np.int64)
    # A row that repeats chunks of a prompt puts out nothing before its last one.
    chunks = schedule.tokens > 1
    order = np.lexsort((schedule.step, schedule.request))
    request = schedule.request[order].astype(np.int64)
    repeats, chunks = repeats[order], chunks[order]
    step, tokens = schedule.step[order].astype(np.int64), schedule.tokens[order].astype(np.int64)
    prompt_end = replay.pad + requests.prompt_tokens
    # Answers known before the row's first step and after its last one; the last prompt token yields the first.
    before = schedule.computed_before[order] - prompt_end[request] + 1
    after = before + tokens * repeats
    outputs = requests.output_tokens[request].astype(np.int64)
    known = np.clip(after, 0, outputs)

    # The most that earlier rows of the same request have reached, and what it had before the recording began.
    width = int(known.max(initial=0)) + 1
    reached = np.maximum.accumulate(request * width + known) - request * width
    reached = np.concatenate(([0], reached))[: len(known)]
    reached[np.flatnonzero(np.diff(request, prepend=-1))] = 0
    initial = np.clip(replay.progress.initial - prompt_end + 1, 0, requests.output_tokens)
    reached = np.maximum(reached, initial[request])
    low = np.maximum(np.maximum(before, reached), 0)
    count = np.maximum(known - low, 0)

    first = np.where(chunks, step + repeats - 1, step + low - before)
    span = np.where(chunks, 1, count)
    some = count > 0
    rate = np.zeros(replay.num_frames + 1, np.int64)
    np.add.at(rate, first[some], (count // np.maximum(span, 1))[some])
    np.add.at(rate, np.minimum(first + span, replay.num_frames)[some], -(count // np.maximum(span, 1))[some])
    per_step = np.cumsum(rate)[: replay.num_frames - 1]
    served: npt.NDArray[np.int64] = initial.sum() + np.concatenate(([0], np.cumsum(per_step)))
    return served
