"""Pack sequences for training into rows of equal length, or pad each batch to its longest sequence.

A packed row has several sequences: the tokens of A, an end token, the tokens of B, an end token, and padding. Training
knows all lengths in advance and keeps no KV, so its memory can be almost full without paging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Assignment of sequences to rows. Each sequence takes one slot more than it has tokens, for its end token."""

    rows: tuple[tuple[int, ...], ...]
    """Indices of the sequences in each row, from left to right."""
    num_tokens: int
    """Number of tokens in all rows, with end tokens."""
    num_slots: int
    """Number of slots in all rows, with padding."""

    @property
    def used_percent(self) -> float:
        """Percentage of slots that contain a token."""
        return 100 * self.num_tokens / self.num_slots

    @property
    def num_padding(self) -> int:
        """Number of slots without a token."""
        return self.num_slots - self.num_tokens


def first_fit_decreasing(lengths: Sequence[int], row_tokens: int) -> Packing:
    """Pack the sequences, from the longest to the shortest, each into the first row of `row_tokens` slots with room.

    The number of rows is at most 11/9 of the minimum, plus one. With real lengths, almost no slot stays empty. The time
    is of order n log n.

    Raises:
        UsageError: there is no sequence, or a sequence does not fit into a row.
    """
    _check(lengths)
    if max(lengths) + 1 > row_tokens:
        raise UsageError(
            f"a sequence of {max(lengths)} tokens and its end token do not fit into a row of {row_tokens}; "
            "cut it, or make rows longer (--row-tokens)."
        )
    rows: list[list[int]] = []
    room = _FreeTokens(len(lengths), row_tokens)
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = room.take_first(lengths[index] + 1)
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
    return Packing(
        rows=tuple(map(tuple, rows)), num_tokens=sum(lengths) + len(lengths), num_slots=len(rows) * row_tokens
    )


def padded(lengths: Sequence[int], batch_size: int) -> Packing:
    """Give each sequence a row, in order, as long as the longest sequence among the `batch_size` of its batch."""
    _check(lengths)
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} rows was asked for; ask for at least 1.")
    batches = [lengths[begin : begin + batch_size] for begin in range(0, len(lengths), batch_size)]
    return Packing(
        rows=tuple((index,) for index in range(len(lengths))),
        num_tokens=sum(lengths) + len(lengths),
        num_slots=sum(len(batch) * (max(batch) + 1) for batch in batches),
    )


class _FreeTokens:
    """Number of free tokens in each row, as a search tree that finds the first row with room in logarithmic time."""

    def __init__(self, num_rows: int, row_tokens: int) -> None:
        self._leaves = 1 << (num_rows - 1).bit_length()
        self._free = [row_tokens] * (2 * self._leaves)
        """Nodes of the tree: the largest number of free tokens in any row below the node. Node 1 is the root; node `n`
        has the children `2n` and `2n + 1`.
        """

    def take_first(self, size: int) -> int:
        """Take `size` tokens of the first row with enough free tokens; return its index. There must be such a row."""
        free, node = self._free, 1
        while node < self._leaves:
            node *= 2
            node += free[node] < size
        row = node - self._leaves
        free[node] -= size
        while node := node // 2:
            free[node] = max(free[2 * node], free[2 * node + 1])
        return row


def largest_batch(capacity_slots: int, tokens: int) -> int:
    """Return the number of sequences of `tokens` tokens, prompt and answer, that fit into `capacity_slots`."""
    if tokens < 2:
        raise UsageError(f"rows of {tokens} tokens were asked for; a prompt and an answer have at least 2.")
    return capacity_slots // (tokens - 1)  # the last token is never written


def _check(lengths: Sequence[int]) -> None:
    if not lengths or min(lengths) < 1:
        raise UsageError(f"{len(lengths)} sequences were given; there must be at least 1, each of at least 1 token.")
