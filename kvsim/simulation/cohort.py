"""Decoding sequences, advanced together: what one token more for each of them changes, without touching any of them.

A sequence whose prompt is computed gains a token in every step until it ends, and the step in which it ends is known
beforehand. So its counters need not be kept step by step: they follow from the step in which it joined. They are
brought up to date (`Sequence` knows them) when it leaves: because it ends, or because all do in `settle`.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from kvsim.scheduling.sequence import Sequence


class _Stay(NamedTuple):
    """What is known of a member from the beginning."""

    first: int
    """The first step that it computes a token in as a member."""
    last: int
    """The last one. A stop that nobody could foresee is noticed one step late where steps are scheduled ahead."""
    end: int
    """The step that yields its last output."""
    computed: int
    """Tokens computed before `first`."""


class Left(NamedTuple):
    """A sequence that has left, up to date again, and what happened to it since it joined."""

    sequence: Sequence
    num_scheduled: int
    """Tokens that it computed: one a step."""
    num_emitted: int
    """Outputs that it was given."""


class Cohort:
    """Running sequences that compute one token a step, in order of admission; steps are numbered as scheduled."""

    def __init__(self, *, block_size: int, ahead: bool, max_model_len: int) -> None:
        """Sequences over blocks of `block_size` tokens (0 where none are needed), scheduled one step `ahead` or not."""
        self._block_size = block_size
        self._ahead = int(ahead)
        self._max_model_len = max_model_len
        self._clear()

    def _clear(self) -> None:
        self.num_active = 0
        """Members that compute a token in the next step; others only wait for their last output."""
        self.context_tokens = 0
        """Tokens computed so far, over the active members."""
        self._stays: dict[Sequence, _Stay] = {}
        self._growing: list[list[Sequence]] = [[] for _ in range(self._block_size)]
        self._last: dict[int, list[Sequence]] = {}
        self._ending: dict[int, list[Sequence]] = {}
        self._ends: list[int] = []  # heap of the keys of _ending

    def __len__(self) -> int:
        return len(self._stays)

    def growing(self, step: int) -> list[Sequence]:
        """Members whose token of `step` is the first of a block, in order of admission; do not change the list."""
        return self._growing[step % self._block_size] if self._block_size else []

    @property
    def next_end(self) -> int:
        """The earliest step that yields anybody's last output; there are members."""
        while not self._ending[self._ends[0]]:
            del self._ending[heapq.heappop(self._ends)]
        return self._ends[0]

    def join(self, sequence: Sequence, step: int) -> bool:
        """Take in `sequence`, which follows all members in order of admission, to advance from `step` on.

        Refused (False) if it does not compute exactly one token in every step from then on, or ends before.
        """
        computed, prompt = sequence.computed, sequence.prompt_tokens
        # With the last token of a prompt to come, and no output under way, the sums would agree too.
        if computed != sequence.num_tokens + sequence.placeholders - self._ahead or sequence.placeholders < self._ahead:
            return False
        longest = self._max_model_len - prompt
        num_outputs = min(sequence.output_tokens, sequence.max_tokens, longest)
        # The step before has yielded output number `computed - prompt + 1`.
        end = step + num_outputs - (computed - prompt + 2)
        if end < step:
            return False
        surprise = self._ahead and num_outputs < min(sequence.max_tokens, longest)
        last = end + 1 if surprise else end
        self._stays[sequence] = _Stay(step, last, end, computed)
        self.num_active += 1
        self.context_tokens += computed
        if self._block_size:
            self._growing[(step - computed) % self._block_size].append(sequence)
        self._last.setdefault(last, []).append(sequence)
        if end in self._ending:
            self._ending[end].append(sequence)
        else:
            self._ending[end] = [sequence]
            heapq.heappush(self._ends, end)
        return True

    def advance(self, step: int, num_steps: int = 1) -> None:
        """Every active member computes one token in each of `num_steps` steps from `step` on.

        Nobody's last step lies before the last of them.
        """
        self.context_tokens += self.num_active * num_steps
        step += num_steps - 1
        for sequence in self._last.pop(step, ()):
            stay = self._stays[sequence]
            self.num_active -= 1
            self.context_tokens -= stay.computed + step - stay.first + 1
            if self._block_size:
                self._growing[(stay.first - stay.computed) % self._block_size].remove(sequence)

    def end(self, step: int) -> list[Left]:
        """Let go of those whose last output `step` yields; that output is not counted."""
        if not self._stays or self.next_end != step:
            return []
        heapq.heappop(self._ends)
        left = []
        for sequence in self._ending.pop(step):
            stay = self._stays.pop(sequence)
            left.append(self._brought_up_to_date(sequence, stay, stay.last, step - 1))
        return left

    def drop_last(self, step: int, last_updated: int) -> tuple[Left, bool]:
        """Let go of the member admitted last before `step` is scheduled; see `settle`."""
        sequence, stay = self._stays.popitem()
        self._ending[stay.end].remove(sequence)
        if stay.last >= step:
            self._last[stay.last].remove(sequence)
            self.num_active -= 1
            self.context_tokens -= stay.computed + step - stay.first
            self._growing[(stay.first - stay.computed) % self._block_size].pop()
        left = self._brought_up_to_date(sequence, stay, min(stay.last, step - 1), last_updated)
        return left, self._is_awaiting(stay, step, last_updated)

    def settle(self, step: int, last_updated: int) -> tuple[list[Left], list[Sequence]]:
        """Let go of everybody before `step` is scheduled, when the outputs up to `last_updated` have been processed.

        Also returns those whose output of a step under way is still to come.
        """
        left, awaiting = [], []
        for sequence, stay in self._stays.items():
            left.append(self._brought_up_to_date(sequence, stay, min(stay.last, step - 1), last_updated))
            if self._is_awaiting(stay, step, last_updated):
                awaiting.append(sequence)
        self._clear()
        return left, awaiting

    def _is_awaiting(self, stay: _Stay, step: int, last_updated: int) -> bool:
        """Whether a step under way will yield an output."""
        return stay.first < step and last_updated < step - 1

    def _brought_up_to_date(self, sequence: Sequence, stay: _Stay, last_scheduled: int, last_updated: int) -> Left:
        num_scheduled = last_scheduled - stay.first + 1
        num_emitted = max(last_updated - stay.first + 1, 0)
        sequence.computed += num_scheduled
        sequence.num_tokens += num_emitted
        if self._ahead:
            sequence.placeholders += num_scheduled - num_emitted
        return Left(sequence, num_scheduled, num_emitted)
