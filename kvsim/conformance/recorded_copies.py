"""Comparison of copies between GPU and host memory with those in a recording.

When the end of a copy is reported, and in which order its blocks become idle, are not decisions of the scheduler. Both
are taken from the recording. Everything else is compared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

from kvsim.engine.moments import SCHEDULE, UPDATE
from kvsim.recording import Recording
from kvsim.recording.tables import CopyKind

if TYPE_CHECKING:
    from kvsim.engine.driver import Driver
    from kvsim.engine.host_tier import Job

Differing: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""(recorded, simulated): copies or transfers that differ, each as the fields of a report."""
Begun: TypeAlias = tuple[int, str, int, tuple[tuple[int, int], ...]]
"""Begin of a copy: its number, "load" or "store", its request, and ascending pairs (host block, GPU block)."""


class RecordedCopies:
    """Copies of a recording, by step."""

    def __init__(self, recording: Recording) -> None:
        self._begun: dict[int, list[Begun]] = defaultdict(list)
        self._awaited: dict[int, set[int]] = defaultdict(set)
        self._reported: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        copies = recording.copies
        if copies is None:
            return
        columns = [getattr(copies, name).tolist() for name, _ in copies.columns()]
        rows = list(zip(*columns, strict=True))
        for number, _, _, _, awaited_step, reported_step, _, slot in rows:
            if awaited_step >= 0:
                self._awaited[awaited_step].add(number)
            order = self._reported[reported_step][number]
            if slot not in order:
                order.append(slot)
        pairs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, *_, address, slot in rows:
            pairs[number].append((slot, address))
        for number, (kind, request, step) in {row[0]: row[1:4] for row in rows}.items():
            direction = CopyKind(kind).name.lower()
            self._begun[step].append((number, direction, request, tuple(sorted(pairs[number]))))

    def begun(self, step: int) -> list[Begun]:
        """Return the copies that `step` began, sorted by number."""
        return sorted(self._begun.get(step, []))

    def awaited(self, step: int) -> list[int]:
        """Return the numbers of the copies for which `step` was the first to wait."""
        return sorted(self._awaited.get(step, ()))

    def reported(self, step: int) -> dict[int, list[int]]:
        """Return the host blocks, in order, of each copy whose end the output of `step` reported, by copy number."""
        return dict(self._reported.get(step, {}))


class CopiesInLockstep:
    """Comparison of a simulated engine's copies with recorded ones. The recorded ends are reported to the engine."""

    def __init__(self, driver: Driver, recorded: RecordedCopies) -> None:
        self._driver, self._recorded = driver, recorded
        self._awaited: set[int] = set()

    @property
    def has_copies(self) -> bool:
        """True if the engine copies blocks to and from host memory."""
        return bool(self._driver.engine.settings.offloads)

    def _decided(self) -> dict[str, Any]:
        driver, step = self._driver, self._driver.engine.state.num_scheduled
        jobs = list(driver.jobs().values())
        awaited = {int(job.number) for job in jobs if job.awaited_in == step} - self._awaited
        self._awaited |= awaited
        begun = sorted(self._begun(job) for job in jobs if job.decided_in == step)
        return {"copies": begun, "waits for copies": sorted(awaited)}

    def before(self, kind: int, step: int) -> Differing | None:
        """Report to the engine the copies that end with the output of `step`, before it processes the output.

        Do nothing if the moment's `kind` is not `UPDATE`. Return a difference if the recording has copies that the
        engine does not have, otherwise None.
        """
        if kind != UPDATE:
            return None
        reported = self._recorded.reported(step)
        records = {int(job.number): record for record, job in self._driver.jobs().items()} if reported else {}
        for number in reported:
            if number in records:
                self._driver.report(records[number], self._driver.engine.external.state.num_updates + 1)
        unknown = sorted(reported.keys() - records.keys())
        return ({"copies reported": unknown}, {"copies reported": []}) if unknown else None

    def after(self, kind: int, step: int) -> Differing | None:
        """Compare or complete copies after a moment of `step`, and return a difference or None.

        If the moment's `kind` is `SCHEDULE`, the copies that the step began are compared. If it is `UPDATE`, the copies
        that ended with the step's output are completed.
        """
        if kind == UPDATE:
            for slots in self._recorded.reported(step).values():
                self._driver.use_slots(slots)
        elif kind == SCHEDULE:
            recorded = {"copies": self._recorded.begun(step), "waits for copies": self._recorded.awaited(step)}
            if recorded != (decided := self._decided()):
                return recorded, decided
        return None

    def _begun(self, job: Job) -> Begun:
        driver = self._driver
        slots, blocks = driver.host_slots(job), driver.blocks_of_job(job)
        size = int(driver.engine.host.settings.blocks_per_slot)
        missing = len(slots) * size - len(blocks)
        pairs = sorted((slots[(missing + index) // size], block) for index, block in enumerate(blocks))
        return int(job.number), "load" if job.is_load else "store", int(job.sequence) - 1, tuple(pairs)
