"""Judge a run in words: whether all requests were served, and which limit held them back.

The judgement uses only the `Summary`. Three limits make requests wait or preempt them: the memory, the number of
requests in a batch, and the number of tokens in a step. If no limit does so, requests spend all their time in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from kvsim.memory.waste import SlotState

if TYPE_CHECKING:
    from kvsim.metrics import Summary

_MIN_WAITING = 0.05
"""Smallest mean number of waiting requests with which a limit counts as holding requests back."""


class Limit(Enum):
    """Limit that holds requests back. The value is its name in a sentence."""

    MEMORY = "memory"
    BATCH = "the batch limit"
    TOKENS = "the token budget of a step"
    ADAPTERS = "the slots of adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """Verdict on a run: whether it went well, and if not, the limit that held it back."""

    is_good: bool
    """True if all requests were served, no request was preempted, and no limit made requests wait."""
    limit: Limit | None
    """Limit with the most waiting requests on average; None if they are few or limits are unknown; see `limit_of`."""
    sentence: str

    def as_dict(self) -> dict[str, bool | str | None]:
        """Return the verdict for JSON."""
        return {"is_good": self.is_good, "limit": None if self.limit is None else self.limit.name.lower(),
                "sentence": self.sentence}  # fmt: skip


def verdict_of(summary: Summary) -> RunVerdict:
    """Return the verdict on a run with this summary."""
    limit = limit_of(summary)
    num_lost = summary.num_refused + summary.num_aborted + summary.num_unfinished
    return RunVerdict(
        is_good=limit is None and not num_lost, limit=limit, sentence=f"{_cause(summary, limit)} {_served(summary)}"
    )


def limit_of(summary: Summary) -> Limit | None:
    """Return the limit with the largest number of waiting requests, mean over time.

    If requests were preempted or aborted, it is memory in any case. Return None if that number is small, or if the
    limits are unknown.
    """
    if summary.num_preemptions or summary.num_aborted:
        return Limit.MEMORY
    waits = summary.waiting_for
    by_limit = {Limit.MEMORY: waits.memory, Limit.BATCH: waits.batch, Limit.TOKENS: waits.tokens}
    by_limit[Limit.ADAPTERS] = waits.adapters
    most = max(by_limit, key=lambda limit: np.nan_to_num(by_limit[limit]))
    return most if by_limit[most] >= _MIN_WAITING else None


def limit_words(limit: Limit | None) -> str:
    """Return the name of a limit for a cell of a table; "nothing" for None."""
    return "nothing" if limit is None else limit.value


def _cause(summary: Summary, limit: Limit | None) -> str:
    waits = summary.waiting_for
    if limit is Limit.MEMORY:
        return f"Memory is short: {_shortage(summary)}."
    if limit is Limit.BATCH:
        limits = summary.limits
        setting = f"{limits.seqs_setting} {limits.max_num_seqs:,}" if limits and limits.max_num_seqs else "batch_size"
        return f"The batch is full ({setting}): {waits.batch:,.1f} requests wait for a place in it on average."
    if limit is Limit.ADAPTERS:
        slots = f" (max_loras {summary.limits.max_loras:,})" if summary.limits else ""
        return f"Slots of adapters are short{slots}: {waits.adapters:,.1f} requests wait for one on average."
    if limit is Limit.TOKENS:
        limits = summary.limits
        setting = f" ({limits.tokens_setting} {limits.max_num_batched_tokens:,})" if limits else ""
        return f"Steps are full{setting}: {waits.tokens:,.1f} requests wait on average for a step with tokens to spare."
    queue = "" if summary.mean_waiting else "no request ever waits in the queue, "
    return f"Nothing is held back: {queue}{peak_words(summary)}." if summary.duration_s else "No time passes."


def _shortage(summary: Summary) -> str:
    if summary.num_preemptions:
        often = f" ({60 * summary.num_preemptions / summary.duration_s:,.0f} a minute)" if summary.duration_s else ""
        vain = f"{100 * summary.vain_tokens / summary.computed_tokens:.0f} % of all tokens were computed in vain"
        return f"{_count(summary.num_preemptions, 'preemption')}{often}, {vain}"
    if summary.num_aborted:
        return f"{_count(summary.num_aborted, 'request')} failed for lack of it"
    return f"{summary.waiting_for.memory:,.1f} requests wait for it on average"


def _served(summary: Summary) -> str:
    total = summary.num_finished + summary.num_refused + summary.num_aborted + summary.num_unfinished
    whole = summary.num_finished == total
    every = "The only request" if total == 1 else f"All {_count(total, 'request')}"
    served = every if whole else f"{summary.num_finished:,} of {_count(total, 'request')}"
    time = f" in {summary.duration_s:,.1f} s, {summary.output_tokens_per_s:,.0f} output tokens/s"
    refused = f"; {summary.num_refused:,} could never be served" if summary.num_refused else ""
    are = "is" if total == 1 else "are"
    return f"{served} {are} served{time if summary.duration_s else ''}{refused}."


def peak_words(summary: Summary) -> str:
    """Return a clause about the peak occupancy of the pool."""
    return f"at most {max(100 * summary.peak_occupancy, 1):.0f} % of the pool is in use"


def wasted_percent(summary: Summary) -> float:
    """Return the percentage of the pool, mean over time, that was held but not needed, or free but unusable."""
    return float(
        summary.waste.pool_percent[[SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL]].sum()
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
