"""Request-level batching as in `generate()`: wait, pad to the longest, hold every row until the last one ends."""

from __future__ import annotations

from collections import deque

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
    """Takes batches from the head of the queue."""

    def __init__(self, settings: StaticSettings, capacity_slots: int) -> None:
        self.settings = settings
        self.capacity_slots = capacity_slots
        self.waiting: deque[Sequence] = deque()

    def fits(self, sequence: Sequence) -> bool:
        """Whether `sequence` could be served as a batch of its own."""
        return sequence.prompt_tokens + sequence.max_tokens - 1 <= self.capacity_slots

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that has arrived."""
        self.waiting.append(sequence)

    def next_batch(self) -> StaticBatch | None:
        """The next batch, or None if nobody waits or the head does not fit.

        It is cut short where its rectangle might not fit. Nobody knows the outputs beforehand, so room is made for the longest
        that any of its requests may ask for, less the last token, whose KV is never written.
        """
        chosen: list[Sequence] = []
        prompt_width = max_new_tokens = 0
        for sequence in self.waiting:
            wider = max(prompt_width, sequence.prompt_tokens)
            longer = max(max_new_tokens, sequence.max_tokens)
            slots = (len(chosen) + 1) * (wider + longer - 1)
            if len(chosen) == self.settings.batch_size or slots > self.capacity_slots:
                break
            chosen.append(sequence)
            prompt_width, max_new_tokens = wider, longer
        if not chosen:
            return None
        for _ in chosen:
            self.waiting.popleft()
        rectangle = Rectangle(
            [sequence.prompt_tokens for sequence in chosen],
            [sequence.output_tokens for sequence in chosen],
            max_new_tokens,
            preallocated=self.settings.preallocated,
        )
        return StaticBatch(chosen, rectangle)
