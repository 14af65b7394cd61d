"""Retractions of SGLang: the cost of each, and the time for which throughput stays low after it.

SGLang admits a request if there is room for its prompt, its maximum output, and a share of the outputs that running
requests may still have (`new_token_ratio`). Each decode step lowers the share. A retraction raises it to the output
tokens of the remaining requests divided by the sum of their `max_tokens`, which is nearly always close to 1. Then slots
stay free while requests wait, until hundreds of steps have lowered the share again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.diagnosis.losses import Loss, losses_of
from kvsim.errors import UsageError
from kvsim.experiments.recorded_run import as_sent, users_of
from kvsim.hardware import find_gpu
from kvsim.machines import served_model, step_times
from kvsim.metrics import means_between, waste
from kvsim.policies import Radix, RadixSettings, SGLangSettings
from kvsim.recording.tables import RequestStatus
from kvsim.simulation import Machine, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from kvsim.recording import Recording

_FACTORS = (0.1, 0.3, 0.6, 1.5, 3)
"""Factors on `schedule_conservativeness` that are tried."""
_MORE_MEMORY = 1.1
_LOW_THROUGHPUT = 0.9
"""Ratio of the throughput after a retraction to that before it, below which throughput counts as low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Mean values over a span of time. Between two steps, the values after the first step's output hold."""

    running: float
    waiting: float
    unused_slots: float
    """Number of slots that are free or can be evicted."""
    tokens_per_s: float


class _Course:
    def __init__(self, recording: Recording) -> None:
        self._steps = recording.steps
        slots = waste(recording)
        assert slots.in_gaps is not None
        gaps, over_time = slots.in_gaps.gaps, slots.with_gaps()
        self._counts = [
            *(gaps.over_time(recording, name) for name in ("running", "waiting")),
            (over_time.time_s, slots.capacity - over_time.held),
        ]

    def span(self, begin_s: float, end_s: float) -> Span:
        steps = self._steps
        begin_s = max(begin_s, float(steps.start_s[0]))
        if not end_s > begin_s:
            return Span(running=0.0, waiting=0.0, unused_slots=0.0, tokens_per_s=0.0)
        edges_s = np.array([begin_s, end_s])
        running, waiting, unused = (float(means_between(*counts, edges_s)[0]) for counts in self._counts)
        some = (steps.start_s >= begin_s) & (steps.start_s < end_s)
        tokens_per_s = float(steps.decode_tokens[some].sum()) / (end_s - begin_s)
        return Span(running=running, waiting=waiting, unused_slots=unused, tokens_per_s=tokens_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction:
    """Step that retracted requests, and the time until `new_token_ratio` is as low as before."""

    losses: tuple[Loss, ...]
    ratio_before: float
    """SGLang's `new_token_ratio` before the step that retracted requests."""
    ratio: float
    """SGLang's `new_token_ratio` after the step that retracted requests."""
    back_s: float
    """Time in seconds at which the ratio is as low as before; at most the next retraction or the end of the run."""
    num_steps: int
    """Number of steps from the retraction to `back_s`."""
    before: Span
    """Means over the time before the retraction, for as long as `after`, but not before the first step."""
    after: Span
    """Means from the retraction to `back_s`."""

    @property
    def at_s(self) -> float:
        """Time in seconds of the step that retracted requests."""
        return self.losses[0].at_s

    @property
    def lost_tokens(self) -> int:
        """Number of computed tokens that must be computed again."""
        return sum(loss.lost_tokens for loss in self.losses)

    @property
    def throughput_stays_low(self) -> bool:
        """True if throughput is lower in `after` than in `before`, although requests wait and more slots are unused."""
        is_less = self.after.tokens_per_s < _LOW_THROUGHPUT * self.before.tokens_per_s
        return is_less and self.after.waiting > 1 and self.after.unused_slots > self.before.unused_slots


def retractions_of(recording: Recording) -> list[Retraction]:
    """Return the retractions of a recording of the radix policy, in order of time.

    Raises:
        UsageError: the recording is of another policy.
    """
    if recording.meta.policy_name != Radix.name:
        raise UsageError(f"{recording.name} is of the policy {recording.meta.policy_name}; only radix retracts.")
    ratios = new_token_ratios(recording)
    by_step: dict[int, list[Loss]] = {}
    for loss in losses_of(recording):
        by_step.setdefault(loss.step, []).append(loss)
    if not by_step:
        return []
    steps, found, course = [*by_step], [], _Course(recording)
    for nth, step in enumerate(steps):
        before = ratios[step - 1] if step else ratios[0]
        last = steps[nth + 1] if nth + 1 < len(steps) else len(ratios)
        is_back = np.flatnonzero(ratios[step + 1 : last] <= max(before, ratios[-1]))
        end = step + 1 + int(is_back[0]) if len(is_back) else last
        start_s = np.append(recording.steps.start_s, recording.duration_s)
        at_s, back_s = float(start_s[step]), float(start_s[end])
        found.append(
            Retraction(
                losses=tuple(by_step[step]), ratio_before=float(before), ratio=float(ratios[step]), back_s=back_s,
                num_steps=end - step, before=course.span(2 * at_s - back_s, at_s),
                after=course.span(at_s, back_s),
            )
        )  # fmt: skip
    return found


def new_token_ratios(recording: Recording) -> npt.NDArray[np.float64]:
    """Return SGLang's `new_token_ratio` after each step, computed from the recorded steps."""
    settings = policy_of(recording).scheduler
    steps, first, least = recording.steps, settings.first_ratio, settings.least_ratio
    decay = (first - least) / settings.new_token_ratio_decay_steps
    decodes = (steps.prefill_tokens == 0) & (steps.num_scheduled > 0)
    is_last, after = _is_last_work(recording), _after_retractions(recording, settings)
    ratios, ratio = np.zeros(len(steps)), first
    for step in range(len(steps)):
        if step in after:
            ratio = after[step]
        elif decodes[step]:
            ratio = max(ratio - decay, least)
        ratios[step] = ratio
        if is_last[step]:
            ratio = first
    return ratios


def _is_last_work(recording: Recording) -> npt.NDArray[np.bool_]:
    """Tell, for each step, whether the server was idle after it, so that SGLang resets the ratio."""
    requests, steps = recording.requests, recording.steps
    served = requests.status != RequestStatus.REFUSED
    come = np.searchsorted(np.sort(requests.arrival_s[served]), steps.end_s, side="right")
    gone = np.searchsorted(np.sort(requests.finished_s[served]), steps.end_s, side="right")
    is_alone = np.append(steps.schedule_seq[1:], np.iinfo(np.int64).max) > steps.output_seq
    return np.asarray(is_alone & (gone >= come))


def _after_retractions(recording: Recording, settings: SGLangSettings) -> dict[int, float]:
    """Return the `new_token_ratio` that each retraction sets, by its step.

    It is the number of tokens that the remaining requests have output, plus `retract_decode_steps` for each, divided by
    the sum of their `max_tokens` plus 1. It is at most 1.
    """
    requests, schedule, steps = recording.requests, recording.schedule, recording.steps
    last = schedule.step + schedule.repeats - 1
    found = {}
    for step in np.flatnonzero(steps.preempted > 0).tolist():
        rows = np.flatnonzero((schedule.step <= step) & (last >= step))
        computed = schedule.computed_before[rows] + schedule.tokens[rows] * (step - schedule.step[rows])
        request = schedule.request[rows]
        # With overlapped steps, the output of the previous step is not processed yet.
        outputs = computed - requests.prompt_tokens[request] + int(settings.disable_overlap_schedule)
        known = int(outputs.sum()) + settings.retract_decode_steps * len(rows)
        found[step] = min(1.0, known / (int(requests.max_tokens[request].sum()) + 1))
    return found


def policy_of(recording: Recording) -> Radix:
    """Return SGLang's policy with the settings of `recording`. Settings that it lacks have SGLang's defaults.

    A recording of another engine is not refused: it gives the defaults.
    """
    known = recording.meta.policy

    def settings(kind: Any) -> Any:
        return kind(**{each.name: known[each.name] for each in fields(kind) if each.name in known})

    return Radix(scheduler=settings(SGLangSettings), cache=settings(RadixSettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyRun:
    """Simulation of the same requests with one changed setting."""

    flags: str
    factor: float
    """Factor on the recorded `schedule_conservativeness`; 1 if it was not changed."""
    tokens_per_s: float
    ttft_p99_s: float
    num_retractions: int


def try_remedies(recording: Recording, report: Callable[[int, int], None]) -> list[RemedyRun]:
    """Simulate the same requests with other values of `schedule_conservativeness`, and with more memory.

    `report` is called with the number of simulations done and that of all.
    """
    policy, meta = policy_of(recording), recording.meta
    gpu, model = find_gpu(meta.gpu), served_model(meta)
    kv_bytes = meta.kv_bytes
    machine = Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=step_times(gpu, model, "vllm"))
    now = policy.scheduler.schedule_conservativeness
    choices = [("as it is", 1.0, policy, machine)]
    for factor in _FACTORS:
        changed = replace(policy.scheduler, schedule_conservativeness=round(now * factor, 4))
        flag = f"--schedule-conservativeness {now * factor:g}"
        choices.append((flag, factor, replace(policy, scheduler=changed), machine))
    choices.append(("10 % more memory", 1.0, policy, replace(machine, kv_bytes=int(kv_bytes * _MORE_MEMORY))))
    found = []
    for nth, (flags, factor, other, on) in enumerate(choices):
        report(nth, len(choices))
        summary = measure(as_sent(recording), other, on, users=users_of(recording), refuse_misfits=True).summary
        found.append(
            RemedyRun(
                flags=flags,
                factor=factor,
                tokens_per_s=summary.output_tokens_per_s,
                ttft_p99_s=summary.ttft_s.p99,
                num_retractions=summary.num_preemptions,
            )
        )
    return found
