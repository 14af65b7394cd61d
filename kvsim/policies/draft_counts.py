"""Numbers of accepted and proposed drafts for each request: drawn at random, or read from a file.

A simulation has no model to verify drafts, so these numbers decide how many tokens a step adds to a request. A draft is
accepted only if all drafts before it are. The numbers depend only on the request and on how many output tokens it has.
So a request gets the same numbers in any batch and any memory, even if it is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from kvsim.errors import WorkloadError, shortened
from kvsim.policies.acceptance import rates_of

_NUM_DRAWS = 1 << 16
"""Length of the cyclic list of random numbers that all requests share. Each request begins at a different index."""
_STRIDE = 40_503
"""Distance between the first indices of two consecutive requests.

It is odd, and the length of the list is a power of two. So the first indices of `_NUM_DRAWS` consecutive requests all
differ.
"""
_MOST_FILE_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Numbers of drafts for each request, in cyclic lists.

    When request i has k output tokens, it uses `values[first[i] + k % lengths[i]]`. Lists may overlap.
    """

    values: npt.NDArray[np.int64]
    """Entries of the lists of all requests."""
    first: npt.NDArray[np.int64]
    """Index in `values` at which the list of each request begins: int64[num_requests]."""
    lengths: npt.NDArray[np.int64]
    """Length of the list of each request: int64[num_requests]; 0 if the request has no list."""

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Return the lists in `rows`, one for each request. Their lengths may differ."""
        lengths = np.array([len(row) for row in rows], np.int64)
        values = np.array([number for row in rows for number in row], np.int64)
        return cls(values=values, first=np.cumsum(lengths) - lengths, lengths=lengths)

    @classmethod
    def draw(cls, rates: Sequence[float], seed: int, rows: range) -> Self:
        """Draw the numbers of accepted drafts of the requests in `rows` of a workload.

        `rates[i]` is the share of steps that accept draft `i` and all drafts before it, as in `rates_of`. Equal seeds
        give equal numbers.
        """
        # One uniform number decides a whole step: it accepts the drafts whose rate is above the number. Rates never
        # rise from position to position, so these are the first drafts, without a gap.
        draws = np.random.default_rng(seed).random(_NUM_DRAWS)
        accepted = np.zeros(_NUM_DRAWS, np.int64)
        for rate in rates:
            accepted += draws < rate
        first = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) * _STRIDE % _NUM_DRAWS
        lengths = np.full(len(rows), _NUM_DRAWS, np.int64)
        # The list appears twice in `values`, so that a request can read `_NUM_DRAWS` numbers from any index on.
        return cls(values=np.concatenate((accepted, accepted)), first=first, lengths=lengths)

    def of_request(self, row: int) -> list[int]:
        """Return the list of request `row`."""
        return list(map(int, self.values[self.first[row] :][: self.lengths[row]]))

    def repeated(self, rows: range) -> Self:
        """Return lists for the requests in `rows` of a workload: request `row` gets list `row % n` of the n lists."""
        chosen = np.arange(rows.start, rows.stop, rows.step) % len(self.first)
        return type(self)(values=self.values, first=self.first[chosen], lengths=self.lengths[chosen])


def read_draft_counts(path: Path) -> tuple[DraftCounts, DraftCounts]:
    """Read the numbers of accepted and of proposed drafts from a file.

    Each line is for one request. Its entries are for the steps before which the request has 0, 1, 2, ... output tokens.
    An entry is the number of accepted drafts, or `accepted/proposed`. Entries are separated by spaces or commas; `#`
    begins a comment. The lines repeat if there are more requests, and the entries of a line if the request has more
    output tokens.

    Raises:
        WorkloadError: the file cannot be read or has no numbers, or a number is impossible; the message names the line.
    """
    accepted: list[list[int]] = []
    proposed: list[list[int]] = []
    for number, line in enumerate(_lines_of(path), 1):
        parts = line.partition("#")[0].replace(",", " ").split()
        if not parts:
            continue
        pairs = [part.split("/") for part in parts]
        has_proposed = "/" in "".join(parts)
        if not all(len(pair) == 1 + has_proposed and all(map(_is_number, pair)) for pair in pairs):
            raise WorkloadError(f"{path}, line {number}: accepted drafts are whole numbers, or all are right/proposed.")
        accepted.append([int(pair[0]) for pair in pairs])
        proposed.append([int(pair[1]) for pair in pairs] if has_proposed else [])
        if has_proposed and any(first > second for first, second in zip(accepted[-1], proposed[-1], strict=True)):
            raise WorkloadError(f"{path}, line {number}: more drafts are right than are proposed.")
    if not accepted:
        raise WorkloadError(f"{path}: there is no line with accepted drafts.")
    return DraftCounts.from_rows(accepted), DraftCounts.from_rows(proposed)


def _lines_of(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise WorkloadError(f"{path}: a file of accepted drafts may have 256 MiB.")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"--acceptance should be a rate, shares by position, or a file of accepted drafts; {shortened(str(path))} "
            "cannot be read as one."
        ) from error


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def draft_counts_of(
    acceptance: str, *, synthetic_rates: Sequence[float], num_tokens: int, seed: int, rows: range
) -> tuple[DraftCounts, DraftCounts]:
    """Return the numbers of accepted and of proposed drafts for the requests in `rows` of a workload.

    `acceptance` is the setting: a rate, rates by position, or a file. If `synthetic_rates` is not empty, vLLM itself
    draws accepted drafts with these rates, so they replace `acceptance`. `num_tokens` is the number of drafts for each
    request and step.
    """
    rates = synthetic_rates or rates_of(acceptance, num_tokens)
    if rates is not None:
        as_many_as_allowed = DraftCounts.from_rows([()] * len(rows))
        return DraftCounts.draw(rates, seed, rows), as_many_as_allowed
    accepted, proposed = read_draft_counts(Path(acceptance))
    return accepted.repeated(rows), proposed.repeated(rows)
