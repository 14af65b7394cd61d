"""The memory manager of a server in a fleet where some servers compute prompts and others decode.

It differs from `connected` in two ways. A transfer takes the time that the link needs for it. A server that only waits
for other servers sleeps, instead of running empty steps.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine.connector import connected, transfers
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import Engine


@part
def awaits_transfers(engine: Engine) -> bool:
    """Tell whether a transfer whose end time is known has not been reported as ended."""
    state = engine.connector.state
    return state.num_live + state.num_reports > 0


@part
def awaits_others(engine: Engine) -> bool:
    """Tell whether blocks are kept because another server has not read them yet."""
    return engine.connector.state.num_held > 0


DISAGGREGATED = replace(
    connected.CONNECTED,
    name="disaggregated",
    awaits_transfers=awaits_transfers,
    awaits_others=awaits_others,
    is_asleep=transfers.is_asleep,
    start_transfers=transfers.begin,
    poll_transfers=transfers.poll,
    wait_for_transfers=transfers.pass_time,
    has_news=transfers.has_news,
)
