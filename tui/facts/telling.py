"""Story of a run: the moment at which playback begins, and a headline about the whole run or comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics import time_mean
from kvsim.metrics.gaps import Gaps
from kvsim.metrics.names import STATE_NAMES
from kvsim.metrics.waiting import Limits

from ..look.wording import duration, percent, plural, seconds
from ..playback.run_events import EventKind
from ..playback.session import Story
from .judgement import judgement_of

if TYPE_CHECKING:
    from ..playback.compared_runs import ComparedRuns
    from ..playback.session import Session

_LEAST_RATIO_EXPLAINED = 1.05
"""If the ratio of two durations is smaller, the part of it that is due to memory is not computed."""
_LEAST_FACTOR_OF_ONE_DECIMAL: Final = 1.1
_EQUAL_SPEED_RATIO: Final = 1.05
"""If two runs with ample memory differ in speed by less than this ratio, they count as equally fast."""
_FULL_FREE_SHARE: Final = 0.01
"""Share of the pool below which free memory counts as none."""
_LEAST_MEAN_WAITING: Final = 0.5
_LEAST_WASTE_SHARE: Final = 0.05


def story_of(session: Session) -> Story:
    """Return the story of a complete run: preemptions, or else waste, or refusals, or the busiest moment."""
    steps = session.recording.steps
    waiting = session.step_column("waiting")
    preempted = np.flatnonzero(steps.preempted > 0)
    if session.rows is not None:
        return Story(frame=session.player.last_frame, parts=(str(session.rows),))
    parts = list(_full_span(session))
    if len(preempted):
        total = int(steps.preempted.sum())
        parts.append(plural(total, "preemption"))
        return _whole_run_story(int(preempted[0]), (*parts, *_mean_waiting_words(session)))
    if session.added_up:
        wasted = session.slots[:, [SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED]].sum(axis=1)
        worst = int(np.argmax(wasted * (1 + (waiting > 0))))
        if wasted[worst] > _LEAST_WASTE_SHARE * session.capacity:
            state = SlotState.PADDING if session.recording.meta.policy_name == "static" else SlotState.INTERNAL
            share = percent(float(session.mean_slots[state]), session.capacity)
            average_waste = f"{share} of the pool is {STATE_NAMES[state]} on average"
            return _whole_run_story(worst, (average_waste, *_mean_waiting_words(session)))
    refused = session.events.of_kinds((EventKind.REFUSED,))
    if len(refused):
        return _whole_run_story(
            int(refused.frame[0]), (f"{len(refused):,} refused", *parts, *_mean_waiting_words(session))
        )
    running = session.step_column("running")
    busiest = int(np.argmax(running))
    free = np.append(steps.free_units, session.replay.num_units)
    in_use = percent(session.replay.num_units - int(free.min()), session.replay.num_units)
    short = parts or [f"the pool never runs short: at most {in_use} in use"]
    queue = (*_mean_waiting_words(session), *_held_back_by(session))
    return _whole_run_story(busiest, (*short, *queue, f"up to {running[busiest]:,} running"))


def _whole_run_story(frame: int, parts: tuple[str, ...]) -> Story:
    return Story(frame=frame, parts=(f"whole run: {parts[0]}", *parts[1:]))


def story_of_comparison(comparison: ComparedRuns) -> Story:
    """Return the story of a comparison: how much longer than the fastest run each run takes, and its mean batch.

    Each ratio is followed by the factor that is due to memory, if known.
    """
    fast, *rivals = comparison.lanes
    fast_s = fast.session.player.duration_s
    if fast.session.rows is not None or fast_s <= 0 or not rivals:
        return Story(frame=0, parts=())
    begin = f"{fast.label} {duration(fast_s)}"
    numbers = range(1, len(comparison.lanes))
    running = ", ".join(f"{_mean_over_time(lane.session, 'running'):,.0f} ({lane.label})" for lane in comparison.lanes)
    factors, *in_short = (
        ", ".join(f"{comparison.lanes[number].label} {factor(comparison, number)}" for number in numbers)
        for factor in (_factor_with_reason, _factor_in_short, lambda *lane: _times(_duration_ratio(*lane)))
    )
    parts = (f"{begin}; longer: {factors}", f"running on average: {running}")
    return Story(frame=0, parts=parts, shorter=tuple(f"{begin}; {words}" for words in in_short))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Words about how much longer a run takes than the fastest one. A field is empty if unknown."""

    duration: str = ""
    factor: str = ""
    """Duration of this run, divided by the fastest run's: `×11.9`. `the fastest` for the fastest run."""
    reason: str = ""
    """Reason for the difference: `memory alone`."""

    @property
    def in_full(self) -> str:
        """The duration, the ratio and the reason in one line."""
        return ", ".join(filter(None, (self.duration, f"{self.factor}{f' ({self.reason})' * bool(self.reason)}")))


def gap_of(comparison: ComparedRuns, number: int) -> Gap:
    """Return the gap between the run at index `number` of `comparison.lanes` and the fastest run."""
    words = duration(comparison.lanes[number].session.player.duration_s)
    if not comparison.fastest_first or comparison.lanes[0].session.player.duration_s <= 0:
        return Gap(duration=words)
    if not number:
        return Gap(duration=words, factor="the fastest")
    return Gap(
        duration=words, factor=_times(_duration_ratio(comparison, number)), reason=_reason_words(comparison, number)
    )


def _reason_words(comparison: ComparedRuns, number: int) -> str:
    by_memory = _ratio_by_memory(comparison, number)
    if by_memory is None:
        return ""
    if by_memory == _duration_ratio(comparison, number):
        return "memory alone"
    if by_memory >= _EQUAL_SPEED_RATIO:
        return f"memory {_times(by_memory)} of it"
    return "padding, not memory" if _is_static(comparison, number) else "not memory"


def _factor_with_reason(comparison: ComparedRuns, number: int) -> str:
    reason = _reason_words(comparison, number)
    return _times(_duration_ratio(comparison, number)) + f" ({reason})" * bool(reason)


def _factor_in_short(comparison: ComparedRuns, number: int) -> str:
    """Return the duration ratio of a run, with a reason of one or two words in brackets if it is known."""
    factor = _factor_with_reason(comparison, number)
    return factor.replace(" alone)", ")").replace(", not memory)", ")").replace(" of it)", ")")


def _times(factor: float) -> str:
    return f"×{factor:,.2f}" if factor < _LEAST_FACTOR_OF_ONE_DECIMAL else f"×{factor:,.1f}"


def _duration_ratio(comparison: ComparedRuns, number: int) -> float:
    return comparison.lanes[number].session.player.duration_s / comparison.lanes[0].session.player.duration_s


def _is_static(comparison: ComparedRuns, number: int) -> bool:
    return comparison.lanes[number].session.recording.meta.policy_name == "static"


def _ratio_by_memory(comparison: ComparedRuns, number: int) -> float | None:
    """Return the factor by which `_duration_ratio` would shrink if both runs had ample memory; None if unknown.

    If both runs are about equally fast with ample memory, the factor is `_duration_ratio` itself.
    """
    slow, fast = comparison.lanes[number].session, comparison.lanes[0].session
    gap = _duration_ratio(comparison, number)
    if not comparison.ample_tokens_per_s or slow.served[-1] != fast.served[-1] or gap < _LEAST_RATIO_EXPLAINED:
        return None
    left = comparison.ample_tokens_per_s[0] / comparison.ample_tokens_per_s[number]
    if left <= 0:
        return None
    return gap if left < _EQUAL_SPEED_RATIO else gap / left


def _full_span(session: Session) -> list[str]:
    steps = session.recording.steps
    full = np.flatnonzero(steps.free_units <= max(_FULL_FREE_SHARE * session.replay.num_units, 1))
    if not len(full):
        return []
    begin_s, end_s = float(session.times_s[full[0]]), float(session.times_s[full[-1] + 1])
    if end_s <= begin_s:
        return []
    resolution_s = (end_s - begin_s) / 100
    begin, end = (seconds(time_s, resolution_s) for time_s in (begin_s, end_s))
    return [f"pool full from {begin.removesuffix(' s')} to {end}"]


def _mean_waiting_words(session: Session) -> list[str]:
    mean = _mean_over_time(session, "waiting")
    return [f"{mean:,.0f} wait on average"] if mean >= _LEAST_MEAN_WAITING else []


def _held_back_by(session: Session) -> list[str]:
    """Return a text on the scheduler limit for which most requests wait, alone in a list; empty if hardly any waits."""
    meta, steps = session.recording.meta, session.recording.steps
    limits = Limits.of(meta.policy, meta.engine)
    if limits is None:
        return []
    time_s, waiting = Gaps.of(session.replay).over_time(session.recording, "waiting")
    # What waits in a gap waits for what the step before it showed.
    step = np.searchsorted(steps.start_s, time_s[:-1], side="right") - 1
    tokens_of_step = steps.prefill_tokens[step].astype(np.int64) + steps.decode_tokens[step]
    by_limit = np.column_stack(limits.split(waiting[:-1], steps.running[step], tokens_of_step))
    _, batch, tokens = time_mean(time_s, np.vstack((by_limit, np.zeros((1, 3), np.int64))))
    if max(batch, tokens) < _LEAST_MEAN_WAITING:
        return []
    if meta.policy_name == "static":
        return ["held back by batch_size"]
    if batch >= tokens:
        return [f"held back by {limits.seqs_setting} {limits.max_num_seqs:,}"]
    return [f"held back by {limits.max_num_batched_tokens:,} tokens a step"]


def _mean_over_time(session: Session, name: str) -> float:
    return float(time_mean(*Gaps.of(session.replay).over_time(session.recording, name)))


def judged(session: Session, story: Story) -> Story:
    """Return `story` with the verdict on the run and a remedy as its first part."""
    if session.rows is not None or not session.added_up:
        return story
    judgement = judgement_of(session)
    others = (part for part in story.parts[1:] if part not in judgement.long)
    return replace(story, parts=(judgement.long, *others), shorter=(judgement.short,))


def begin_story(session: Session, *, playing: bool) -> Story:
    """Return the story of a run, and move the session to the story's moment.

    If the run is `playing`, the session begins shortly before that moment. The session follows the request that is
    preempted at that moment, or else the newest running one; none in a static batch, whose other rows would be grey.
    """
    story, player = judged(session, story_of(session)), session.player
    player.go_to_frame(story.frame)
    session.show()
    live, preempted = session.replay.live_requests(), session.events.rows_at(story.frame, EventKind.PREEMPTED)
    if session.recording.meta.policy_name != "static" and (len(preempted) or len(live)):
        session.followed = int(preempted[0] if len(preempted) else live[-1])
    if playing:
        player.go_to_time(player.clock_s - player.speed)
        session.show()
    player.playing = playing and not player.at_end
    return story
