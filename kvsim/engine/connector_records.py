"""State of a KV connector, the scheduler's side; see `connected`.

An engine without one has an empty tuple in its place, and nothing of this module in its compiled code.
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
    """Tokens that fail to load are computed; otherwise their sequence ends."""
    draft_tokens: int = 0
    """Tokens behind its own that room is reserved for, for every sequence with an unfinished prompt."""
    backoff_tokens: int = 0
    """Tokens at the end of a prompt that are not fetched."""
    is_timed: bool = False
    """The clock says when a load has ended; otherwise the caller does."""
    block_s: float = 0.0
    """Seconds in which one block crosses a share of the link."""
    latency_s: float = 0.0
    """Seconds that a load takes however small it is."""
    most_rows: int = 0
    """Rows of memory with which another load may begin."""


@dataclass(slots=True, eq=False, repr=False)
class ConnectorState:
    """The numbers of a connector that change from step to step."""

    num_external: int = 0
    """Tokens from outside for the sequence that is being admitted."""
    num_loading: int = 0
    """Loads that were begun and not reported."""
    num_held: int = 0
    """Sequences that have ended and whose blocks wait for a transfer."""
    num_prefilling: int = 0
    num_loads: int = 0
    """Loads that were begun and that the caller has not read yet."""
    num_notices: int = 0
    num_sends: int = 0
    num_reports: int = 0
    num_bad: int = 0
    """Blocks of which it is known that they failed, and that no step has reported."""
    num_errors: int = 0
    num_updates: int = 0
    """Steps whose output was processed, empty ones included."""
    num_steps_begun: int = 0
    """Steps that were scheduled and compute tokens."""
    num_steps_processed: int = 0
    """Steps that computed tokens and were processed."""
    num_deferred: int = 0
    """Sequences whose tables are gone and whose blocks are not free yet."""
    num_fetched: int = 0
    """Loads of these that are on the link."""
    num_fetched_blocks: int = 0
    """Blocks that were put on the link in the whole run."""
    num_live: int = 0
    """Transfers whose end is known and not reported yet."""
    num_settled_calls: int = 0
    """Consecutive calls of the scheduler without effect."""
    is_asleep: bool = False
    """Nothing happens before `wake_s`, unless another server or a client acts."""
    wake_s: float = 0.0
    is_crowded: bool = False
    """More loads began in one step than can be written down."""


@dataclass(slots=True, eq=False, repr=False)
class Transfer:
    """The exchange of one request with the world outside."""

    is_kept: bool = False
    """Blocks stay at the end of the request until they are read."""
    fetches: bool = False
    """The prompt waits on another server, and was not asked for."""
    stored_tokens: Small = 0
    """Leading tokens that a store holds."""
    is_async: bool = False
    """Loads take place between steps."""
    num_unknown: Small = 0
    """Answers "ask again" that are still to come."""
    first_bad: int = 0
    """Index of the first place of a block that fails to load."""
    num_bad: Small = 0
    """Such places, until they are reported."""
    rank: Small = 0
    """Place among sequences that fail in one step."""
    loads_from: Small = 0
    """The first entry of the table that the load under way writes."""
    external_tokens: Small = 0
    """Tokens that came from outside with the last admission or load."""
    done_s: float = 0.0
    """Time at which the load, or the reading of what is kept, ends."""
    has_come: bool = False
    """The load was reported, and the sequence has not been looked at since."""
    has_failed: bool = False
    """A part of what was loaded is bad."""
    is_error: bool = False
    """The sequence has ended because its load failed."""
    is_held: bool = False
    """The sequence has ended, and its blocks wait for a transfer."""
    place: Small = 0
    """Index among the sequences with an unfinished prompt, from 1 on; 0 for none."""
    last_step: int = 0
    """The last step that computed tokens of it."""
    free_after: int = 0
    """The step whose output must be processed before its blocks are free."""
    dead_tokens: Small = 0
    """Tokens that it had computed in these blocks."""
    begun_seq: int = -1
    """Moment at which its last transfer begins; -1 for none."""
    ended_seq: int = -1
    """Moment at which the end of that transfer was reported; -1 for none."""
    begin_s: float = 0.0
    """Time at which that load begins to cross the link, or from which on kept blocks wait, in seconds."""
    first_entry: Small = 0
    """The first entry of the table that it concerns."""
    num_blocks: Small = 0
    """Blocks of that transfer."""
    num_tokens: Small = 0
    """Tokens in these blocks: from outside those of a load, computed ones in what is kept."""


@dataclass(slots=True, eq=False, repr=False)
class Report:
    """The end of a transfer, as a step reports it."""

    sequence: Small = 0
    is_load: bool = False
    reported_in: int = 0
    """The step with whose output it is reported, counted like calls of the scheduler from 1."""


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """One share of the link over which KV comes."""

    free_s: float = 0.0
    """Time at which it has done all loads that were given to it, in seconds."""


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
    """One for each sequence."""
    prefilling: Numbers
    """Sequences that load, or were admitted with a part of their prompt: blocks for the rest are reserved."""
    loads: Numbers
    """Sequences whose loads were begun, in order, until the caller reads the list."""
    notices: Numbers
    """Sequences whose prompts are not fetched: the other server may free them."""
    sends: Numbers
    """Sequences that have ended, and whose blocks wait for a reader from the next step on."""
    live: Numbers
    """Sequences with a transfer whose end is known and not reported."""
    lanes: Records[Lane]
    reports: Records[Report]
    """Transfers that have ended, in the order in which they are reported."""
    bad_places: Numbers
    """Places of the blocks that fail to load, end to end."""
    bad_blocks: Records[BadBlock]
    marks: Numbers
    """Marks of bad blocks, one for each block; used within one update."""
    errors: Numbers
    """Sequences that end with this update because their load failed."""
    deferred: Numbers
    """Sequences whose blocks are not free yet, in order."""
