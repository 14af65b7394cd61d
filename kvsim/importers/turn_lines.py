"""Collector of the waits between the requests of a file: for the turn before in a session, or for named requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import shortened
from kvsim.workload import Ragged
from kvsim.workload.turns import NONE, WHOLE, Turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.importers.source import SourceRow


@dataclass(slots=True)
class TurnLines:
    """Turns of one file, in the order of its rows, without requests that have no prompt or no output.

    All lists have one entry per request. An index of a request is its index in these lists.
    """

    after: list[int] = field(default_factory=list)
    """Index of the request for which each request waits; `NONE`, -1, if it waits for none."""
    pause_s: list[float] = field(default_factory=list)
    """Seconds from the end of all requests for which it waits until it is sent."""
    history_tokens: list[int] = field(default_factory=list)
    """Tokens of request `after` that its prompt repeats: `WHOLE` for prompt and output, 0 without such a request."""
    also_after: list[list[int]] = field(default_factory=list)
    """Indices of further requests for which it waits."""
    _index_of: dict[str, int] = field(default_factory=dict)
    """Index of the last request with each name."""
    _last_of: dict[str, int] = field(default_factory=dict)
    """Index of the last request of each session."""

    def before(self, row: SourceRow, session: str | None, names: list[str]) -> int:
        """Return the index of the request for which `row` waits; `NONE`, -1, if it waits for none.

        It is the latest of the requests `names`; without names, the latest request of the `session`.

        Raises:
            WorkloadError: no earlier row has one of the names.
        """
        unknown = [name for name in names if name not in self._index_of]
        if unknown:
            raise row.error(
                f"it waits for {shortened(unknown[0])}, and no line before it has this name; put a turn behind the one "
                "that it waits for"
            )
        if names:
            return max(self._index_of[name] for name in names)
        return NONE if session is None else self._last_of.get(session, NONE)

    def add(
        self,
        after: int,
        pause_s: float,
        history_tokens: int = WHOLE,
        *,
        name: str | None,
        session: str | None,
        names: Sequence[str] = (),
    ) -> None:
        """Add the next request, which waits for the request at index `after` and for all requests `names`.

        `after` is the result of `before`. With `names`, it is the latest one, and `also_after` gets the others.

        It is sent `pause_s` seconds after these have ended. Its prompt repeats `history_tokens` tokens of `after`;
        `WHOLE` means the prompt and the output of `after`.
        """
        self.also_after.append([other for each in dict.fromkeys(names) if (other := self._index_of[each]) != after])
        index = len(self.after)
        self.after.append(after)
        self.pause_s.append(pause_s)
        self.history_tokens.append(0 if after == NONE else history_tokens)
        if name is not None:
            self._index_of[name] = index
        if session is not None:
            self._last_of[session] = index

    def turns(self) -> Turns | None:
        """Return the turns; None if no request waits for another."""
        if not any(after >= 0 for after in self.after):
            return None
        return Turns(
            after=self.after,
            pause_s=self.pause_s,
            history_tokens=self.history_tokens,
            also_after=Ragged.from_rows(self.also_after, np.int64),
        )
