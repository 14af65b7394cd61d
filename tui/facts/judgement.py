"""Verdict on a run, and a remedy, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics import summarize
from kvsim.metrics.run_verdict import Limit, limit_of, peak_words, wasted_percent
from kvsim.metrics.waiting import Limits

from ..look.wording import plural, seconds

if TYPE_CHECKING:
    from kvsim.metrics import Summary

    from ..playback.session import Session

_FULL_FREE_SHARE: Final = 0.01
"""Share of the pool below which free memory counts as none."""
_SHORT_SHARE_OF_RUN: Final = 0.1
"""A time of at least this share of the run is rounded to a tenth of the run, a shorter one to a tenth of itself."""
_MUCH_WASTE_PERCENT: Final = 25.0
"""Percent of the pool that waste, or of a batch that padding, must take to be a reason for another policy."""


class Judgement(NamedTuple):
    """Verdict on a run in one line, with a shorter form for narrow screens."""

    long: str
    short: str


def judgement_of(session: Session) -> Judgement:
    """Return the verdict on a complete run."""
    summary = summarize(session.recording, session.waste)
    limit = limit_of(summary)
    short_facts, facts = _limiting_facts(session, summary, limit)
    remedy, key = _remedy(session, summary, limit)
    press = f" (press {key})" if key else ""
    return Judgement(f"{facts}: {remedy}{press}", f"{short_facts}: {remedy}" + (f" ({key})" if key else ""))


def _limiting_facts(session: Session, summary: Summary, limit: Limit | None) -> tuple[str, str]:
    """Return what held requests back, as a short text and a long one.

    If `limit` is None, nothing did. The texts are then about refused requests if there are any, otherwise about waste
    or padding if there is much; otherwise they say that nothing waits.
    """
    waits = summary.waiting_for
    if limit is Limit.MEMORY:
        long = _memory_facts(session, summary)
        return long.replace(" computed", ""), long
    if limit is Limit.BATCH:
        return f"{waits.batch:,.0f} wait for a place", f"{waits.batch:,.0f} wait for a place in the batch"
    if limit is Limit.TOKENS:
        return f"{waits.tokens:,.0f} wait for tokens", f"{waits.tokens:,.0f} wait for a step with tokens to spare"
    if limit is Limit.ADAPTERS:
        return f"{waits.adapters:,.0f} wait for an adapter", f"{waits.adapters:,.0f} wait for the slot of an adapter"
    return _unlimited_facts(session, summary)


def _memory_facts(session: Session, summary: Summary) -> str:
    wasted = wasted_percent(summary)
    facts = [_full_words(session)]
    vain = 100 * summary.vain_tokens / max(summary.computed_tokens, 1)
    if vain >= 1:
        facts.append(f"{vain:.0f}% computed in vain")
    elif summary.num_preemptions:
        facts.append(plural(summary.num_preemptions, "preemption"))
    elif wasted >= _MUCH_WASTE_PERCENT:
        facts.append(f"{wasted:.0f}% of it never used")
    elif summary.num_aborted:
        facts.append(f"{plural(summary.num_aborted, 'request')} failed")
    return ", ".join(facts)


def _unlimited_facts(session: Session, summary: Summary) -> tuple[str, str]:
    wasted = wasted_percent(summary)
    if summary.num_refused:
        refused = f"{plural(summary.num_refused, 'request')} refused"
        return refused, f"{refused}: they do not fit into the pool"
    if wasted >= _MUCH_WASTE_PERCENT:
        return (f"{wasted:.0f}% of the pool is never used",) * 2
    if (padded := _padded_percent(session, summary)) >= _MUCH_WASTE_PERCENT:
        return f"{padded:.0f}% of a batch is padding", f"nothing waits, and {padded:.0f}% of a batch is padding"
    return "nothing waits", f"nothing waits, {peak_words(summary).replace(' %', '%')}"  # percentages as on the screens


def _padded_percent(session: Session, summary: Summary) -> float:
    """Return the percentage of a static batch's slots that were padding, mean over time; 0 for other policies.

    Padding costs time even in a large pool: a step computes it, and a request is answered with the slowest of its
    batch.
    """
    if session.recording.meta.policy_name != "static":
        return 0.0
    return float(summary.waste.allocated_percent[SlotState.PADDING])


def _full_words(session: Session) -> str:
    assert session.waste is not None
    over_time = session.waste.with_gaps()
    spans_s = np.diff(over_time.time_s)
    free_units = (session.capacity - over_time.held[:-1]) // session.replay.unit_slots
    full_s = float(spans_s[free_units <= max(_FULL_FREE_SHARE * session.replay.num_units, 1)].sum())
    total_s = float(spans_s.sum())
    if not full_s:
        return "memory is short"
    share = full_s / total_s
    if share < _SHORT_SHARE_OF_RUN:
        return f"full for {seconds(full_s, full_s / 10)} of {seconds(total_s, 1.0)}"
    return f"full for {seconds(full_s, total_s / 10).removesuffix(' s')} of {seconds(total_s, total_s / 10)}"


def _remedy(session: Session, summary: Summary, limit: Limit | None) -> tuple[str, str]:
    """Return a remedy in words, and the key that shows its effect ("" if none). `limit` is what held requests back;
    None if nothing did.

    After a diagnosis, the remedy is the first change with which the load fits the server.
    """
    policy = session.recording.meta.policy_name
    if session.diagnosis is not None and (limit is not None or summary.num_refused):
        enough = (remedy.change.words for remedy in session.diagnosis.remedies if remedy.fits)
        return next(enough, "no change that was tried is enough"), "d"
    if policy in ("paged", "radix"):
        limits, key = summary.limits or Limits, "d" if policy == "paged" else ""
        remedies = {
            Limit.MEMORY: "more memory",
            Limit.BATCH: f"a larger {limits.seqs_setting}",
            Limit.TOKENS: f"a larger {limits.tokens_setting}",
            Limit.ADAPTERS: "a larger max_loras",
        }
        if limit is not None:
            return remedies[limit], key
        return ("a larger pool", key) if summary.num_refused else ("nothing to change", "")
    wasted = max(wasted_percent(summary), _padded_percent(session, summary))
    if limit is not None or wasted >= _MUCH_WASTE_PERCENT:
        return ("continuous batching" if policy == "static" else "memory in pages"), "c"
    return ("a larger pool" if summary.num_refused else "nothing to change"), ""
