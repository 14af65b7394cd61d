"""The clock of the link over which a server fetches KV: when each load begins and ends, and which step reports it.

A server fetches a few prompts at a time, each over an equal share of the link (a lane). Further loads wait, and start
in the order in which they were decided. The end of a transfer is reported with the output of the first step whose
kernels are launched after this end. Transfers do not slow down kernels.
"""

from __future__ import annotations

from kvsim.engine import clock
from kvsim.engine.connector import connected
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.paged import external_kv
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine


@part
def begin(engine: Engine) -> None:
    """Set the times on the link of the loads just scheduled. Do nothing if the caller reports the ends of loads."""
    connector = engine.connector
    if not connector.settings.is_timed:
        return
    for index in range(connector.state.num_fetched, connector.state.num_loads):
        sequence = engine.sequences[connector.loads[index]]
        transfer = connector.transfers[sequence.number]
        lane = 0
        for other in range(1, len(connector.lanes)):
            if connector.lanes[other].free_s < connector.lanes[lane].free_s:
                lane = other
        transfer.begin_s = max(connector.lanes[lane].free_s, engine.state.host_s)
        seconds = connector.settings.latency_s + transfer.num_blocks * connector.settings.block_s
        transfer.done_s = connector.lanes[lane].free_s = transfer.begin_s + seconds
        connector.state.num_fetched_blocks += transfer.num_blocks
        expect_end(engine, sequence)
    connector.state.num_fetched = connector.state.num_loads


@part
def expect_end(engine: Engine, sequence: Sequence) -> None:
    """Add a sequence's transfer, whose end time is known, to the transfers that `poll` reports."""
    connector = engine.connector
    connector.live[connector.state.num_live] = sequence.number
    connector.state.num_live += 1


@part
def poll(engine: Engine) -> None:
    """Report the transfers that have ended by the time at which the kernels of a step are launched."""
    connector, kept = engine.connector, 0
    for index in range(connector.state.num_live):
        number = connector.live[index]
        transfer = connector.transfers[number]
        if transfer.done_s <= engine.state.host_s:
            is_load = not transfer.is_kept
            connected.report(engine, engine.sequences[number], is_load, engine.state.num_scheduled)
        else:
            connector.live[kept] = number
            kept += 1
    connector.state.num_live = kept


@part
def pass_time(engine: Engine, until_s: float) -> None:
    """Advance the clock to the next arrival or end of a transfer, if scheduling has no effect before it. If this time
    is not before `until_s`, let the engine sleep instead.

    A rank that takes part in the steps of other ranks does neither: these steps advance its clock.
    """
    state, connector = engine.state, engine.connector
    connector.state.is_asleep = False
    if engine.settings.lockstep or not external_kv.is_settled(engine) or connector.state.num_reports > 0:
        return
    next_s = clock.next_arrival_s(engine)
    for index in range(connector.state.num_live):
        next_s = min(next_s, connector.transfers[connector.live[index]].done_s)
    if next_s < until_s:
        engine.external.state.num_idle_calls = 0
        state.host_s = max(state.host_s, next_s)
        return
    connector.state.is_asleep, connector.state.wake_s = True, next_s


@part
def is_asleep(engine: Engine) -> bool:
    """Tell whether the engine sleeps until `ConnectorState.wake_s`, or until a request is sent or blocks are read."""
    return engine.connector.state.is_asleep


@part
def has_news(engine: Engine) -> bool:
    """Tell whether other servers must be notified: a load has begun, or a prompt will not be fetched. Without the clock
    of a link, return False.
    """
    state = engine.connector.state
    return engine.connector.settings.is_timed and state.num_loads + state.num_notices > 0
