"""State of a KV connector, on the scheduler's side; see `connected`.

An engine without a connector has an empty tuple instead, so that its compiled code has no code for a connector.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.arrays import Numbers, Records, Tables
from kvsim.engine.records import Small


@dataclass(slots=True, eq=False, repr=False)
class ConnectorSettings:
    """Settings of a connector. They do not change during a run."""

    is_store: bool = False
    """True for a store of prefixes; False if prompts are fetched from another server."""
    spares_busy: bool = False
    """True if the scheduler does not preempt a running sequence whose blocks would become free only after steps in
    flight. It then serves no further running sequence in this step.
    """
    recomputes: bool = False
    """True if tokens that fail to load are computed here; False if their request ends with an error."""
    backoff_tokens: int = 0
    """Number of tokens at the end of a prompt that are computed even if they could be loaded."""
    is_timed: bool = False
    """True if the engine's clock decides when a load has ended; False if the caller reports it."""
    block_s: float = 0.0
    """Seconds that the transfer of one block takes on one lane of the link."""
    latency_s: float = 0.0
    """Fixed part of the time of a load, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class ConnectorState:
    """Numbers of a connector that change from step to step."""

    num_external: int = 0
    """Number of tokens that the sequence being admitted gets through the connector."""
    num_loading: int = 0
    """Number of loads that have begun and have not been reported as ended."""
    num_held: int = 0
    """Number of sequences that have ended, but keep their blocks for a transfer."""
    num_loads: int = 0
    """Number of entries of `ConnectorTables.loads` that the caller has not read yet."""
    num_notices: int = 0
    num_sends: int = 0
    num_reports: int = 0
    num_bad: int = 0
    """Number of blocks that have failed to load and have not been reported."""
    num_errors: int = 0
    num_fetched: int = 0
    """Number of leading `ConnectorTables.loads` that `transfers.begin` has put on the link. Reset by their reader."""
    num_fetched_blocks: int = 0
    """Number of blocks in all loads that have started on the link; 0 if `ConnectorSettings.is_timed` is False."""
    num_live: int = 0
    """Number of transfers whose end time is known and that have not been reported as ended."""
    is_asleep: bool = False
    """True if the engine does nothing before `wake_s`, unless another server or a client acts earlier."""
    wake_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Transfer:
    """State of one request's transfers through the connector. At most one is in progress."""

    is_kept: bool = False
    """True if the blocks of the request are kept after it ends, until another server has read them."""
    fetches: bool = False
    """True if the KV of the prompt is on another server and no load of it has begun."""
    stored_tokens: Small = 0
    """Number of leading tokens of the prompt that the store holds."""
    is_async: bool = False
    """True if KV from outside is loaded between steps; False if the admitting step loads it before it computes."""
    num_unknown: Small = 0
    """Number of further lookups that the store leaves unanswered, so that the scheduler repeats them."""
    first_bad: int = 0
    """Index in `ConnectorTables.bad_places` of the first block that fails to load."""
    num_bad: Small = 0
    """Number of blocks of the request that fail to load; 0 once their report is scheduled."""
    rank: Small = 0
    """Order of the request among those whose loads fail in the same step: the smallest rank ends first."""
    loads_from: Small = 0
    """Index of the table entry from which `ConnectorTables.bad_places` count: the first entry that is fetched from
    another server; 0 with a store.
    """
    external_tokens: Small = 0
    """Tokens that came through the connector at the last allocation: a load between steps, or an admission."""
    done_s: float = 0.0
    """Time, in seconds, at which a load ends; with `is_kept`, at which another server has read the kept blocks. Set
    when the sequence is added to `ConnectorTables.live`.
    """
    is_load_reported: bool = False
    """True from the report that the load has ended until the scheduler uses the loaded blocks."""
    has_failed: bool = False
    """True from the report that some loaded blocks are bad until the load is used or discarded."""
    is_error: bool = False
    """True if the sequence has ended because its load failed."""
    is_held: bool = False
    """True if the sequence has ended and its blocks wait for a transfer."""
    begun_seq: int = -1
    """Event number (`State.seq`) of the start of the last transfer; -1 if there was none."""
    ended_seq: int = -1
    """Event number (`State.seq`) of the report that the last transfer has ended; -1 if it was not reported."""
    begin_s: float = 0.0
    """Time, in seconds, at which the last load begins on the link; for kept blocks, at which their request ended."""
    first_entry: Small = 0
    """Index of the first table entry of the last transfer: `loads_from` for a load, 0 for kept blocks."""
    num_blocks: Small = 0
    """Number of blocks of the last transfer."""
    num_tokens: Small = 0
    """Number of loaded tokens; for kept blocks, the number of computed tokens in them."""


@dataclass(slots=True, eq=False, repr=False)
class Report:
    """The end of a transfer, reported with the output of a step."""

    sequence: Small = 0
    is_load: bool = False
    reported_in: int = 0
    """Number of the step with whose output the end is reported. Every call of the scheduler is a step, from 1 on."""


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """One lane of the link: an equal share of its speed, over which one load at a time is transferred."""

    free_s: float = 0.0
    """Time at which all loads on the lane have ended, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class BadBlock:
    """A block that failed to load (its id is `block`), and the number of the step with whose output it is reported."""

    block: int = 0
    reported_in: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConnectorTables(Tables):
    """Settings, state and lists of a KV connector: the part of `Engine` that only it uses."""

    settings: ConnectorSettings
    state: ConnectorState
    transfers: Records[Transfer]
    loads: Numbers
    """Numbers of the sequences whose loads have begun, in order. The caller reads and removes them."""
    notices: Numbers
    """Numbers of the sequences whose prompts another server need not keep, because nothing is fetched from it."""
    sends: Numbers
    """Numbers of ended sequences that keep their blocks for another server. The caller reads and removes them."""
    live: Numbers
    """Numbers of the sequences with a transfer whose end time is known and that has not been reported as ended."""
    lanes: Records[Lane]
    reports: Records[Report]
    """Transfers that have ended, in the order in which they are reported."""
    bad_places: Numbers
    """Offsets of the blocks that fail to load from table entry `Transfer.loads_from` on; see `Transfer.first_bad`."""
    bad_blocks: Records[BadBlock]
    """Blocks that failed to load and are not reported yet."""
    marks: Numbers
    """Mark of each block, by its id: 1 if the block is bad, 2 if a sequence with the block was already cut, otherwise
    0. All are 0 except while an output is processed; see `failed_loads`.
    """
    errors: Numbers
    """Numbers of the sequences that end with an error with the output being processed, because their load failed."""
