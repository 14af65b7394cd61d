"""Records of SGLang's radix cache: the tree, the slots, the rows of requests, and the state of the scheduler.

An engine without it has an empty tuple in its place, and nothing of these records in its compiled code. A page is a
number of consecutive slots, one by default. Page 0 is where padding is written. It is never allocated, so 0 means no
page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.records import Bucketed, Small

NO_PAGE = 0
SLOTS, WINDOWS = range(2)
"""Pools: the slots of full attention, or of all layers; those of layers with windows."""
ROOT = 0
"""The root of the tree, which holds no page; as the child of a node, none."""
FCFS, LPM, DFS_WEIGHT, LOF, HRRN, SHORTEST_PREFILL_FIRST = range(6)
"""Orders of the queue."""
LRU, LFU, FIFO, FILO, MRU, LEAST_PRIORITY, SLRU = range(7)
"""Strategies: which leaf of the tree is evicted first."""
NO_BATCH, EXTEND, DECODE, MIXED = range(4)
"""Kinds of batches: none, prompts, one token of each running request, both."""
NOT_CHUNKED = 0
"""No request is in the middle of its prompt."""
NO_HOST, WRITE_THROUGH, WRITE_SELECTIVE, WRITE_BACK = range(4)
"""Write policies: copy a node of the tree to the host never, at its first hit, at its second, at its eviction."""
NO_PRIORITY = 1 << 40
"""The size of a priority beyond all others, which a request without one has."""
ASKED, LEAF, DUPLICATE, RETRACTED, WINDOW = range(5)
"""Events: an eviction was asked for; a node was evicted; slots were freed because the tree has their tokens; a request
gave its memory back; the window slots of a node were evicted."""


@dataclass(slots=True, eq=False, repr=False)
class RadixArguments:
    """The server arguments of SGLang that its scheduler and its cache read. Nothing here changes during a run."""

    has_tree: bool = False
    eviction: int = LRU
    order: int = FCFS
    num_rows: int = 0
    """Requests that may run at once."""
    row_pages: int = 0
    """Pages of the longest sequence: the length of a row of the request table."""
    chunk_tokens: int = 0
    """Tokens of prompts in one batch; 0 where prompts are not cut."""
    max_prefill_tokens: int = 0
    mixes: bool = False
    """Running requests decode in the step of a prefill."""
    is_exclusive: bool = False
    """A prefill that follows another waits for its output before it is launched."""
    prefill_max_requests: int = 0
    """Requests in one prefill; 0 for no limit."""
    prefill_decode_interval: int = 0
    """Passes after a prefill in which no other is tried."""
    interval_min_seqs: int = 0
    """Running requests below which the interval is cut short."""
    by_priority: bool = False
    low_values_first: bool = False
    """A smaller priority is the more important one."""
    preempts: bool = False
    """A waiting request may take the place of less important ones."""
    preemption_threshold: int = 0
    retracts_by_priority: bool = False
    first_ratio: float = 0.0
    """Share of the tokens that running requests may still put out which admission expects, at first."""
    least_ratio: float = 0.0
    ratio_decay: float = 0.0
    """Loss of the share with each decode step."""
    retract_steps: int = 0
    """Slots that a retraction frees for each remaining request."""
    most_new_tokens: int = 0
    """Tokens of an answer that admission looks at, at most."""
    window_tokens: int = 0
    """Tokens before a new one that layers with windows look at; 0 without such layers, which then have no pool."""
    window_pages: int = 0
    """Pages of their pool."""
    window_interval: int = 0
    """Tokens beyond the window after which a running request gives window slots back."""
    host_pages: int = 0
    """Pages of the host tier."""
    write_policy: int = NO_HOST
    """The write policy of the host tier."""
    copies_are_told: bool = False
    """The caller says when copies have ended; otherwise each has ended in the next pass."""
    reports: bool = False
    """Evictions, duplicates and retractions are written down."""
    most_memory_rows: int = 0
    """Rows of a recording that there is room for."""


@dataclass(slots=True, eq=False, repr=False)
class RadixState:
    """Every number of the cache and its scheduler that changes from step to step."""

    is_collecting: bool = False
    """Pages that are freed are collected, and freed together."""
    num_free_windows: int = 0
    """Free pages of the pool of windows."""
    num_cached_windows: int = 0
    """Pages of windows in the tree that no request locks."""
    num_edges: int = 0
    """Nodes that were ever the upper edge of a locked window."""
    matched_pages: int = 0
    """Pages of the last match, whether their windows are there or not."""
    host_node: int = ROOT
    """The node at which the last match ended, where copies on the host count, too."""
    num_nodes: int = 0
    """Records of nodes that were ever taken."""
    first_spare: int = 0
    """First unused record of a node; `parent` leads to the next."""
    num_leaves: int = 0
    """Nodes that can be evicted now."""
    entries_end: int = 0
    """End of the entries in use of `RadixTables.node_pages`, those of evicted nodes included."""
    entries_limit: int = 0
    """End of the half of `RadixTables.node_pages` that is in use."""
    clock: int = 0
    """Counter of accesses to the tree."""
    locked_pages: int = 0
    num_free_rows: int = 0
    chunked: int = NOT_CHUNKED
    """The request that is in the middle of its prompt."""
    last_mode: int = NO_BATCH
    """The batch launched in the pass before."""
    last_chunked: int = NOT_CHUNKED
    num_prefills: int = 0
    """Requests of the last prefill that computed prompts."""
    num_ended_before: int = 0
    """Requests that had ended when those that run were looked through last."""
    num_last: int = 0
    """Requests of that batch, if it was a prefill."""
    runs_last: bool = False
    """The running batch is the prefill of the pass before: SGLang takes that for a decode once the batch decodes."""
    last_puts_out: bool = False
    """A request of the last prefill may put out more than the token of its prefill."""
    puts_out: bool = False
    """A running request may put out more than the token of its prefill."""
    chosen_mode: int = NO_BATCH
    """A batch that is chosen and waits for the output of the one before."""
    is_full: bool = False
    """No candidate is looked at before a request leaves."""
    ratio: float = 0.0
    """The share of `RadixArguments.first_ratio` as it is now."""
    is_rested: bool = True
    """The engine has kept house since the last batch."""
    interval_left: int = 0
    num_refreshes: int = 0
    """Passes that ordered a queue, where waiting prefixes are kept young."""
    num_entered: int = 0
    """Requests that have entered the queue, those that came back included."""
    num_prefilled: int = 0
    """Tokens prefilled, as SGLang counts them."""
    last_prefill_tokens: int = 0
    running_prefill_tokens: int = 0
    """Tokens of the prefill that the running batch was, which SGLang counts again with each decode."""
    num_launched: int = 0
    launched_mode: int = NO_BATCH
    """Kind of the batch that was launched last; of a decode, all running requests are part."""
    most_results: int = 0
    """Results that may come before one ends a running request by length, at least."""
    has_failed: bool = False
    """SGLang would have died: a batch that was admitted finds too few slots."""
    total_offset: float = 0.0
    """Tokens that running and admitted requests will need, as a pass expects it."""
    current_offset: float = 0.0
    """Tokens that admitted requests need now."""
    window_offset: int = 0
    """Slots of windows that admitted requests will need."""
    input_left: int = 0
    chunk_left: int = 0
    num_held_rows: int = 0
    """Admitted requests of the pass that have a row already."""
    admitted_chunked: int = NOT_CHUNKED
    """The request admitted in the pass whose prompt is cut."""
    num_needs: int = -1
    """Requests whose needs the pass has noted; -1 for none yet."""
    num_free_host: int = 0
    """Free pages of the host tier."""
    num_written: int = 0
    """Copies to the host that the scheduler has not heard of."""
    num_loading: int = 0
    """Copies from the host that the scheduler has not heard of."""
    num_doubled: int = 0
    """Nodes that ever came to be on the device and on the host."""
    num_events: int = 0


@dataclass(slots=True, eq=False, repr=False)
class FreeList:
    """The ring of the free pages of a pool: `RadixTables.free_pages` from `begin` to `end`."""

    begin: int = 0
    end: int = 0
    head: int = 0
    """The place of the page that is handed out next."""
    tail: int = 0
    """The place behind the last free page."""
    back: int = 0
    """The place behind the last page that is collected to be freed."""
    num_collected: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Node(Bucketed):
    """A run of pages in the tree, found by the key of its first one."""

    key: int = 0
    parent: Small = 0
    owner: Small = 0
    """A request that has the tokens of the whole path: keys of pages are its keys."""
    begin: Small = 0
    """Pages of the path before the node."""
    num_pages: Small = 0
    first_entry: Small = 0
    """Index of its first page in `RadixTables.node_pages`."""
    num_children: Small = 0
    locks: Small = 0
    hits: Small = 0
    place: Small = -1
    """Index of the node among those that can be evicted, or -1."""
    priority: int = 0
    accessed: int = 0
    created: int = 0
    attached: int = 0
    """The order in which the children of a node were attached to it."""
    weight: Small = 0
    """Waiting requests whose prefix ends in the subtree, while they are put in order."""
    first_waiting: Small = 0
    last_waiting: Small = 0
    first_child: Small = ROOT
    """The first of the children with waiting requests that were not met yet."""
    next_sibling: Small = ROOT
    is_spare: bool = False
    """The record is of no node."""
    is_on_device: bool = True
    is_on_host: bool = False
    num_host_children: Small = 0
    """Children that are on the host alone, which `num_children` leaves out."""
    host_locks: Small = 0
    """Loads under way that begin at the node's copy."""
    loaded_for: Small = ROOT
    """The node at which a load under way ends that this one is part of."""
    doubled: int = 0
    """The order in which nodes came to be on the device and on the host; 0 where that was not noted."""
    has_window: bool = False
    """The window slots of its pages are there, too."""
    window_locks: Small = 0
    edge: Small = 0
    """The number by which requests know the node as the upper end of the window that they lock; 0 for none."""
    younger: Small = ROOT
    """The node with a window that was used later; of the root, the oldest. `older` is the other way."""
    older: Small = ROOT


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """The share of one request in the cache, and its state in the scheduler."""

    node: Small = ROOT
    """The node at which its prefix ends."""
    host_node: Small = ROOT
    """The node at which its prefix ends where copies on the host count, too."""
    host_tokens: Small = 0
    """Tokens of its last match that are on the host alone."""
    lock: Small = ROOT
    """The node from which on its path is locked."""
    edge: Small = 0
    """The edge (`Node.edge`) up to which the windows of that path are locked; 0 for the whole path."""
    gone_tokens: Small = 0
    """Tokens up to which the request has given its window slots back."""
    branch_tokens: Small = 0
    """Tokens of its last match where they were more than its hit, for lack of windows; 0 otherwise."""
    num_extends: Small = 0
    """Prefills that it was in since it was admitted."""
    num_decodes: Small = 0
    prefix_tokens: Small = 0
    """Tokens at which its next prefill begins."""
    extend_end: Small = 0
    """Tokens at which its last prefill ends."""
    protected_tokens: Small = 0
    """Tokens whose slots are the tree's."""
    inserted_tokens: Small = 0
    """Tokens that it has ever put into the tree."""
    laid_out_tokens: Small = 0
    """Tokens that the scheduler has copied for it."""
    matched_tokens: Small = 0
    """Tokens of the last match, by which the queue is ordered."""
    limit: Small = 0
    """Outputs that it may put out."""
    ignores_eos: bool = False
    is_aborted: bool = False
    """The request ends with its next output."""
    middle_chunks: Small = 0
    """Chunks in flight that yield no output."""
    launched_in: int = 0
    """The last batch with a prefill that it was in, counted from 1."""
    entered: int = 0
    """The order of entering the queue."""
    entered_at: int = 0
    """Tokens prefilled by the engine before."""
    rank: Small = 0
    """Place of its name in the order of all names, as a tie-breaker."""
    priority: int = 0
    is_put_back: bool = False
    """A request before it in the queue has the same prefix: it waits until that is computed."""
    next_waiting: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Launch:
    """A step in flight."""

    mode: Small = NO_BATCH
    num_seqs: Small = 0
    num_prefills: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class CacheEvent:
    """An event of the cache, or one more page of it."""

    kind: Small = 0
    is_first: bool = False
    """The row begins an event; others add pages to it."""
    subject: Small = 0
    """The request that it is about, the number of slots asked for, or the first page."""
    length: Small = 0
    """Pages, or outputs of the request."""
    others: Small = 0
    """Requests that continue."""


@dataclass(slots=True, eq=False, repr=False)
class Need:
    """Tokens that a request may still put out, and those that it then gives back."""

    left: float = 0.0
    held: int = 0


class RadixTables(NamedTuple):
    """SGLang's cache and scheduler, in an engine that has them."""

    settings: RadixArguments
    state: RadixState
    free: Records[FreeList]
    """Free lists of the pool of slots and of that of windows."""
    free_pages: Numbers
    """The rings of both pools. Pages of the pool of windows are numbered behind the others."""
    node_pages: Numbers
    """Pages of the tree's nodes, those of a node end to end, in two halves: when one is full, the pages of all nodes
    are copied to the other."""
    windows: Numbers
    """The page in the pool of windows that goes with a page, or none."""
    nodes: Records[Node]
    leaves: Numbers
    """A heap of the nodes that can be evicted, the next one first."""
    rows: Numbers
    """The request table: pages of each row, one row behind the other, the last row first."""
    free_rows: Numbers
    """A stack of rows."""
    holdings: Records[Holding]
    """One for each request."""
    last: Numbers
    """Requests of the prefill launched in the pass before."""
    order: Numbers
    """Requests that are being put in order."""
    written: Numbers
    """Nodes that are being copied to the host."""
    loading: Numbers
    """Nodes at which loads from the host end."""
    launches: Records[Launch]
    """One for each step that may be in flight."""
    needs: Records[Need]
    """Tokens that running requests will need, where the cache is off; see `prefill_adder`."""
    events: Records[CacheEvent]
