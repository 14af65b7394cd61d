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

_NOTICED = 1.05
"""Smallest ratio of two durations for which the part that is due to memory is computed."""
_NEAR: Final = 1.1
"""Ratios below this have two decimals, larger ones one."""
_NONE_LEFT: Final = 1.05
"""If two runs with ample memory differ in speed by less than this ratio, they count as equally fast."""
_FULL: Final = 0.01
"""If less than this share of the pool is free, the pool counts as full."""
_SOME_WAIT: Final = 0.5
"""Least mean number of waiting requests that the story mentions."""
_TELLING: Final = 0.05
"""Share of the pool that waste must exceed to be the story."""


def story_of(session: Session) -> Story:
    """Return the story of a complete run: preemptions, or else waste, or refusals, or the busiest moment."""
    steps = session.recording.steps
    waiting = session.counts("waiting")
    preempted = np.flatnonzero(steps.preempted > 0)
    if session.rows is not None:
        return Story(frame=session.player.last_frame, parts=(str(session.rows),))
    parts = list(_when_full(session))
    if len(preempted):
        total = int(steps.preempted.sum())
        parts.append(plural(total, "preemption"))
        return _whole_run(int(preempted[0]), (*parts, *_waiting(session)))
    if session.added_up:
        wasted = session.slots[:, [SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED]].sum(axis=1)
        worst = int(np.argmax(wasted * (1 + (waiting > 0))))
        if wasted[worst] > _TELLING * session.capacity:
            state = SlotState.PADDING if session.recording.meta.policy_name == "static" else SlotState.INTERNAL
            share = percent(float(session.mean_slots[state]), session.capacity)
            average_waste = f"{share} of the pool is {STATE_NAMES[state]} on average"
            return _whole_run(worst, (average_waste, *_waiting(session)))
    refused = session.events.of_kinds((EventKind.REFUSED,))
    if len(refused):
        return _whole_run(int(refused.frame[0]), (f"{len(refused):,} refused", *parts, *_waiting(session)))
    running = session.counts("running")
    busiest = int(np.argmax(running))
    free = np.append(steps.free_units, session.replay.num_units)
    in_use = percent(session.replay.num_units - int(free.min()), session.replay.num_units)
    short = parts or [f"the pool never runs short: at most {in_use} in use"]
    queue = (*_waiting(session), *_held_back_by(session))
    return _whole_run(busiest, (*short, *queue, f"up to {running[busiest]:,} running"))


def _whole_run(frame: int, parts: tuple[str, ...]) -> Story:
    """Return a story about the whole run that begins at `frame`."""
    return Story(frame=frame, parts=(f"whole run: {parts[0]}", *parts[1:]))


def story_of_comparison(comparison: ComparedRuns) -> Story:
    """Return the story of a comparison: how much longer than the fastest run each run takes, and the mean batch of
    each.

    The part of a ratio that is due to memory follows it, if known.
    """
    fast, *rivals = comparison.lanes
    fast_s = fast.session.player.duration_s
    if fast.session.rows is not None or fast_s <= 0 or not rivals:
        return Story(frame=0, parts=())
    begin = f"{fast.label} {duration(fast_s)}"
    numbers = range(1, len(comparison.lanes))
    running = ", ".join(f"{_mean_of(lane.session, 'running'):,.0f} ({lane.label})" for lane in comparison.lanes)
    factors, *in_short = (
        ", ".join(f"{comparison.lanes[number].label} {factor(comparison, number)}" for number in numbers)
        for factor in (_factor, _factor_in_short, lambda *lane: _times(_gap(*lane)))
    )
    parts = (f"{begin}; longer: {factors}", f"running on average: {running}")
    return Story(frame=0, parts=parts, shorter=tuple(f"{begin}; {words}" for words in in_short))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Words about how much longer a run takes than the fastest one. Empty if unknown, or for the fastest run."""

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
    """Return the gap between lane `number` and the fastest lane."""
    words = duration(comparison.lanes[number].session.player.duration_s)
    if not comparison.fastest_first or comparison.lanes[0].session.player.duration_s <= 0:
        return Gap(duration=words)
    if not number:
        return Gap(duration=words, factor="the fastest")
    return Gap(duration=words, factor=_times(_gap(comparison, number)), reason=_reason(comparison, number))


def _reason(comparison: ComparedRuns, number: int) -> str:
    """Return why lane `number` takes longer than the fastest run, in a few words; empty if unknown."""
    by_memory = _by_memory(comparison, number)
    if by_memory is None:
        return ""
    if by_memory == _gap(comparison, number):
        return "memory alone"
    if by_memory >= _NONE_LEFT:
        return f"memory {_times(by_memory)} of it"
    return "padding, not memory" if _is_static(comparison, number) else "not memory"


def _factor(comparison: ComparedRuns, number: int) -> str:
    """Return how much longer than the fastest run lane `number` takes, and the reason."""
    reason = _reason(comparison, number)
    return _times(_gap(comparison, number)) + f" ({reason})" * bool(reason)


def _factor_in_short(comparison: ComparedRuns, number: int) -> str:
    """Return `_factor` with the reason in one or two words."""
    factor = _factor(comparison, number)
    return factor.replace(" alone)", ")").replace(", not memory)", ")").replace(" of it)", ")")


def _times(factor: float) -> str:
    return f"×{factor:,.2f}" if factor < _NEAR else f"×{factor:,.1f}"


def _gap(comparison: ComparedRuns, number: int) -> float:
    """Return the duration of lane `number`, divided by that of the fastest run."""
    return comparison.lanes[number].session.player.duration_s / comparison.lanes[0].session.player.duration_s


def _is_static(comparison: ComparedRuns, number: int) -> bool:
    return comparison.lanes[number].session.recording.meta.policy_name == "static"


def _by_memory(comparison: ComparedRuns, number: int) -> float | None:
    """Return the factor by which `_gap` would shrink if both runs had ample memory; None if unknown.

    It is the whole gap if both runs are about equally fast with ample memory.
    """
    slow, fast = comparison.lanes[number].session, comparison.lanes[0].session
    gap = _gap(comparison, number)
    if not comparison.ample_tokens_per_s or slow.served[-1] != fast.served[-1] or gap < _NOTICED:
        return None
    left = comparison.ample_tokens_per_s[0] / comparison.ample_tokens_per_s[number]
    if left <= 0:
        return None
    return gap if left < _NONE_LEFT else gap / left


def _when_full(session: Session) -> list[str]:
    """Return from when to when the pool has almost no free memory, in words; empty if it always has some."""
    steps = session.recording.steps
    full = np.flatnonzero(steps.free_units <= max(_FULL * session.replay.num_units, 1))
    if not len(full):
        return []
    begin_s, end_s = float(session.times_s[full[0]]), float(session.times_s[full[-1] + 1])
    if end_s <= begin_s:
        return []
    resolution_s = (end_s - begin_s) / 100
    begin, end = (seconds(time_s, resolution_s) for time_s in (begin_s, end_s))
    return [f"pool full from {begin.removesuffix(' s')} to {end}"]


def _waiting(session: Session) -> list[str]:
    """Return the mean number of waiting requests in words; empty if hardly any request waits."""
    mean = _mean_of(session, "waiting")
    return [f"{mean:,.0f} wait on average"] if mean >= _SOME_WAIT else []


def _held_back_by(session: Session) -> list[str]:
    """Return the scheduler limit for which most requests wait, in words; empty if hardly any request waits for one."""
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
    if max(batch, tokens) < _SOME_WAIT:
        return []
    if meta.policy_name == "static":
        return ["held back by batch_size"]
    if batch >= tokens:
        return [f"held back by {limits.seqs_setting} {limits.max_num_seqs:,}"]
    return [f"held back by {limits.max_num_batched_tokens:,} tokens a step"]


def _mean_of(session: Session, name: str) -> float:
    """Return the mean number of `running` or `waiting` requests over time."""
    return float(time_mean(*Gaps.of(session.replay).over_time(session.recording, name)))


def judged(session: Session, story: Story) -> Story:
    """Return `story` with the verdict on the run and a remedy as its first part."""
    if session.rows is not None or not session.added_up:
        return story
    judgement = judgement_of(session)
    return replace(story, parts=(judgement.long, *story.parts[1:]), shorter=(judgement.short,))


def begin_story(session: Session, *, playing: bool) -> Story:
    """Return the story of a run, and move the session to the story's moment.

    If the run is `playing`, the session begins shortly before that moment. It follows the request that is preempted at
    that moment, or else the newest running one.
    """
    story, player = judged(session, story_of(session)), session.player
    player.go_to_frame(story.frame)
    session.show()
    live, preempted = session.replay.live_requests(), session.events.rows_at(story.frame, EventKind.PREEMPTED)
    if len(preempted) or len(live):
        session.followed = int(preempted[0] if len(preempted) else live[-1])
    if playing:
        player.go_to_time(player.clock_s - player.speed)
        session.show()
    player.playing = playing and not player.at_end
    return story
