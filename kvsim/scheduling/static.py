"""Request-level batching as in `generate()`: wait, pad to the longest, hold every row until the last one ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from kvsim.memory.padded import Rectangle
from kvsim.scheduling.sequence import Sequence
from kvsim.scheduling.settings import StaticSettings


class StaticBatch:
    """Sequences that start and end together."""

    def __init__(self, sequences: list[Sequence], rectangle: Rectangle) -> None:
        self.sequences = sequences
        """One per row."""
        self.rectangle = rectangle


class StaticScheduler:
    """Makes batches of those who wait, the oldest always among them."""

    def __init__(self, settings: StaticSettings, capacity_slots: int) -> None:
        self.settings = settings
        self.capacity_slots = capacity_slots
        self.waiting: deque[Sequence] = deque()

    @property
    def due_s(self) -> float | None:
        """When the oldest request stops waiting for others; None if nobody waits."""
        return self.waiting[0].arrival + self.settings.timeout_s if self.waiting else None

    def fits(self, sequence: Sequence) -> bool:
        """Whether `sequence` could be served as a batch of its own."""
        return sequence.prompt_tokens + sequence.max_tokens - 1 <= self.capacity_slots

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that has arrived."""
        self.waiting.append(sequence)

    def next_batch(self, now_s: float = math.inf) -> StaticBatch | None:
        """The next batch, or None if nobody waits, the head does not fit, or the batch may still fill up at `now_s`.

        The memory guard cuts it short where its rectangle might not fit. Nobody knows the outputs beforehand, so room
        is made for the longest that any of its requests may ask for, less the last token, whose KV is never written.
        """
        due_s = self.due_s
        if due_s is None or (len(self.waiting) < self.settings.batch_size and now_s < due_s):
            return None
        chosen: list[Sequence] = []
        prompt_width = max_new_tokens = 0
        for sequence in self._in_order():
            wider = max(prompt_width, sequence.prompt_tokens)
            longer = max(max_new_tokens, sequence.max_tokens)
            slots = (len(chosen) + 1) * (wider + longer - 1)
            too_large = self.settings.memory_guard and slots > self.capacity_slots
            if len(chosen) == self.settings.batch_size or too_large:
                break
            chosen.append(sequence)
            prompt_width, max_new_tokens = wider, longer
        if not chosen:
            return None
        taken = set(chosen)
        self.waiting = deque(sequence for sequence in self.waiting if sequence not in taken)
        rectangle = Rectangle(
            [sequence.prompt_tokens for sequence in chosen],
            [sequence.output_tokens for sequence in chosen],
            max_new_tokens,
            preallocated=self.settings.preallocated,
        )
        return StaticBatch(chosen, rectangle)

    def _in_order(self) -> Iterable[Sequence]:
        """Who is considered first: the oldest, and then the next oldest or the most alike."""
        if not self.settings.sort_by_length:
            return self.waiting
        width = self.waiting[0].prompt_tokens
        return sorted(self.waiting, key=lambda sequence: abs(sequence.prompt_tokens - width))
