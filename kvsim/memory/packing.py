"""Sequences for training, packed into rows of equal length: [A, end, B, end, padding].

Training knows every length beforehand and keeps nothing afterwards, so memory can be nearly full without any paging:
rows are filled like boxes, the longest sequence first. Beside it, what serving and careless training do: a batch padded
to its longest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Which sequences stand in which row, each followed by an end token."""

    rows: tuple[tuple[int, ...], ...]
    """Indices of the sequences in each row, in the order in which they stand there."""
    num_tokens: int
    """Tokens in all rows, the end tokens included."""
    num_slots: int
    """Tokens that there is room for: the rows with their padding."""

    @property
    def used_percent(self) -> float:
        """Slots that hold a token."""
        return 100 * self.num_tokens / self.num_slots

    @property
    def num_padding(self) -> int:
        """Slots that hold nothing."""
        return self.num_slots - self.num_tokens


def first_fit_decreasing(lengths: Sequence[int], row_tokens: int) -> Packing:
    """Put sequences into as few rows of `row_tokens` as first fit finds, the longest first; in time n log n.

    It never needs more than 11/9 of the fewest rows possible, and one; with real lengths hardly a slot stays empty.
    """
    _check(lengths)
    if max(lengths) + 1 > row_tokens:
        raise UsageError(
            f"a sequence of {max(lengths)} tokens and its end token do not fit into a row of {row_tokens}; "
            "cut it, or make rows longer."
        )
    rows: list[list[int]] = []
    room = _Rooms(len(lengths), row_tokens)
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = room.take_first(lengths[index] + 1)
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
    return Packing(
        rows=tuple(map(tuple, rows)), num_tokens=sum(lengths) + len(lengths), num_slots=len(rows) * row_tokens
    )


def padded(lengths: Sequence[int], batch_size: int) -> Packing:
    """One sequence to a row, in the given order, every `batch_size` rows as wide as the longest of them."""
    _check(lengths)
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} rows was asked for; ask for at least 1.")
    batches = [lengths[begin : begin + batch_size] for begin in range(0, len(lengths), batch_size)]
    return Packing(
        rows=tuple((index,) for index in range(len(lengths))),
        num_tokens=sum(lengths) + len(lengths),
        num_slots=sum(len(batch) * (max(batch) + 1) for batch in batches),
    )


class _Rooms:
    """Room in each of `num_rows` rows, as a tree of maxima, to find the first row with enough of it in log time."""

    def __init__(self, num_rows: int, row_tokens: int) -> None:
        self._leaves = 1 << (num_rows - 1).bit_length()
        self._room = [row_tokens] * (2 * self._leaves)

    def take_first(self, size: int) -> int:
        """Take `size` tokens of the first row that has them, which there is, and return its number."""
        room, node = self._room, 1
        while node < self._leaves:
            node *= 2
            node += room[node] < size
        row = node - self._leaves
        room[node] -= size
        while node := node // 2:
            room[node] = max(room[2 * node], room[2 * node + 1])
        return row


def _check(lengths: Sequence[int]) -> None:
    if not lengths or min(lengths) < 1:
        raise UsageError(f"{len(lengths)} sequences were given; there must be at least 1, each of at least 1 token.")
