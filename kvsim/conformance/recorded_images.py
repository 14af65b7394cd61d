"""Images of a recording, for the simulated engine; and the events of the recorded and the simulated encoder cache.

A simulated engine repeats the moments of the recording (see `timeline`): arrivals, scheduled steps, processed outputs
and others. The events of both caches are compared at the moments that report them, which are scheduled steps and
processed outputs. Events at another moment are compared at the next of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.conformance.event_columns import Rows, between, stacked
from kvsim.engine.arrays import column
from kvsim.engine.moments import SCHEDULE, UPDATE
from kvsim.errors import RecordingError
from kvsim.policies.encoding import Encoding, ImageInput

if TYPE_CHECKING:
    from kvsim.conformance.timeline import MomentTimeline
    from kvsim.engine.state import Engine
    from kvsim.recording import Recording
    from kvsim.recording.tables import IntArray, PromptImages

_COLUMNS = ("seq", "kind", "request", "image")


def encoding_of(recording: Recording) -> Encoding | None:
    """Return the images of a recording, and the limits of their encoder; None without images.

    Raises:
        RecordingError: the recording has images, but no events of the encoder cache or no limits.
    """
    images, engine = recording.images, recording.meta.engine
    if images is None:
        return None
    limits = engine.get("encoder_compute_tokens"), engine.get("encoder_cache_tokens")
    if recording.encoder is None or not all(isinstance(limit, int) for limit in limits):
        raise RecordingError(
            f"recording {recording.name!r} has images; to be compared, it needs encoder.parquet, and in meta.json "
            "engine.encoder_compute_tokens and engine.encoder_cache_tokens."
        )
    # vLLM calls embeddings tokens in the names of these limits; the unit is the same.
    return Encoding(
        compute_embeddings=int(engine["encoder_compute_tokens"]),
        cache_embeddings=int(engine["encoder_cache_tokens"]),
        is_whole=bool(engine.get("disable_chunked_mm_input", False)),
        inputs=_inputs(images, len(recording.requests)),
    )


def _inputs(images: PromptImages, num_requests: int) -> list[list[ImageInput]]:
    inputs: list[list[ImageInput]] = [[] for _ in range(num_requests)]
    columns = (images.request, images.image, images.place, images.tokens)
    for row, (request, image, place, tokens) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        runs = [] if images.embedded is None else images.embedded[row].reshape(-1, 2).tolist()
        embedded = tuple((first, number) for first, number in runs)
        inputs[request].append(ImageInput(content=image, offset=place, length=tokens, embedded=embedded))
    return inputs


class EncoderMoments:
    """Events of the encoder caches of a recording and of the simulated engine, by the moment of their comparison.

    Rows have the columns of `EventColumns.encoder`: moment, kind, request and image.
    """

    def __init__(self, recording: Recording, timeline: MomentTimeline) -> None:
        self._reporting = np.flatnonzero(np.isin(timeline.kind, (SCHEDULE, UPDATE)))
        """Moments at which events are compared, ascending."""
        self._num_moments = len(timeline)
        row, steps = timeline.row[self._reporting], recording.steps
        is_schedule = timeline.kind[self._reporting] == SCHEDULE
        seq = np.where(is_schedule, steps.schedule_seq[row], steps.output_seq[row])
        images = recording.images.image if recording.images is not None else np.empty(0, np.int32)
        _, first = np.unique(images, return_index=True)
        self._image = np.append(0, images[np.sort(first)])
        """Numbers of the images in the recording, indexed by the engine's numbers, which count images as they appear.

        The engine's numbers begin at 1; entry 0 is not used.
        """
        self._recorded = np.empty((0, 4), np.int64)
        if (events := recording.encoder) is not None:
            at = self._moments_of(np.searchsorted(seq, events.seq))
            self._recorded = stacked(at, *(getattr(events, name) for name in _COLUMNS[1:]))
        self._held_back = np.empty((0, 4), np.int64)
        """Events of the engine that are compared only at a moment that it has not reached."""

    def _moments_of(self, index: IntArray) -> IntArray:
        """Return the moment at each index of `_reporting`; the number of all moments for the index after the last."""
        return np.append(self._reporting, self._num_moments)[index]

    def recorded(self, begin: int, end: int) -> Rows:
        """Return the recorded events that are compared at the moments [begin, end)."""
        return self._recorded[slice(*between(self._recorded[:, 0], begin, end))]

    def simulated(self, engine: Engine, since: int, end: int) -> Rows:
        """Return the events of `engine` that are compared before moment `end`, without those returned by earlier calls.

        `since` is the number that the engine's `seq` column has for moment 0 of the recording.
        """
        rows = [column(engine.encoder.rows, name, engine.encoder.state.num_rows) for name in _COLUMNS]
        # The engine counts one event per moment, so `rows[0] - since` is the moment of each event.
        rows[0] = self._moments_of(np.searchsorted(self._reporting, rows[0] - since))
        rows[3] = self._image[rows[3]]
        self._held_back = np.concatenate((self._held_back, stacked(*rows)))
        num_ready = between(self._held_back[:, 0], 0, end)[1]
        ready, self._held_back = self._held_back[:num_ready], self._held_back[num_ready:]
        return ready
