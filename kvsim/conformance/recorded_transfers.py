"""Comparison of transfers of KV between servers with those in a recording.

When a transfer ends, and which of its blocks fail, are not decisions of the scheduler. Both are taken from the
recording. The begin of each transfer and its blocks are compared.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.conformance.recorded_copies import Differing
from kvsim.engine.arrays import listed
from kvsim.engine.moments import SCHEDULE, UPDATE
from kvsim.errors import RecordingError
from kvsim.policies.connectors import STORE, Connector, Exchange, Remote, Role
from kvsim.policies.releases import rules_of
from kvsim.recording import MemoryKind, Recording
from kvsim.recording.tables import TransferKind

if TYPE_CHECKING:
    from kvsim.conformance.timeline import MomentTimeline
    from kvsim.engine.driver import Driver
    from kvsim.policies.drafts import Drafts

_ROLES = {"prefill": Role.PRODUCER, "decode": Role.CONSUMER} | {role.value: role for role in Role}


def connector_of(recording: Recording, drafts: Drafts | None, release: str) -> Connector | None:
    """Return the KV connector of a recorded server; None if the server exchanges no KV.

    The connector has no link speed, because the recording has the ends of transfers. With several draft modules, some
    releases leave the last tokens of a prompt to the decode server.

    Raises:
        RecordingError: the server loads from a prefix store, which only kvsim simulates.
    """
    transfers, engine = recording.transfers, recording.meta.engine
    if transfers is None:
        return None
    if engine.get("kv_connector") == STORE:
        raise RecordingError(
            "the server loads from a prefix store, which is a model of kvsim's own, so no decisions of vLLM can be "
            "followed; kvsim info FOLDER --check, with the folder of the fleet, checks its loads."
        )
    exchanges = [Exchange(fail_order=row) for row in range(len(recording.requests))]
    columns = (transfers.kind, transfers.request, transfers.position, transfers.failed)
    for kind, request, position, failed in zip(*(column.tolist() for column in columns), strict=True):
        exchanges[request] = Exchange(
            remote=Remote.READS if kind == TransferKind.SEND else Remote.HAS_PROMPT,
            failed_blocks=(failed - position,) if failed >= 0 else (),
            fail_order=request,
        )
    spares = rules_of(release).spares_modules and drafts is not None and drafts.prompt_ahead_tokens > 1
    return Connector(
        role=_ROLES[str(engine.get("kv_role", engine.get("kv_connector")))],
        backoff_tokens=drafts.prompt_ahead_tokens - 1 if drafts is not None and spares else 0,
        recomputes=engine.get("kv_load_failure_policy") == "recompute",
        exchanges=exchanges,
    )


class TransfersInLockstep:
    """Comparison of a simulated engine's transfers with recorded ones. The recorded ends are reported to the engine."""

    def __init__(self, driver: Driver, recording: Recording, timeline: MomentTimeline) -> None:
        self._driver, self._timeline = driver, timeline
        self.has_copies = recording.transfers is not None
        """True if the recorded engine transfers KV. The name is that of `CopiesInLockstep.has_copies`."""
        self._names: list[str] = recording.requests.id.tolist()
        self._begun: dict[int, list[Any]] = defaultdict(list)
        self._ended: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        if recording.transfers is not None:
            self._read(recording)

    def _read(self, recording: Recording) -> None:
        transfers, steps = recording.transfers, recording.steps
        assert transfers is not None
        step = np.searchsorted(steps.schedule_seq, transfers.begun_seq)
        columns = (step, transfers.kind, transfers.request, transfers.position, transfers.blocks, transfers.tokens)
        rows = np.flatnonzero(transfers.blocks > 0)  # a request that leaves before it has blocks transfers nothing
        for at, *values in zip(*(column[rows].tolist() for column in columns), strict=True):
            self._begun[at].append(self._in_words(*values))
        released = _last_release_rows(recording)[transfers.request]
        order = np.lexsort((released, transfers.ended_seq))
        for row in order[transfers.blocks[order] > 0].tolist():
            output = int(np.searchsorted(steps.output_seq, transfers.ended_seq[row]))
            is_load = bool(transfers.kind[row] == TransferKind.LOAD)
            self._ended[output].append((int(transfers.request[row]) + 1, is_load))

    def before(self, kind: int, step: int) -> Differing | None:
        """Report to the engine the transfers that end with the output of `step`, before it processes the output.

        Do nothing if the moment's `kind` is not `UPDATE`. Return None, because nothing is compared.
        """
        if kind == UPDATE:
            call = int(self._driver.engine.external.state.num_updates) + 1
            for number, is_load in self._ended.get(step, ()):
                self._driver.report_transfer(number, call, is_load=is_load)
        return None

    def after(self, kind: int, step: int) -> Differing | None:
        """Return the recorded and the simulated transfers that began since the step before `step`, if they differ.

        Return None if they are equal, or if the moment's `kind` is not `SCHEDULE`.
        """
        if kind != SCHEDULE:
            return None
        connector = self._driver.engine.connector
        state = connector.state
        begun = [(TransferKind.SEND, number) for number in listed(connector.sends, 0, state.num_sends)]
        begun += [(TransferKind.LOAD, number) for number in listed(connector.loads, 0, state.num_loads)]
        state.num_sends = state.num_loads = state.num_notices = 0
        decided = []
        for direction, number in begun:
            transfer = connector.transfers[number]
            numbers = (int(transfer.first_entry), int(transfer.num_blocks), int(transfer.num_tokens))
            decided.append(self._in_words(direction, number - 1, *numbers))
        recorded = sorted(self._begun.get(step, ()))
        return None if recorded == sorted(decided) else ({"transfers": recorded}, {"transfers": sorted(decided)})

    def _in_words(self, kind: int, request: int, position: int, blocks: int, tokens: int) -> str:
        direction = TransferKind(kind).name.lower()
        return f"{direction} of {self._names[request]}: {blocks} blocks from entry {position}, {tokens} tokens"


def _last_release_rows(recording: Recording) -> np.ndarray:
    """Return, for each request, the last memory row in which it frees units; -1 if there is none."""
    memory, last = recording.memory, np.full(len(recording.requests), -1)
    rows = np.flatnonzero(memory.kind == MemoryKind.RELEASE)
    np.maximum.at(last, memory.request[rows], rows)
    return last
