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
    """A sequence whose blocks could not be freed at once is not preempted."""
    recomputes: bool = False
    """Tokens that fail to load are recomputed; if False, their sequence ends."""
    backoff_tokens: int = 0
    """Tokens at the end of a prompt that are not fetched."""
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
    """Number of loads that have begun and are not reported."""
    num_held: int = 0
    """Number of sequences that have ended and whose blocks wait for a transfer."""
    num_loads: int = 0
    """Number of entries in `loads`, which the caller has not read yet."""
    num_notices: int = 0
    num_sends: int = 0
    num_reports: int = 0
    num_bad: int = 0
    """Number of blocks that have failed to load and are not reported."""
    num_errors: int = 0
    num_fetched: int = 0
    """Number of the `loads` that are on the link."""
    num_fetched_blocks: int = 0
    """Number of blocks that were put on the link in the whole run."""
    num_live: int = 0
    """Number of transfers whose end is known and not reported yet."""
    is_asleep: bool = False
    """Nothing happens before `wake_s`, unless another server or a client acts."""
    wake_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class Transfer:
    """State of one request's transfers through the connector."""

    is_kept: bool = False
    """Blocks stay at the end of the request until they are read."""
    fetches: bool = False
    """The prompt's KV is on another server, and was not requested yet."""
    stored_tokens: Small = 0
    """Number of leading tokens that the store holds."""
    is_async: bool = False
    """Loads take place between steps."""
    num_unknown: Small = 0
    """Number of lookups that will still be answered with "ask again"."""
    first_bad: int = 0
    """Index in `bad_places` of the first block that fails to load."""
    num_bad: Small = 0
    """Number of blocks that fail to load, until they are reported."""
    rank: Small = 0
    """Position among the sequences that fail in one step."""
    loads_from: Small = 0
    """Index of the first table entry that the load under way writes."""
    external_tokens: Small = 0
    """Number of tokens that the last admission or load got through the connector."""
    done_s: float = 0.0
    """Time at which the load, or the reading of kept blocks by another server, ends, in seconds."""
    has_come: bool = False
    """The load was reported, and the scheduler has not visited the sequence since."""
    has_failed: bool = False
    """Some of the loaded blocks are bad."""
    is_error: bool = False
    """The sequence has ended because its load failed."""
    is_held: bool = False
    """The sequence has ended, and its blocks wait for a transfer."""
    begun_seq: int = -1
    """`State.seq` when its last transfer began; -1 for none."""
    ended_seq: int = -1
    """`State.seq` when the end of that transfer was reported; -1 for none."""
    begin_s: float = 0.0
    """Time at which that load begins on the link, or from which on kept blocks wait, in seconds."""
    first_entry: Small = 0
    """Index of the first table entry that the transfer concerns."""
    num_blocks: Small = 0
    """Number of blocks of that transfer."""
    num_tokens: Small = 0
    """Number of tokens in these blocks: the loaded tokens of a load, the computed tokens of kept blocks."""


@dataclass(slots=True, eq=False, repr=False)
class Report:
    """The end of a transfer, which the output of a step reports."""

    sequence: Small = 0
    is_load: bool = False
    reported_in: int = 0
    """Number of the step with whose output it is reported, counted from 1 like calls of the scheduler."""


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """One of the equal lanes that the link is divided into."""

    free_s: float = 0.0
    """Time at which all loads assigned to it have ended, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class BadBlock:
    """A block that failed to load."""

    block: int = 0
    reported_in: int = 0


class ConnectorTables(NamedTuple):
    """The connector of an engine that has one."""

    settings: ConnectorSettings
    state: ConnectorState
    transfers: Records[Transfer]
    """One record for each sequence."""
    loads: Numbers
    """Sequences whose loads have begun, in order, until the caller reads the list."""
    notices: Numbers
    """Sequences whose prompts will not be fetched, so that the other server may free them."""
    sends: Numbers
    """Sequences that have ended, and whose blocks wait for a reader from the next step on."""
    live: Numbers
    """Sequences with a transfer whose end is known and not reported."""
    lanes: Records[Lane]
    reports: Records[Report]
    """Transfers that have ended, in the order in which they are reported."""
    bad_places: Numbers
    """Table entries of the blocks that fail to load, for all sequences, end to end."""
    bad_blocks: Records[BadBlock]
    marks: Numbers
    """Marks of bad blocks, one for each block; used within one update."""
    errors: Numbers
    """Sequences that end with this update because their load failed."""
