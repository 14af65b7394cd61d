"""Drafts that are right, request by request: drawn from shares, or read from a file.

A draft counts only if all before it were right. Whether it is, is decided by the request and the number of its
outputs, so that a request fares equally well in any batch, with any memory, preempted or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from kvsim.errors import WorkloadError, shortened
from kvsim.policies.acceptance import shares_of

_NUM_DRAWS = 1 << 16
"""Draws that all requests share, each from a beginning of its own."""
_STRIDE = 40_503
"""Draws between the beginnings of two requests in a row; odd, so that each begins at another draw."""
_MOST_FILE_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """A cyclic list of numbers for each request, read by the number of its outputs."""

    values: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    """Index of each request's first number: int64[n]."""
    lengths: npt.NDArray[np.int64]
    """Numbers of each request: int64[n]; 0 for none."""

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Return the numbers of each request, in rows of any lengths."""
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.array([number for row in rows for number in row], np.int64)
        return cls(values=values, first=np.cumsum(lengths) - lengths, lengths=lengths)

    @classmethod
    def drawn(cls, shares: Sequence[float], seed: int, rows: range) -> Self:
        """Draw how many drafts are right, of which position `i` is with all before it in `shares[i]` of all steps."""
        draws = np.random.default_rng(seed).random(_NUM_DRAWS)
        right = np.zeros(_NUM_DRAWS, np.int64)
        for share in shares:
            right += draws < share
        first = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) * _STRIDE % _NUM_DRAWS
        lengths = np.full(len(rows), _NUM_DRAWS, np.int64)
        return cls(values=np.concatenate((right, right)), first=first, lengths=lengths)

    def repeated(self, rows: range) -> Self:
        """Return the lists of the requests in `rows` of a workload whose requests take these in turn."""
        chosen = np.arange(rows.start, rows.stop, rows.step) % len(self.first)
        return type(self)(values=self.values, first=self.first[chosen], lengths=self.lengths[chosen])


def read_outcomes(path: Path) -> tuple[Outcomes, Outcomes]:
    """Read the right and the proposed drafts of each request from a file.

    A line is a request's: for each number of its outputs, from 0 on, how many drafts are right, or `right/proposed`.
    Requests take the lines in turn, and the numbers of a line repeat.

    Raises:
        WorkloadError: it cannot be read, or says something impossible; the sentence names the line.
    """
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise WorkloadError(f"{path}: a file of accepted drafts may have 256 MiB.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"acceptance should be a rate, shares by position, or a file of accepted drafts; {shortened(str(path))} "
            "cannot be read as one."
        ) from error
    right: list[list[int]] = []
    proposed: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        parts = line.partition("#")[0].replace(",", " ").split()
        if not parts:
            continue
        pairs = [part.partition("/") for part in parts]
        says_proposed = any(slash for _, slash, _ in pairs)
        if not all(_is_number(one) and (_is_number(two) if slash else not says_proposed) for one, slash, two in pairs):
            raise WorkloadError(f"{path}, line {number}: accepted drafts are whole numbers, or all are right/proposed.")
        right.append([int(one) for one, _, _ in pairs])
        proposed.append([int(two) for _, _, two in pairs] if says_proposed else [])
        if says_proposed and any(one > two for one, two in zip(right[-1], proposed[-1], strict=True)):
            raise WorkloadError(f"{path}, line {number}: more drafts are right than are proposed.")
    if not right:
        raise WorkloadError(f"{path}: there is no line with accepted drafts.")
    return Outcomes.from_rows(right), Outcomes.from_rows(proposed)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def outcomes_of(
    acceptance: str, rates: Sequence[float], num_tokens: int, seed: int, rows: range
) -> tuple[Outcomes, Outcomes]:
    """Return the right and the proposed drafts of each request in `rows` of a workload.

    `rates` are the shares that vLLM draws itself; empty where `acceptance` says it.
    """
    nothing = Outcomes.from_rows([()] * len(rows))
    shares = rates or shares_of(acceptance, num_tokens)
    if shares is not None:
        return Outcomes.drawn(shares, seed, rows), nothing
    right, proposed = read_outcomes(Path(acceptance))
    return right.repeated(rows), proposed.repeated(rows)
