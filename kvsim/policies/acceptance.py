"""Acceptance of drafts as the flag takes it: a rate, or shares by position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kvsim.errors import UsageError, shortened


def check_shares(shares: Sequence[Any], name: str) -> tuple[float, ...]:
    """Return shares of steps in which drafts up to each position are right, checked.

    Raises:
        UsageError: they are no shares, or one is larger than that of the position before.
    """
    for share in shares:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UsageError(f"{name} should be shares between 0 and 1, not {shortened(share)}.")
    if any(later > share for share, later in pairwise(shares)):
        raise UsageError(
            f"{name} should not rise from position to position: a draft counts only if all before it were right."
        )
    return tuple(float(share) for share in shares)


def shares_of(acceptance: str, num_tokens: int) -> tuple[float, ...] | None:
    """Return the shares of steps in which each draft is right with all before it; None if a file says it.

    One number is the probability that a draft is right if all before it were; several are these shares themselves, as
    vLLM logs them by position, and none behind the last is right.

    Raises:
        UsageError: a number is no share, or a share is larger than the one before.
    """
    try:
        numbers = [float(part) for part in acceptance.split(",")]
    except ValueError:
        return None
    if len(numbers) == 1:
        [rate] = check_shares(numbers, "acceptance")
        return tuple(rate ** (index + 1) for index in range(num_tokens))
    if len(numbers) > num_tokens:
        raise UsageError(f"acceptance names {len(numbers)} positions, and {num_tokens} tokens are drafted.")
    return check_shares(numbers, "acceptance")
