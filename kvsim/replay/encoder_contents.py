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
    tokens: int
    users: tuple[int, ...]
    """Requests that hold the image, the earliest holder first; empty if the image may be evicted."""
    is_new: bool
    """True if the step computes the image."""

    @property
    def num_users(self) -> int:
        """Number of requests that hold the image."""
        return len(self.users)


@dataclass(frozen=True, eq=False)
class EncoderContents:
    """Encoder cache over time. Arrays have one entry for each step, right after its scheduling, and one for the end."""

    capacity_tokens: int
    """Largest number of encoder outputs in the cache."""
    num_steps: int
    _events: EncoderEvents
    _tokens_of: dict[int, int]
    _initial: tuple[int, ...]
    """Images in the cache when the recording begins, in eviction order. No request holds them."""

    @classmethod
    def of(cls, recording: Recording) -> EncoderContents | None:
        """Return the contents for `recording`; None if it has no encoder cache, no images, or no events."""
        images, events, capacity = recording.images, recording.encoder, recording.meta.encoder_cache_tokens
        if images is None or events is None or not capacity:
            return None
        initial = recording.meta.initial_images
        tokens_of = initial | dict(zip(images.image.tolist(), images.outputs.tolist(), strict=True))
        return cls(capacity, len(recording.steps), events, tokens_of, tuple(initial))

    @property
    def held_tokens(self) -> IntArray:
        """int64[num_steps + 1]: number of encoder outputs of the images that requests hold."""
        return self._sums[0]

    @property
    def kept_tokens(self) -> IntArray:
        """int64[num_steps + 1]: number of encoder outputs of the idle images, which no request holds."""
        return self._sums[1]

    def images_at(self, frame: int) -> list[CachedImage]:
        """Return the images right after step `frame` was scheduled: held ones, then idle ones in eviction order."""
        users: dict[int, dict[int, None]] = {image: {} for image in self._initial}
        kept: dict[int, None] = dict.fromkeys(self._initial)
        new = set()
        for kind, step, request, image in self._rows(int(np.searchsorted(self._events.step, frame, side="right"))):
            if kind == ImageEventKind.COMPUTE:
                users[image] = {}
                new |= {image} if step == frame else set()
            elif kind == ImageEventKind.HOLD:
                users[image][request] = None
                kept.pop(image, None)
            elif kind == ImageEventKind.LET_GO:
                del users[image][request]
                kept |= {} if users[image] else {image: None}
            else:
                del users[image], kept[image]
        held = [image for image in users if users[image]]
        return [
            CachedImage(image, self._tokens_of[image], tuple(users[image]), image in new) for image in (*held, *kept)
        ]

    def _rows(self, end: int) -> zip[tuple[int, int, int, int]]:
        events = self._events
        columns = (events.kind, events.step, events.request, events.image)
        return zip(*(column[:end].tolist() for column in columns), strict=True)

    @cached_property
    def _sums(self) -> tuple[IntArray, IntArray]:
        held = np.zeros(self.num_steps + 1, np.int64)  # changes in each step; summed up at the end
        cached = np.zeros(self.num_steps + 1, np.int64)
        cached[0] = sum(self._tokens_of[image] for image in self._initial)
        num_users: dict[int, int] = {}
        for kind, step, _, image in self._rows(len(self._events)):
            tokens = self._tokens_of[image]
            if kind in (ImageEventKind.COMPUTE, ImageEventKind.EVICT):
                cached[step] += tokens if kind == ImageEventKind.COMPUTE else -tokens
                continue
            before = num_users.get(image, 0)
            num_users[image] = before + (1 if kind == ImageEventKind.HOLD else -1)
            if before == 0 or num_users[image] == 0:  # it got its first user, or lost its last one
                held[step] += tokens * (num_users[image] - before)
        return np.cumsum(held), np.cumsum(cached) - np.cumsum(held)
