"""A server of a fleet in which prompts are computed on some servers and decoded on others, on the clock of a link.

As `connected`, with loads that take the time of the link; a server that only waits for others has nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from kvsim.engine.connector import connected, transfers
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.state import Engine


@part
def awaits_transfers(engine: Engine) -> bool:
    """Tell whether transfers whose end is known have to be reported."""
    state = engine.connector.state
    return state.num_live + state.num_reports > 0


@part
def awaits_others(engine: Engine) -> bool:
    """Tell whether blocks wait for their reader."""
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
