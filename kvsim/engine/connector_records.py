"""The records of a KV connector, on the scheduler's side; see `connected`.

An engine without a connector has an empty tuple in its place, so that its compiled code has no code for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.records import Small


@dataclass(slots=True, eq=False, repr=False)
class ConnectorSettings:
    """Settings of a connector; they do not change during a run."""

    is_store: bool = False
    """A store holds prefixes of prompts; otherwise prompts are fetched from another server."""
    spares_busy: bool = False
    """A sequence is not preempted if its blocks could not be freed at once."""
    recomputes: bool = False
    """Tokens that fail to load are recomputed; if False, the request ends."""
    backoff_tokens: int = 0
    """Number of tokens at the end of a prompt that are computed even if they could be loaded."""
    is_timed: bool = False
    """The engine's clock decides when a load has ended; if False, the caller reports it."""
    block_s: float = 0.0
    """Seconds that one block takes on one lane of the link."""
    latency_s: float = 0.0
    """Fixed part of the time of a load, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class ConnectorState:
    """The numbers of a connector that change from step to step."""

    num_external: int = 0
    """Number of tokens that the sequence being admitted gets through the connector."""
    num_loading: int = 0
    """Number of loads that have begun and whose end is not reported yet."""
    num_held: int = 0
    """Number of sequences that have ended, but keep their blocks for a transfer."""
    num_loads: int = 0
    """Number of entries of `ConnectorTables.loads` that the caller has not read yet."""
    num_notices: int = 0
    num_sends: int = 0
    num_reports: int = 0
    num_bad: int = 0
    """Number of blocks that have failed to load and are not reported yet."""
    num_errors: int = 0
    num_fetched: int = 0
    """Number of entries of `ConnectorTables.loads` that were put on the link."""
    num_fetched_blocks: int = 0
    """Number of blocks that were put on the link in the whole run."""
    num_live: int = 0
    """Number of transfers whose end is known, but not reported yet."""
    is_asleep: bool = False
    """The engine does nothing before `wake_s`, unless another server or a client acts earlier."""
    wake_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Transfer:
    """State of one request's transfers through the connector."""

    is_kept: bool = False
    """The blocks of the request are kept after it ends, until another server has read them."""
    fetches: bool = False
    """The KV of the prompt is on another server, and no load of it has begun."""
    stored_tokens: Small = 0
    """Number of leading tokens that the store holds."""
    is_async: bool = False
    """KV from outside is loaded between steps; if False, a step loads it before it computes."""
    num_unknown: Small = 0
    """Number of coming lookups to which the store gives no answer, so that the scheduler repeats them."""
    first_bad: int = 0
    """Index in `ConnectorTables.bad_places` of the first block that fails to load."""
    num_bad: Small = 0
    """Number of blocks that fail to load, until they are reported."""
    rank: Small = 0
    """Position of the request among the requests whose loads fail in the same step."""
    loads_from: Small = 0
    """Index of the first table entry that the present load writes."""
    external_tokens: Small = 0
    """Number of tokens that the connector provided at the last admission or load."""
    done_s: float = 0.0
    """Time in seconds at which the load ends, or at which another server has read the kept blocks."""
    has_come: bool = False
    """The end of the load was reported, and the scheduler has not visited the sequence since then."""
    has_failed: bool = False
    """Some of the loaded blocks are bad."""
    is_error: bool = False
    """The sequence has ended because its load failed."""
    is_held: bool = False
    """The sequence has ended, and its blocks wait for a transfer."""
    begun_seq: int = -1
    """`State.seq` at the begin of the last transfer; -1 if there was none."""
    ended_seq: int = -1
    """`State.seq` at the report of the end of the last transfer; -1 if it was not reported."""
    begin_s: float = 0.0
    """Time in seconds at which the last load begins on the link, or from which blocks are kept."""
    first_entry: Small = 0
    """Index of the first table entry of the last transfer."""
    num_blocks: Small = 0
    """Number of blocks of the last transfer."""
    num_tokens: Small = 0
    """Number of tokens of the last load, or number of computed tokens in the kept blocks."""


@dataclass(slots=True, eq=False, repr=False)
class Report:
    """The end of a transfer, reported with the output of a step."""

    sequence: Small = 0
    is_load: bool = False
    reported_in: int = 0
    """Number of the reporting step, counted from 1 over all calls of the scheduler."""


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """One lane of the link: an equal share of its speed, over which one load at a time is transferred."""

    free_s: float = 0.0
    """Time in seconds at which all loads of the lane have ended."""


@dataclass(slots=True, eq=False, repr=False)
class BadBlock:
    """A block that failed to load."""

    block: int = 0
    reported_in: int = 0


class ConnectorTables(NamedTuple):
    """The records of a KV connector."""

    settings: ConnectorSettings
    state: ConnectorState
    transfers: Records[Transfer]
    """One record for each sequence."""
    loads: Numbers
    """Sequences whose loads have begun, in order, until the caller reads the list."""
    notices: Numbers
    """Sequences that fetch nothing from another server, so that the other server can free the blocks of
    their prompts.
    """
    sends: Numbers
    """Sequences that have ended, and whose blocks are kept for another server from the next step on."""
    live: Numbers
    """Sequences with a transfer whose end time is known, and whose end is not reported yet."""
    lanes: Records[Lane]
    reports: Records[Report]
    """Transfers that have ended, in the order in which they are reported."""
    bad_places: Numbers
    """Table entries of the blocks that fail to load, sequence after sequence."""
    bad_blocks: Records[BadBlock]
    marks: Numbers
    """Mark of each block, used during one update to find bad blocks."""
    errors: Numbers
    """Sequences that end with this update because their load failed."""
