"""Acceptance rates of drafts, by position, from the text of `--acceptance`.

A simulation draws accepted drafts with these rates. The rate of a position is the share of steps that accept the draft
there and all drafts before it, so rates never rise from position to position. vLLM logs the same rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kvsim.errors import UsageError, shortened
from kvsim.files.values import is_number


def checked_rates(rates: Sequence[Any], name: str) -> tuple[float, ...]:
    """Return the acceptance rates by position as floats. `name` names the setting in errors.

    Raises:
        UsageError: a rate is no share between 0 and 1, or rates rise.
    """
    for rate in rates:
        if not is_number(rate, 0, 1):
            raise UsageError(f"{name} should be shares between 0 and 1, not {shortened(rate)}.")
    if any(later > rate for rate, later in pairwise(rates)):
        raise UsageError(
            f"{name} should not rise from position to position: a draft counts only if all before it were right."
        )
    return tuple(float(rate) for rate in rates)


def rates_of(acceptance: str, num_tokens: int) -> tuple[float, ...] | None:
    """Return the acceptance rates by position, for `num_tokens` drafts; None if `acceptance` is the path of a file.

    A single number is the probability that a draft is accepted if all drafts before it were. Several numbers are the
    rates by position; drafts at further positions are never accepted.

    Raises:
        UsageError: a rate is no share between 0 and 1, rates rise, or there are more rates than drafts.
    """
    try:
        numbers = [float(part) for part in acceptance.split(",")]
    except ValueError:
        return None
    if len(numbers) == 1:
        [rate] = checked_rates(numbers, "--acceptance")
        return tuple(rate ** (index + 1) for index in range(num_tokens))
    if len(numbers) > num_tokens:
        raise UsageError(f"--acceptance names {len(numbers)} positions, and {num_tokens} tokens are drafted.")
    return checked_rates(numbers, "--acceptance")
