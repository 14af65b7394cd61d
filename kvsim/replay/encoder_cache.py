"""Encoder cache of a recorded run, step by step: images that requests hold, images that are kept, and free room."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvsim.recording.model import Recording
from kvsim.recording.tables import EncoderEvents, ImageEventKind, IntArray


class CachedImage(NamedTuple):
    """An image in the encoder cache at one moment."""

    image: int
    tokens: int
    users: tuple[int, ...]
    """Requests that hold it, in the order in which they began; empty for one that can be evicted."""
    is_new: bool
    """Whether the last step computes it."""

    @property
    def num_users(self) -> int:
        """Number of requests that hold it."""
        return len(self.users)


@dataclass(frozen=True, eq=False)
class EncoderContents:
    """Encoder cache over time, with an entry after the schedule of every step, and one for the end."""

    capacity_tokens: int
    """Outputs of the encoder that it holds, one for each token of an image."""
    num_steps: int
    _events: EncoderEvents
    _tokens_of: dict[int, int]

    @classmethod
    def of(cls, recording: Recording) -> EncoderContents | None:
        """Read the events of `recording`; None for an engine without an encoder cache."""
        images, events, capacity = recording.images, recording.encoder, recording.meta.encoder_cache_tokens
        if images is None or events is None or not capacity:
            return None
        tokens_of = dict(zip(images.image.tolist(), images.tokens.tolist(), strict=True))
        return cls(capacity, len(recording.steps), events, tokens_of)

    @property
    def held_tokens(self) -> IntArray:
        """Tokens of the images that requests hold: int64[num_steps + 1]."""
        return self._sums[0]

    @property
    def kept_tokens(self) -> IntArray:
        """Tokens of the images that no request holds and that are still there: int64[num_steps + 1]."""
        return self._sums[1]

    @property
    def free_tokens(self) -> IntArray:
        """Room for more: int64[num_steps + 1]."""
        return self.capacity_tokens - self.held_tokens - self.kept_tokens

    def images_at(self, frame: int) -> list[CachedImage]:
        """Return the images right after step `frame` was scheduled: those held, then those kept, first to go first."""
        users: dict[int, dict[int, None]] = {}
        kept: dict[int, None] = {}
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
        """Tokens held and kept, after the schedule of every step, and in the end."""
        held = np.zeros(self.num_steps + 1, np.int64)
        there = np.zeros(self.num_steps + 1, np.int64)
        num_users: dict[int, int] = {}
        for kind, step, _, image in self._rows(len(self._events)):
            tokens = self._tokens_of[image]
            if kind in (ImageEventKind.COMPUTE, ImageEventKind.EVICT):
                there[step] += tokens if kind == ImageEventKind.COMPUTE else -tokens
                continue
            before = num_users.get(image, 0)
            num_users[image] = before + (1 if kind == ImageEventKind.HOLD else -1)
            if not (before and num_users[image]):
                held[step] += tokens * (num_users[image] - before)
        return np.cumsum(held), np.cumsum(there) - np.cumsum(held)
