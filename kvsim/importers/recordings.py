"""Conversion of the requests of a recording to a workload, so that they can be simulated again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError, WorkloadError, described
from kvsim.workload import Images, Turns, Workload

if TYPE_CHECKING:
    from kvsim.recording import RecordedRequests, Recording
    from kvsim.recording.tables import PromptImages


def workload_of(recording: Recording | RecordedRequests, *, waiting: bool = True) -> Workload:
    """Return the requests of `recording` that have outputs, with their measured lengths and the times of sending.

    If the recording lacks these times, requests are sent when the engine received them. Without `waiting`, a turn of a
    session arrives at its recorded time, or when the previous answer is complete if that is later. With `waiting`, a
    turn arrives when the previous answer is complete and the pause has passed, so later with a slower server.

    Raises:
        WorkloadError: no request of the recording has an output.
    """
    if not hasattr(recording, "requests"):
        raise UsageError(f"a recording is one that was read, as kvsim.read returns it, not {described(recording)}.")
    requests = recording.requests
    rows = np.flatnonzero(requests.output_tokens > 0)
    if not len(rows):
        raise WorkloadError(
            f"recording {recording.name!r} has no request with any output, so there is nothing to serve again."
        )
    arrival_s = requests.received_s[rows]
    num_left_out = len(requests) - len(rows)
    without = f", without {num_left_out} that put out nothing" if num_left_out else ""
    images = getattr(recording, "images", None)
    turns = None if requests.turns is None else requests.turns.take(rows)
    if turns is not None and waiting:
        arrival_s = np.where(turns.after < 0, arrival_s, arrival_s.min())
    elif turns is not None:
        turns = Turns(after=turns.after, history_tokens=turns.history_tokens)
    return Workload(
        arrival_s=arrival_s - arrival_s.min(),
        prompt_tokens=requests.prompt_tokens[rows],
        output_tokens=requests.output_tokens[rows],
        max_tokens=np.maximum(requests.max_tokens[rows], requests.output_tokens[rows]),
        priority=requests.priority[rows],
        adapter=None if requests.adapter is None else requests.adapter[rows],
        prompt_hashes=requests.prompt_hashes.take(rows),
        hash_unit_tokens=recording.meta.hash_block_size,
        hash_ahead_tokens=recording.meta.hash_ahead_tokens,
        images=None if images is None else _images(images, len(requests)).take(rows),
        turns=turns,
        ids=[str(name) for name in requests.id[rows]],
        name=recording.name,
        description=f"the {len(rows)} requests of the recording {recording.name}{without}",
    )


def _images(images: PromptImages, num_requests: int) -> Images:
    offsets = np.searchsorted(images.request, np.arange(num_requests + 1))
    return Images(offsets=offsets, content=images.image, place=images.place, tokens=images.tokens)
