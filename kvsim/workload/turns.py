"""Turns of conversations and agents: requests that wait for the answer to another request.

A turn arrives when the turn that it waits for has ended, and a pause is over in which a user reads or a tool runs. Its
prompt begins with the prompt and the answer of that turn. If several turns wait for the same turn, it has branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsim.errors import UsageError, WorkloadError, shortened
from kvsim.setting_fields import check_instance
from kvsim.workload.columns import LONGEST_S, Ragged, float_column, frozen, int_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from kvsim.workload.columns import FloatArray, Int32Array, Int64Array

NONE = -1
"""Value of `after` for a first turn, which waits for no other turn."""
WHOLE = -1
"""Value of `history_tokens` for a turn that repeats the whole prompt and the whole answer of the turn before."""


class _TokenColumns(Protocol):
    @property
    def prompt_tokens(self) -> Int32Array: ...
    @property
    def output_tokens(self) -> Int32Array: ...
    @property
    def ids(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Turns:
    """Turns of sessions: for each request, the turn that it waits for, the pause after the end of that turn, and the
    number of tokens of that turn with which its prompt begins.

    Raises:
        UsageError: a column has the wrong shape or type.
    """

    after: Int32Array
    """Row of the turn that each request waits for; -1 for a first turn: int32[n]."""
    pause_s: FloatArray
    """Seconds between the end of the turn in `after` and the arrival of the request: float64[n]."""
    history_tokens: Int32Array
    """Number of leading tokens of each prompt that repeat the prompt, then the answer, of the turn in `after`:
    int32[n].

    The constructor also takes -1: the whole turn in `after`, or as much of it as fits into the prompt.
    """

    also_after: Ragged[np.int64]
    """Rows of further turns that each request waits for: n rows.

    With several turns, the pause begins when the last one has ended.
    """

    def __init__(
        self,
        *,
        after: ArrayLike,
        pause_s: ArrayLike | None = None,
        history_tokens: ArrayLike | None = None,
        also_after: Ragged[np.int64] | None = None,
    ) -> None:
        check_instance(
            "also_after", also_after, Ragged | None, "a Ragged, such as Ragged.from_rows([[], [0]], np.int64)"
        )
        rows = int_column("after", after, np.int32)
        n = rows.size
        history = np.broadcast_to(WHOLE, n) if history_tokens is None else history_tokens
        object.__setattr__(self, "after", rows)
        object.__setattr__(self, "pause_s", float_column("pause_s", np.zeros(n) if pause_s is None else pause_s, n))
        object.__setattr__(self, "history_tokens", int_column("history_tokens", history, np.int32, n))
        object.__setattr__(self, "also_after", Ragged.empty(n, np.int64) if also_after is None else also_after)
        if len(self.also_after) != n:
            raise UsageError(f"also_after should have a row for each of the {n} turns, not {len(self.also_after)}.")

    def __len__(self) -> int:
        return self.after.size

    def __repr__(self) -> str:
        return f"<Turns: {len(self):,} turns of {int((self.after < 0).sum()):,} sessions>"

    @property
    def turn(self) -> Int32Array:
        """Number of each turn in its session, from 0; -1 for a turn that waits in a circle: int32[n]."""
        turn = np.full(len(self), -1, np.int32)
        for number, rows in enumerate(self._levels()):
            turn[rows] = number
        return frozen(turn)

    @property
    def session(self) -> Int32Array:
        """Number of the session of each turn, from 0 in the order of the sessions' first turns: int32[n]."""
        session = np.cumsum(self.after < 0, dtype=np.int32) - 1
        for rows in self._levels()[1:]:
            session[rows] = session[self.after[rows]]
        return frozen(session)

    def followers(self) -> list[list[int]]:
        """Return, for each row, the rows that wait for it."""
        followers: list[list[int]] = [[] for _ in range(len(self))]
        for row, after in enumerate(self.after.tolist()):
            if after >= 0:
                followers[after].append(row)
        for row, other in zip(self._joining.tolist(), self.also_after.values.tolist(), strict=True):
            followers[other].append(row)
        return followers

    def num_awaited(self) -> list[int]:
        """Return, for each row, the number of turns that it waits for."""
        found: list[int] = ((self.after >= 0) + self.also_after.lengths).tolist()
        return found

    @property
    def _joining(self) -> Int64Array:
        """Row of the request that waits, for each value of `also_after`: int64[number of values]."""
        return np.repeat(np.arange(len(self)), self.also_after.lengths)

    def checked(self, workload: _TokenColumns) -> Turns:
        """Check the turns of `workload`. Return them with a number of tokens in place of each -1 in `history_tokens`.

        Raises:
            WorkloadError: a turn is invalid; the message names the first such row.
        """
        self._check_rows(workload)
        prompt, history = workload.prompt_tokens, self.history_tokens
        most = np.where(self.after < 0, 0, (prompt.astype(np.int64) + workload.output_tokens)[self.after])
        long = (
            "its history_tokens is {history_tokens}; it must be at most its prompt_tokens, {prompt}, and at most "
            "{most}, the prompt and the answer of the turn that it waits for"
        )
        for sentence, bad in (
            ("its pause_s is {pause_s:g}; it must be a number of seconds, 0 to {longest:g}", self._bad_pauses()),
            (long, (history > np.minimum(prompt, most)) | (history < WHOLE)),
        ):
            if bad.any():
                row = int(bad.argmax())
                values = {"pause_s": self.pause_s[row], "history_tokens": history[row], "longest": LONGEST_S}
                said = sentence.format(**values, prompt=prompt[row], most=most[row])
                raise WorkloadError(f"request {shortened(workload.ids[row])} (row {row}): {said}.")
        return Turns(
            after=self.after,
            pause_s=self.pause_s,
            history_tokens=np.where(history < 0, np.minimum(prompt, most), history),
            also_after=self.also_after,
        )

    def earliest_s(self, arrival_s: FloatArray) -> FloatArray:
        """Return the arrival times, each raised to at least the arrival time of the turn in `after`. Pauses and the
        lengths of turns do not count.
        """
        earliest = arrival_s.copy()
        for rows in self._levels()[1:]:
            earliest[rows] = np.maximum(earliest[rows], earliest[self.after[rows]])
        return frozen(earliest)

    def take(self, rows: Int64Array) -> Turns:
        """Return the turns in `rows`, in this order. They wait only for turns in `rows`.

        If the turn in `after` is not in `rows`, the first of `also_after` that is in `rows` takes its place, and
        the history is empty. A turn that waits for none of `rows` becomes a first turn.
        """
        # The additional last entry translates NONE, which is index -1, to NONE.
        place = np.full(len(self) + 1, NONE, np.int64)
        place[rows] = np.arange(len(rows))
        place[NONE] = NONE
        after, also = place[self.after[rows]], self.also_after.take(rows)
        # A prompt repeats the turn in `after`. Without that turn, it has no history.
        history = np.where(after >= 0, self.history_tokens[rows], 0)
        if not len(also.values):
            return Turns(after=after, pause_s=self.pause_s[rows], history_tokens=history)
        others = [[other for other in place[also[row]].tolist() if other >= 0] for row in range(len(rows))]
        for row in np.flatnonzero(after < 0):
            after[row] = others[row].pop(0) if others[row] else NONE
        also = Ragged.from_rows(others, np.int64)
        return Turns(after=after, pause_s=self.pause_s[rows], history_tokens=history, also_after=also)

    def without_orphans(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return `kept`, but False for turns that wait, directly or not, for a turn that is not kept: bool[n]."""
        kept = kept.copy()
        num_kept = -1
        while num_kept != (num_kept := int(kept.sum())):  # until no turn waits for a dropped one
            kept[self._joining[~kept[self.also_after.values]]] = False
            for rows in self._levels()[1:]:
                kept[rows] &= kept[self.after[rows]]
        return kept

    def _levels(self) -> list[Int64Array]:
        """Return the rows of all first turns, then the rows of turns whose `after` is a first turn, and so on.

        Turns that wait in a circle are in none of the lists.
        """
        # The rows that wait for row r are order[begin[r]:begin[r + 1]]; those that wait for none come before begin[0].
        order = np.argsort(self.after, kind="stable")
        begin = np.searchsorted(self.after[order], np.arange(len(self) + 1))
        levels = [order[: begin[0]]]
        while levels[-1].size:
            rows = levels[-1]
            sizes = begin[rows + 1] - begin[rows]
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            levels.append(np.sort(order[np.repeat(begin[rows], sizes) + within]))
        return levels[:-1]

    def _is_circular(self) -> NDArray[np.bool_]:
        """Mark each turn that never arrives, because it waits in a circle, or for a turn in one: bool[n]."""
        waits, followers = self.num_awaited(), self.followers()
        ready = [row for row, number in enumerate(waits) if not number]
        while ready:
            for row in followers[ready.pop()]:
                waits[row] -= 1
                if not waits[row]:
                    ready.append(row)
        return np.array(waits, np.int64) > 0

    def _bad_pauses(self) -> NDArray[np.bool_]:
        return np.asarray(~((self.pause_s >= 0) & (self.pause_s <= LONGEST_S)))

    def _check_rows(self, workload: _TokenColumns) -> None:
        """Check that all turns wait for rows that exist, and that no turns wait for each other in a circle."""
        n = len(self)
        bad = (self.after < NONE) | (self.after >= n)
        if bad.any():
            row = int(bad.argmax())
            raise WorkloadError(
                f"request {shortened(workload.ids[row])} (row {row}): it waits for row {self.after[row]}, and the "
                f"rows are 0 to {n - 1}; give -1 where a request waits for none."
            )
        joining, others = self._joining, self.also_after.values
        if ((others < 0) | (others >= n) | (self.after[joining] < 0)).any():
            row = int(joining[((others < 0) | (others >= n) | (self.after[joining] < 0)).argmax()])
            raise WorkloadError(
                f"request {shortened(workload.ids[row])} (row {row}): also_after should name rows 0 to {n - 1}, of a "
                "turn that has one in after, too."
            )
        circular = (self.turn < 0) | self._is_circular()
        if circular.any():
            row = int(circular.argmax())
            raise WorkloadError(
                f"request {shortened(workload.ids[row])} (row {row}): it waits for "
                f"{shortened(workload.ids[int(self.after[row])])}, and these turns wait for each other in a circle; "
                "a session begins with a turn that waits for none."
            )
