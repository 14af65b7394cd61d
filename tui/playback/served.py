"""Number of output tokens that a run has produced, frame by frame; tokens computed twice count once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvsim.replay.replay import Replay


def tokens_served(replay: Replay) -> npt.NDArray[np.int64]:
    """Return the number of output tokens sampled before each frame: int64[num_frames].

    A token counts when it is first sampled, not when it is recomputed after a preemption. Output tokens that were
    sampled before the recording began are included.
    """
    schedule, requests = replay.recording.schedule, replay.recording.requests
    repeats = schedule.repeats.astype(np.int64)
    # A row that repeats chunks of a prompt samples no token before its last chunk.
    chunks = schedule.tokens > 1
    order = np.lexsort((schedule.step, schedule.request))
    request = schedule.request[order].astype(np.int64)
    repeats, chunks = repeats[order], chunks[order]
    step, tokens = schedule.step[order].astype(np.int64), schedule.tokens[order].astype(np.int64)
    prompt_end = replay.pad + requests.prompt_tokens
    # Output tokens known before the row's first step, and after its last. The step of the last prompt token samples the
    # first output token, hence "+ 1".
    before = schedule.computed_before[order] - prompt_end[request] + 1
    after = before + tokens * repeats
    outputs = requests.output_tokens[request].astype(np.int64)
    known = np.clip(after, 0, outputs)

    # `reached`: output tokens that earlier rows of the same request, or steps before the recording, have sampled.
    # Rows are sorted by request, and `request * width` exceeds every value of the requests before: one running maximum
    # serves all requests.
    width = int(known.max(initial=0)) + 1
    reached = np.maximum.accumulate(request * width + known) - request * width
    reached = np.concatenate(([0], reached))[: len(known)]
    reached[np.flatnonzero(np.diff(request, prepend=-1))] = 0
    initial = np.clip(replay.progress.initial - prompt_end + 1, 0, requests.output_tokens)
    reached = np.maximum(reached, initial[request])
    low = np.maximum(np.maximum(before, reached), 0)
    count = np.maximum(known - low, 0)

    # New tokens come one per step from `first` on; those of a row of chunks come together in its last step. `rate` has
    # the changes of the tokens per step, so its running sum gives the tokens of each step.
    first = np.where(chunks, step + repeats - 1, step + low - before)
    span = np.where(chunks, 1, count)
    some = count > 0
    rate = np.zeros(replay.num_frames + 1, np.int64)
    np.add.at(rate, first[some], (count // np.maximum(span, 1))[some])
    np.add.at(rate, np.minimum(first + span, replay.num_frames)[some], -(count // np.maximum(span, 1))[some])
    per_step = np.cumsum(rate)[: replay.num_frames - 1]
    served: npt.NDArray[np.int64] = initial.sum() + np.concatenate(([0], np.cumsum(per_step)))
    return served
