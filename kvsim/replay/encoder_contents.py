"""Contents of the encoder cache of a recorded run after each step: images that requests hold, and idle images.

The interface shows them. The capacity of the cache may be the reason why a prompt with images waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvsim.recording.model import Recording
from kvsim.recording.tables import EncoderEvents, ImageEventKind, IntArray


class CachedImage(NamedTuple):
    """One image in the encoder cache after a step."""

    image: int
    num_outputs: int
    """Number of encoder outputs of the image."""
    holders: tuple[int, ...]
    """Requests that hold the image, the earliest holder first; empty if the image may be evicted."""
    is_new: bool
    """True if the step computes the image."""

    @property
    def num_holders(self) -> int:
        """Number of requests that hold the image."""
        return len(self.holders)


@dataclass(frozen=True, eq=False)
class EncoderContents:
    """Encoder cache over time. Arrays have an entry per step, right after its scheduling, and one for the end."""

    capacity_outputs: int
    """Limit for the number of encoder outputs in the cache."""
    num_steps: int
    _events: EncoderEvents
    _outputs_of: dict[int, int]
    _initial: tuple[int, ...]
    """Images in the cache when the recording begins, in eviction order. No request holds them."""

    @classmethod
    def of(cls, recording: Recording) -> EncoderContents | None:
        """Return the contents for `recording`; None if it has no encoder cache, no images, or no events."""
        images, events, capacity = recording.images, recording.encoder, recording.meta.encoder_cache_tokens
        if images is None or events is None or not capacity:
            return None
        initial = recording.meta.initial_images
        outputs_of = initial | dict(zip(images.image.tolist(), images.outputs.tolist(), strict=True))
        return cls(capacity, len(recording.steps), events, outputs_of, tuple(initial))

    @property
    def held_outputs(self) -> IntArray:
        """int64[num_steps + 1]: number of encoder outputs of the images that requests hold."""
        return self._sums[0]

    @property
    def idle_outputs(self) -> IntArray:
        """int64[num_steps + 1]: number of encoder outputs of the images that no request holds."""
        return self._sums[1]

    def images_at(self, frame: int) -> list[CachedImage]:
        """Return the images right after step `frame` was scheduled; at the end if `frame` is the number of steps.

        Images that requests hold come first, then idle ones in eviction order.
        """
        holders: dict[int, dict[int, None]] = {image: {} for image in self._initial}
        idle: dict[int, None] = dict.fromkeys(self._initial)
        new = set()
        for kind, step, request, image in self._rows(int(np.searchsorted(self._events.step, frame, side="right"))):
            if kind == ImageEventKind.COMPUTE:
                holders[image] = {}
                new |= {image} if step == frame else set()
            elif kind == ImageEventKind.HOLD:
                holders[image][request] = None
                idle.pop(image, None)
            elif kind == ImageEventKind.LET_GO:
                del holders[image][request]
                idle |= {} if holders[image] else {image: None}
            else:
                del holders[image], idle[image]
        held = [image for image in holders if holders[image]]
        return [
            CachedImage(image, self._outputs_of[image], tuple(holders[image]), image in new) for image in (*held, *idle)
        ]

    def _rows(self, end: int) -> zip[tuple[int, int, int, int]]:
        events = self._events
        columns = (events.kind, events.step, events.request, events.image)
        return zip(*(column[:end].tolist() for column in columns), strict=True)

    @cached_property
    def _sums(self) -> tuple[IntArray, IntArray]:
        held = np.zeros(self.num_steps + 1, np.int64)  # changes in each step; summed up at the end
        cached = np.zeros(self.num_steps + 1, np.int64)
        cached[0] = sum(self._outputs_of[image] for image in self._initial)
        num_holders: dict[int, int] = {}
        for kind, step, _, image in self._rows(len(self._events)):
            outputs = self._outputs_of[image]
            if kind in (ImageEventKind.COMPUTE, ImageEventKind.EVICT):
                cached[step] += outputs if kind == ImageEventKind.COMPUTE else -outputs
                continue
            before = num_holders.get(image, 0)
            num_holders[image] = before + (1 if kind == ImageEventKind.HOLD else -1)
            if before == 0 or num_holders[image] == 0:  # it got its first holder, or lost its last one
                held[step] += outputs * (num_holders[image] - before)
        return np.cumsum(held), np.cumsum(cached) - np.cumsum(held)
