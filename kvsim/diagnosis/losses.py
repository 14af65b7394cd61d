"""Preemptions of a recording: their times, requests, costs and causes.

The likely cause of a preemption is the admission before it, which took the last free blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError
from kvsim.kv_groups import CacheKind
from kvsim.recording.tables import WHOLE_TABLE, MemoryKind

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.recording import Recording

_APART_S = 1.0
"""Longest time in seconds between two successive preemptions of one spell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Preemption of one request, and what it cost."""

    at_s: float
    """Seconds from the first event until the scheduling of the step that preempted the request."""
    step: int
    request: int
    lost_tokens: int
    """Number of tokens that had to be computed again, without those that the prefix cache still had."""
    back_s: float
    """Seconds from the first event until the request was scheduled again; NaN if it never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admission of a request: the step that gave it its first blocks."""

    at_s: float
    request: int
    num_blocks: int
    free_blocks: int
    """Number of free blocks after the step that admitted the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Preemptions, each at most `_APART_S` seconds after the one before."""

    losses: tuple[Loss, ...]
    cause: Admission | None
    """Last admission before the first preemption; None if there is none."""

    @property
    def begin_s(self) -> float:
        """Time of the first preemption, in seconds."""
        return self.losses[0].at_s

    @property
    def end_s(self) -> float:
        """Time of the last preemption, in seconds."""
        return self.losses[-1].at_s

    @property
    def lost_tokens(self) -> int:
        """Number of computed tokens that all requests of the spell lost."""
        return sum(loss.lost_tokens for loss in self.losses)

    @property
    def worst(self) -> Loss:
        """Preemption that lost the most tokens."""
        return max(self.losses, key=lambda loss: loss.lost_tokens)


def losses_of(recording: Recording) -> list[Loss]:
    """Return every preemption, in order of time.

    Raises:
        UsageError: no KV-cache group of the model shows preemptions.
    """
    steps, memory, requests = recording.steps, recording.memory, recording.requests
    start_s = dict(zip(steps.step.tolist(), steps.start_s.tolist(), strict=True))
    rows_of = _schedule_by_request(recording)
    released: dict[int, int] = {}
    found = []
    for row in np.flatnonzero(_is_whole_release(recording)).tolist():
        request, step = int(memory.request[row]), int(memory.step[row])
        nth = released[request] = released.get(request, 0) + 1
        if nth > requests.preemptions[request]:
            continue  # the last release of a request is its end, not a preemption
        before, after = _around(rows_of.get(request, []), step)
        again = start_s.get(after[0], np.nan) if after else np.nan
        lost = max(before - after[1], 0) if after else before
        found.append(Loss(at_s=start_s.get(step, np.nan), step=step, request=request, lost_tokens=lost, back_s=again))
    return sorted(found, key=lambda loss: loss.step)


def _is_whole_release(recording: Recording) -> npt.NDArray[np.bool_]:
    """Tell, for each row of the memory table, whether it is the release of a request's whole block table.

    With several KV-cache groups, only the first group of full attention counts, because requests free blocks of windows
    and states while they run.
    """
    memory, groups = recording.memory, recording.meta.pool.groups
    released: npt.NDArray[np.bool_] = memory.kind == MemoryKind.RELEASE
    if not groups:
        return np.asarray(released & (memory.address == WHOLE_TABLE))
    whole = next((number for number, group in enumerate(groups) if group.kind in (CacheKind.FULL, CacheKind.MLA)), None)
    if whole is None:
        raise UsageError(
            f"{recording.name} is of a model whose layers all free blocks while a request runs; kvsim diagnose "
            "recognizes preemptions by block tables that are freed as a whole."
        )
    return np.asarray(released & (memory.group == whole))


def spells_of(recording: Recording, losses: list[Loss]) -> list[Spell]:
    """Group `losses` into spells, in order of time."""
    spells: list[list[Loss]] = []
    for loss in losses:
        if spells and loss.at_s - spells[-1][-1].at_s <= _APART_S:
            spells[-1].append(loss)
        else:
            spells.append([loss])
    return [Spell(losses=tuple(spell), cause=_admitted_before(recording, spell[0].step)) for spell in spells]


def _schedule_by_request(recording: Recording) -> dict[int, list[tuple[int, int, int]]]:
    """Return, for each request, a tuple for each of its schedule rows: the row's first step, the number of computed
    tokens before that step, and the number of computed tokens after the row's last step.

    The keys are rows of the table of requests.
    """
    schedule = recording.schedule
    found: dict[int, list[tuple[int, int, int]]] = {}
    after = schedule.computed_before + schedule.tokens * schedule.repeats
    columns = (schedule.request, schedule.step, schedule.computed_before, after)
    for request, step, before, end in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault(request, []).append((step, before, end))
    return found


def _around(rows: list[tuple[int, int, int]], step: int) -> tuple[int, tuple[int, int] | None]:
    """Return the number of tokens that a request had computed before its preemption in `step`, and its return.

    The return is the request's first step from `step` on, and the number of tokens computed before it; None if there is
    none. `rows` is the schedule of the request.
    """
    computed = 0
    for first, before, end in rows:
        if first >= step:
            return computed, (first, before)
        computed = end
    return computed, None


def _admitted_before(recording: Recording, step: int) -> Admission | None:
    memory, steps = recording.memory, recording.steps
    taken = (memory.kind != MemoryKind.RELEASE) & (memory.kind != MemoryKind.EVICT)
    rows = np.flatnonzero(taken & (memory.position == 0) & (memory.step < step))
    if not len(rows):
        return None
    request, at = int(memory.request[rows[-1]]), int(memory.step[rows[-1]])
    units = memory.length[taken & (memory.request == request) & (memory.step == at)].sum()
    place = int(np.searchsorted(steps.step, at))
    if place >= len(steps) or steps.step[place] != at:
        return None
    return Admission(
        at_s=float(steps.start_s[place]),
        request=request,
        num_blocks=int(units),
        free_blocks=int(steps.free_units[place]),
    )
