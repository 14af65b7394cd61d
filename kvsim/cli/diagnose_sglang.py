"""`kvsim diagnose` for SGLang's policy: retractions (SGLang's preemptions), and the throughput lost after them."""

from __future__ import annotations

from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING

from kvsim.cli.show import echo, print_json, print_table, progress, seconds
from kvsim.diagnosis import retractions_of, try_remedies
from kvsim.metrics import summarize
from kvsim.metrics.run_verdict import verdict_of

if TYPE_CHECKING:
    from kvsim.diagnosis import RemedyRun, Retraction
    from kvsim.recording import Recording

_MIN_GAIN = 1.01
"""Smallest factor by which a change must raise the throughput to be advised."""
_MOST = 5
"""Maximum number of described retractions. Those with the most missing output tokens are chosen."""


def diagnose_sglang(recording: Recording, *, tries: bool, as_json: bool) -> None:
    """Print the cost of retractions, and the simulated effect of other settings."""
    found, verdict = retractions_of(recording), verdict_of(summarize(recording))
    tried: list[RemedyRun] = []
    if tries:
        with progress("diagnose") as report:
            tried = try_remedies(recording, report)
    if as_json:
        print_json({
            "verdict": verdict.as_dict(),
            "moments": [_moment(recording, each) for each in found],
            "retractions": [
                {
                    "at_s": each.at_s, "requests": len(each.losses), "lost_tokens": each.lost_tokens,
                    "ratio_before": each.ratio_before, "ratio": each.ratio, "back_s": each.back_s,
                    "steps": each.num_steps, "throughput_stays_low": each.throughput_stays_low,
                    "before": asdict(each.before), "after": asdict(each.after),
                }
                for each in found
            ],
            "tried": [asdict(each) for each in tried],
            "advice": advice(tried) if tried else [],
        })  # fmt: skip
        return
    echo(verdict.sentence)
    echo(_cause(found))
    costliest = sorted(found, key=lambda each: -_missing_tokens(each))[:_MOST]
    for each in sorted(costliest, key=lambda each: each.at_s):
        echo(f"- {_moment(recording, each)}")
    if tried:
        rows = [(each.flags, f"{each.tokens_per_s:,.0f}", seconds(each.ttft_p99_s), f"{each.num_retractions:,}")
                for each in tried]  # fmt: skip
        columns = ["the same requests, simulated", "output tokens/s", "TTFT p99", "retractions"]
        print_table("", columns, rows, figures=(1, 2, 3))
        for sentence in advice(tried):
            echo(sentence)


def advice(tried: list[RemedyRun]) -> list[str]:
    """Return sentences on the simulated changes: lower and higher schedule_conservativeness, and more memory.

    `tried` begins with the present settings and ends with more memory, as `try_remedies` returns them.
    """
    now, memory, output = tried[0], tried[-1], attrgetter("tokens_per_s")
    lower, higher = (
        max((each for each in tried if (each.factor < 1) == is_lower and each.factor != 1), key=output)
        for is_lower in (True, False)
    )
    best, other = (lower, higher) if output(lower) > output(higher) else (higher, lower)
    way = "lower" if best is lower else "higher"
    if output(best) < _MIN_GAIN * output(now):
        said = [
            "Keep --schedule-conservativeness: of what was tried, no value brings 1 % more output.",
            f"A lower one ({lower.flags.split()[-1]}) brings {_effect(lower, now)}.",
            f"A higher one ({higher.flags.split()[-1]}) brings {_effect(higher, now)}.",
        ]
    else:
        said = [
            f"Take {best.flags}, a {way} value: {_effect(best, now)}.",
            f"In the other direction, {other.flags} brings {_effect(other, now)}.",
        ]
    return [*said, f"{memory.flags} brings {_effect(memory, now)}."]


def _effect(tried: RemedyRun, now: RemedyRun) -> str:
    gain = 100 * (tried.tokens_per_s / now.tokens_per_s - 1)
    return (
        f"{tried.tokens_per_s:,.0f} tokens/s instead of {now.tokens_per_s:,.0f} ({gain:+.1f} %), TTFT p99 "
        f"{seconds(tried.ttft_p99_s)} instead of {seconds(now.ttft_p99_s)}, {tried.num_retractions:,} retractions "
        f"instead of {now.num_retractions:,}"
    )


def _missing_tokens(retraction: Retraction) -> float:
    """Estimate the output tokens lost to a retraction: the drop in tokens per second, times the seconds until
    new_token_ratio is back at its earlier value. The result is 0 if the rate did not drop.
    """
    lost_per_s = retraction.before.tokens_per_s - retraction.after.tokens_per_s
    return max(lost_per_s, 0.0) * (retraction.back_s - retraction.at_s)


def _cause(found: list[Retraction]) -> str:
    if not found:
        return "Nothing was retracted: admission never expected too little."
    away = [each for each in found if each.throughput_stays_low]
    if not away:
        return "Requests were retracted, and throughput came back: admission kept as many running."
    number = "a retraction" if len(away) == 1 else f"{len(away):,} retractions"
    return (
        f"Throughput did not come back after {number}: admission then expects nearly whole answers of "
        "those that run, so slots stay free while requests wait."
    )


def _moment(recording: Recording, retraction: Retraction) -> str:
    names = [str(recording.requests.id[loss.request]) for loss in retraction.losses]
    who = names[0] if len(names) == 1 else f"{len(names):,} requests ({', '.join(names[:3])}{', …' * (len(names) > 3)})"
    before, after = retraction.before, retraction.after
    return (
        f"at {retraction.at_s:,.2f} s {who} gave way and lost {retraction.lost_tokens:,} computed tokens; admission "
        f"expects {100 * retraction.ratio:.0f} % of running answers from then on, "
        f"{100 * retraction.ratio_before:.0f} % before, for {retraction.num_steps:,} steps, until "
        f"{retraction.back_s:,.2f} s: {after.running:,.1f} requests run ({before.running:,.1f} before), "
        f"{after.tokens_per_s:,.0f} tokens/s come out ({before.tokens_per_s:,.0f}), {after.waiting:,.1f} requests "
        f"wait, and {after.unused_slots:,.0f} slots are unused ({before.unused_slots:,.0f})"
    )
