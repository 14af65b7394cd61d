"""Slots for the token after a stop that only the output reveals.

That token is computed where a step was scheduled ahead, and only there. Whether its slot was ever of use is known when
the request ends, long after the slot was allocated. So it counts as useful from its allocation on, and the time for
which it was held is taken back if the step that would have filled it never came.
"""

from __future__ import annotations

from collections.abc import Sequence


class Surprises:
    """How long requests held a slot for a token that was never computed."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int, bool]] = []  # request, step of a leap, whether it now holds the slot
        self._since_s: dict[int, float] = {}
        self._held_s: dict[int, float] = {}

    def hold(self, request: int, index: int) -> None:
        """`request` got the slot, in step `index` of those that the next `at` tells of."""
        self._changes.append((request, index, True))

    def leave(self, request: int, *, computed: bool) -> None:
        """`request` gave the slot back, if it held one; `computed` says whether the token is in it."""
        self._changes.append((request, 0, False))
        if computed:
            self._held_s[request] = -float("inf")

    def at(self, start_s: Sequence[float]) -> None:
        """What changed since the last call did so at the beginning of steps."""
        for request, index, holds in self._changes:
            if holds:
                self._since_s.setdefault(request, start_s[index])  # a sequence that is moved keeps its slots
            elif request in self._since_s:
                held_s = start_s[0] - self._since_s.pop(request)
                self._held_s[request] = self._held_s.get(request, 0.0) + held_s
        self._changes.clear()

    @property
    def slot_s(self) -> float:
        """Slots times seconds, over all requests that ended without the token."""
        return sum(held_s for held_s in self._held_s.values() if held_s > 0)
