"""State of SGLang's radix cache: the tree, the slots, the rows of requests, and the state of the scheduler.

An engine without a radix cache has an empty tuple instead, so that its compiled code is smaller. A page is a number of
consecutive slots, one by default. Page 0 receives padding and is never allocated, so 0 means no page. A pass is one
iteration of SGLang's scheduler; it may launch no batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine.arrays import Numbers, Records, Tables
from kvsim.engine.host_tier import CopyRow
from kvsim.engine.records import Bucketed, Small

NO_PAGE = 0
SLOTS, WINDOWS = range(2)
"""Pools of slots: `WINDOWS` for layers with windows, if these have a pool; `SLOTS` for all other layers."""
ROOT = 0
"""Index of the root, which holds no page. A field with a node's index has this value if there is no such node."""
FCFS, LPM, DFS_WEIGHT, LOF, HRRN, SHORTEST_PREFILL_FIRST = range(6)
"""Orders of the waiting queue, by SGLang's names.

- `FCFS`: first come, first served.
- `LPM`: longest prefix match first.
- `DFS_WEIGHT`: depth-first through the tree, the subtree with the most waiting requests first.
- `LOF`: longest output limit first.
- `HRRN`: highest response ratio next, which is the work done since a request was queued, divided by its own work.
- `SHORTEST_PREFILL_FIRST`: fewest tokens to compute first.
"""
LRU, LFU, FIFO, FILO, MRU, LEAST_PRIORITY, SLRU = range(7)
"""Strategies that choose the leaf of the tree that is evicted first, by SGLang's names.

- `LRU`: least recently used; `MRU`: most recently used.
- `LFU`: least frequently used.
- `FIFO`: oldest; `FILO`: newest.
- `LEAST_PRIORITY`: lowest priority.
- `SLRU`: least recently used among leaves with few hits, and only then among those with many.
"""
NO_BATCH, EXTEND, DECODE, MIXED = range(4)
"""Kinds of batches: none; `EXTEND`, prefills; `DECODE`, a token of each running request; `MIXED`, both."""
NOT_CHUNKED = 0
"""Value of `RadixState.chunked` if no request is in the middle of its prompt."""
NO_HOST, WRITE_THROUGH, WRITE_SELECTIVE, WRITE_BACK = range(4)
"""Write policies, which decide when a node of the tree is copied to the host. `NO_HOST`: never. `WRITE_THROUGH`: at its
first hit. `WRITE_SELECTIVE`: at its second hit. `WRITE_BACK`: when it is evicted.
"""
IN_NEXT_PASS, BY_CLOCK, REPORTED = range(3)
"""Rules by which the scheduler finds that a copy between device and host has ended.

- `IN_NEXT_PASS`: in the pass after the one that begins the copy.
- `BY_CLOCK`: in the first pass after the time that the copy takes on the link.
- `REPORTED`: when the caller reports the end.
"""
NO_SLOT = 0
"""Index that means no slot of host memory. Slots are numbered from 1 here, and from 0 in a recording."""
NO_PRIORITY = 1 << 40
"""Number above all priorities. With its sign, a request without a priority is the least important one."""
ASKED, LEAF, DUPLICATE, RETRACTED, WINDOW = range(5)
"""Kinds of events of the cache.

- `ASKED`: the scheduler asks for evictions that free slots.
- `LEAF`: a node was evicted.
- `DUPLICATE`: slots were freed because the tree has their tokens.
- `RETRACTED`: a request was retracted.
- `WINDOW`: the window slots of a node were evicted.
"""


@dataclass(slots=True, eq=False, repr=False)
class RadixArguments:
    """Server arguments of SGLang that its scheduler and its cache read. They do not change during a run."""

    # The tree.
    has_tree: bool = False
    eviction: int = LRU

    # The queue.
    order: int = FCFS
    by_priority: bool = False
    low_values_first: bool = False
    """True if the request with the smaller priority is the more important one."""
    preempts: bool = False
    """True if a waiting request may preempt less important running requests."""
    preemption_threshold: int = 0
    retracts_by_priority: bool = False

    # Batches.
    max_running_requests: int = 0
    row_pages: int = 0
    """Number of pages in a row of the request table: enough for the longest sequence of the run."""
    chunk_tokens: int = 0
    """Limit for the number of prompt tokens in one batch; 0 if prompts are not split into chunks."""
    max_prefill_tokens: int = 0
    prefill_max_requests: int = 0
    """Limit for the number of requests in one prefill; 0 for no limit."""
    mixes: bool = False
    """True if running requests decode in the same step as a prefill."""
    serializes_prefills: bool = False
    """True if a prefill directly after another prefill is launched only after the first one's output was processed."""
    prefill_decode_interval: int = 0
    """Number of passes after a prefill in which no further prefill is tried; 0 for no restriction."""
    interval_min_seqs: int = 0
    """Running requests from which on `prefill_decode_interval` applies; with fewer, a prefill is tried at once."""

    # Expected needs of memory.
    first_ratio: float = 0.0
    least_ratio: float = 0.0
    """Lower bound of `RadixState.ratio`."""
    ratio_decay: float = 0.0
    """Amount by which a decode step without a retraction lowers `RadixState.ratio`, down to `least_ratio`."""
    retract_steps: int = 0
    """Number of tokens for each request that continues to run, for which a retraction makes room by evictions from the
    tree. It also enters the new `RadixState.ratio`.
    """
    most_new_tokens: int = 0
    """Most output tokens for which admission requires room, per request; SGLang's `CLIP_MAX_NEW_TOKENS`."""

    # Windows.
    window_tokens: int = 0
    """Number of earlier tokens that layers with windows read; 0 if these layers have no pool of their own."""
    window_pages: int = 0
    """Number of pages in the pool for layers with windows."""
    window_interval: int = 0
    """Number of tokens that a decoding request computes from one release of window slots to the next."""

    # The host tier.
    host_pages: int = 0
    write_policy: int = NO_HOST
    """Write policy of the host tier; see `NO_HOST`."""
    copies_end: int = IN_NEXT_PASS
    store_page_s: float = 0.0
    """Seconds that copying a page to the host takes."""
    load_page_s: float = 0.0
    """Seconds that copying a page from the host takes."""
    num_layers: int = 1
    """Number of layers. A step loads pages from the host layer by layer, while it computes."""

    # Recorded rows.
    most_copy_rows: int = 0
    """Largest number of recorded copies with which a step may begin; with more, the caller reads them first."""
    most_memory_rows: int = 0
    """Capacity of the memory table, in rows."""
    reports: bool = False
    """True to record evictions, duplicates (slots of tokens in the tree) and retractions in `RadixTables.events`."""


@dataclass(slots=True, eq=False, repr=False)
class RadixState:
    """Numbers of the cache and of its scheduler that change from step to step."""

    # The tree and its pages.
    num_nodes: int = 0
    """Largest index of a record that was ever used for a node."""
    first_spare: int = 0
    """Index of the first unused record of a node; `ROOT` if there is none. `Node.parent` links them."""
    num_leaves: int = 0
    """Number of leaves that can be evicted now."""
    locked_pages: int = 0
    last_stamp: int = 0
    """Stamp of the last access to the tree; `Node.accessed`, `created` and `attached` have such growing stamps."""
    matched_pages: int = 0
    """Number of pages that the last match found, those without window slots included."""
    host_node: int = ROOT
    """Last node of the last match. It may be only on the host."""
    entries_end: int = 0
    """Index after the last written entry of the half of `RadixTables.node_pages` in use."""
    entries_limit: int = 0
    """Index after the last entry of the half of `RadixTables.node_pages` in use."""
    is_collecting: bool = False
    """True while `token_slots` collects freed pages instead of freeing them. `end_free_group` frees them at once."""

    # Windows.
    num_free_windows: int = 0
    num_cached_windows: int = 0
    """Number of window pages in the tree that no request locks."""
    num_edges: int = 0
    """Value that was last assigned to a `Node.edge`. It grows by 1 with each assignment."""

    # The queue.
    num_entered: int = 0
    """Number of times that requests have entered the queue, since the run began."""
    num_waiting_passes: int = 0
    """Number of passes, since the run began, that began with waiting requests. In every few of these, prefixes are
    matched only to mark them as used.
    """

    # Batches.
    last_mode: int = NO_BATCH
    """Kind of the batch of the previous pass."""
    chosen_mode: int = NO_BATCH
    """Kind of a prefill batch that was chosen, but is launched only after the output in flight was processed;
    `NO_BATCH` if there is none. See `RadixArguments.serializes_prefills`.
    """
    launched_mode: int = NO_BATCH
    """Kind of the batch that was launched last. If it is `DECODE`, the batch has all running requests."""
    num_launched: int = 0
    chunked: int = NOT_CHUNKED
    """Number of the request that is in the middle of its prompt; `NOT_CHUNKED` if there is none."""
    last_chunked: int = NOT_CHUNKED
    num_prefills: int = 0
    """Number of requests that the last prefill computes, without the decodes that are mixed in."""
    num_last_prefill: int = 0
    """Number of requests in the last prefill's batch, with mixed-in decodes: the used length of `RadixTables.last`."""
    last_puts_out: bool = False
    """True if a request of the last prefill's batch has an output limit above 0, or if decodes are mixed in."""
    last_prefill_tokens: int = 0
    runs_last: bool = False
    """True if the running batch consists only of requests of the last prefill. A mixed batch that follows does not
    count as a second prefill in `RadixArguments.serializes_prefills`.
    """
    puts_out: bool = False
    """True if `last_puts_out` was True for any prefill in the running batch, which otherwise is never decoded."""
    running_prefill_tokens: int = 0
    """Number of tokens of the prefill that became the running batch. `num_prefilled` counts them in every decode."""
    is_full: bool = False
    """True if the running batch counts as full, so that a pass tries no waiting request. It is reset, above all, when a
    request leaves the batch.
    """
    interval_left: int = 0
    num_ended_before: int = 0
    """Value of `State.num_ended` when the running batch was last filtered."""
    results_until_scan: int = 0
    """Number of results before any running request can reach its output limit. At 0 or less, they are scanned again."""
    num_prefilled: int = 0
    """Tokens of all launched batches as SGLang counts them for `HRRN`: `running_prefill_tokens` for a decode."""
    num_idle_passes: int = 0
    """Number of consecutive passes up to now without a batch. Arrivals, aborts and processed outputs reset it."""

    # Expected needs of memory.
    ratio: float = 0.0
    """Share of its remaining output limit that each running request is currently expected to use."""
    is_ratio_reset: bool = True
    """True if `ratio` has been reset since the last batch was launched."""

    # The pass in progress.
    total_offset: float = 0.0
    """Number of further slots that running requests and those admitted in this pass are expected to need."""
    current_offset: float = 0.0
    """Number of slots that this pass has assigned: prefills of admitted requests, and one for each mixed-in decode."""
    window_offset: int = 0
    """Sum, over the requests admitted in this pass, of the most window slots that each can hold at once."""
    input_left: int = 0
    chunk_left: int = 0
    num_free_rows: int = 0
    num_held_rows: int = 0
    """Number of requests admitted in this pass that have a row already, for parts of prompts computed before."""
    admitted_chunked: int = NOT_CHUNKED
    """Number of the request whose prompt is cut, among those admitted in this pass; `NOT_CHUNKED` if there is none."""
    num_needs: int = -1
    """Number of used records in `RadixTables.needs` (expected ends of requests); -1 until the first candidate of this
    pass is checked against them.
    """

    # The host tier.
    num_free_host: int = 0
    first_free_slot: int = NO_SLOT
    """First free slot of host memory; `NO_SLOT` if none is free. `RadixTables.next_slot` has the others."""
    num_storing: int = 0
    """Number of copies to the host that the scheduler has begun and has not found ended."""
    num_loading: int = 0
    """Number of loads from the host that the scheduler has begun and has not found ended."""
    num_doubled: int = 0
    """Value that was last assigned to a `Node.doubled`. It grows by 1 with each assignment."""
    num_copying: int = 0
    """Number of pages on the device that are locked by copies in progress, but by no request."""
    next_copy: int = 0
    """Number of the next copy; see `NodeCopy.number`."""
    store_free_s: float = 0.0
    """Time at which all copies to the host that were begun have ended, in seconds."""
    load_begin_s: float = 0.0
    """Time at which the loads of the newest step begin, in seconds."""
    load_free_s: float = 0.0
    """Time at which all copies from the host that were begun have ended, in seconds."""
    num_step_load_pages: int = 0
    """Number of pages that the step being scheduled loads from the host."""
    awaited_s: float = 0.0
    """Time in seconds until which the host waits for copies of evicted nodes."""

    # Recorded rows.
    num_copy_rows: int = 0
    num_events: int = 0


@dataclass(slots=True, eq=False, repr=False)
class FreeList:
    """Free pages of a pool: a ring buffer in the entries [`begin`, `end`) of `RadixTables.free_pages`."""

    begin: int = 0
    end: int = 0
    head: int = 0
    """Index in `RadixTables.free_pages` of the page that is allocated next."""
    tail: int = 0
    """Index in `RadixTables.free_pages` after the last free page."""
    collected_end: int = 0
    """Index in `RadixTables.free_pages` after the last collected page; see `RadixState.is_collecting`."""
    num_collected: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Node(Bucketed):
    """Node of the tree: consecutive pages of a prefix. It is found by the key of its first page."""

    key: int = 0
    parent: Small = 0
    owner: Small = 0
    """Number of a request that has the tokens of the whole path. It provides the keys of the node's pages."""
    begin: Small = 0
    """Number of pages on the path from the root to the node, without the node's own pages."""
    num_pages: Small = 0
    first_entry: Small = 0
    """Index in `RadixTables.node_pages` of the node's first page."""
    num_children: Small = 0
    locks: Small = 0
    copy_locks: Small = 0
    """Number of `locks` that belong to copies in progress. The others belong to requests."""
    hits: Small = 0
    place: Small = -1
    """Index of the node in the heap `RadixTables.leaves`; -1 if it cannot be evicted."""
    priority: int = 0
    accessed: int = 0
    created: int = 0
    attached: int = 0
    """Stamp of the access in which the node was attached to its parent."""
    weight: Small = 0
    """Number of waiting requests whose prefix ends in the subtree. Used only while the queue is sorted."""
    first_waiting: Small = 0
    last_waiting: Small = 0
    first_child: Small = ROOT
    """Head of the list of child nodes with waiting requests not yet visited by the queue's sort; `ROOT` if empty."""
    next_sibling: Small = ROOT
    is_spare: bool = False
    is_on_device: bool = True
    is_on_host: bool = False
    num_host_children: Small = 0
    """Number of children that are only on the host. `num_children` does not count these."""
    host_locks: Small = 0
    """Number of locks that keep the host copy of the node: one for each load in progress whose last node this is."""
    loaded_for: Small = ROOT
    """Last node of the load in progress that includes this node; `ROOT` if no load does."""
    first_slot: Small = NO_SLOT
    """Slot of host memory with the node's first page. `RadixTables.next_slot` links the slots of its other pages."""
    doubled: int = 0
    """Rank of the node in the order in which nodes came to be on both device and host; 0 if it is not on both."""
    has_window: bool = False
    """True if the pages of the node have window slots."""
    window_locks: Small = 0
    edge: Small = 0
    """Unique number of a node that was once the topmost one whose window slots some request locked; 0 for other nodes.
    `Holding.edge` refers to it.
    """
    younger: Small = ROOT
    """Next node in the list of nodes with window slots, in order of use: it was used after this one. For `ROOT`, the
    least recently used node. `older` is the link in the other direction.
    """
    older: Small = ROOT


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """State of one request in the cache and in the scheduler."""

    node: Small = ROOT
    """Node at which the request's cached prefix on the device ends."""
    host_node: Small = ROOT
    """Node at which the request's cached prefix ends, if pages on the host count as well."""
    host_tokens: Small = 0
    """Number of tokens of the last match whose pages are only on the host."""
    loaded_pages: Small = 0
    """Number of pages at the end of the request's prefix that the step being scheduled loads from the host."""
    lock: Small = ROOT
    """Last node of the path that the request locks."""
    edge: Small = 0
    """`Node.edge` of the node up to which the request has locked window slots; 0 if up to the root."""
    freed_window_tokens: Small = 0
    """Number of leading tokens of the request whose window slots it has freed."""
    branch_tokens: Small = 0
    """Tokens of the last match, if it is longer than the hit because some nodes lack window slots; otherwise 0."""
    num_extends: Small = 0
    """Number of prefills that have computed a part of the request since its admission."""
    num_decodes: Small = 0
    prefix_tokens: Small = 0
    """Number of leading tokens that the request's next prefill leaves out, as cached or computed before."""
    extend_end: Small = 0
    """Number of the request's tokens up to the end of its last prefill: `prefix_tokens` and those it computes."""
    protected_tokens: Small = 0
    """Number of leading tokens whose slots belong to the tree, so that the request must not free them."""
    inserted_tokens: Small = 0
    """Largest number of leading tokens that the request itself has inserted into the tree since it was admitted."""
    laid_out_tokens: Small = 0
    """Number of the request's tokens when it was last considered for a prefill, mixed into one, or inserted into the
    tree at its end. Read to estimate how much memory a waiting request needs, before others are preempted for it.
    """
    matched_tokens: Small = 0
    """Leading tokens that the last match found, on device or host, without the request's last token; for `LPM`."""
    limit: Small = 0
    """Largest number of output tokens that the request allows."""
    begin_key: int = 0
    """Key of the request's first tokens, the same for requests with equal first tokens; see `Demand.begins`."""
    ignores_eos: bool = False
    is_aborted: bool = False
    """True if the request was aborted while it ran. It ends with its next output or, in the middle of its prompt, in
    the next pass.
    """
    middle_chunks: Small = 0
    """Number of steps in flight that compute a chunk of the prompt, but not its end, and so yield no output."""
    launched_in: int = 0
    """Number of the last batch that prefilled the request; batches are counted from 1."""
    entered: int = 0
    """Position of the request in the order in which requests entered the queue."""
    entered_at: int = 0
    """Value of `RadixState.num_prefilled` when the request entered the queue."""
    rank: Small = 0
    """Rank of the request's id (a string) among all ids in sorted order. It breaks ties in `HRRN`."""
    priority: int = 0
    is_put_back: bool = False
    """True if a request earlier in the queue begins with the same tokens, and the tree lacks them. The order of the
    queue then puts this request behind the others.
    """
    next_waiting: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Launch:
    """One step in flight in SGLang's scheduler: the kind of its batch, its requests, and those it prefills."""

    mode: Small = NO_BATCH
    num_seqs: Small = 0
    num_prefills: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class NodeCopy:
    """Copy between device and host of the last pages of a path in the tree, until the scheduler finds it ended."""

    number: int = 0
    """Number of the copy, in the order in which copies begin."""
    node: Small = ROOT
    """Last node of the path."""
    num_pages: Small = 0
    request: Small = 0
    """Number of the request that needs the loaded pages; for a store, of a request that has the same tokens."""
    begun_step: Small = 0
    """Number of recorded steps when the copy was begun. Counted from 0, this is the next recorded step."""
    awaited_step: Small = -1
    """Number of the recorded step that had to wait for the copy; -1 if there is none."""
    done_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class CacheEvent:
    """Record of one event of the cache. An event with several pages has one record per page."""

    kind: Small = 0
    is_first: bool = False
    """True if the record begins an event; False if it adds a page to the event of the record before it."""
    subject: Small = 0
    """Number of slots to evict (`ASKED`), number of the request (`RETRACTED`), or number of a page (other kinds)."""
    length: Small = 0
    """Number of window slots to evict (`ASKED`), output tokens of the request (`RETRACTED`), or 1 (other kinds)."""
    num_continuing: Small = 0
    """Number of requests of the batch that continue (`RETRACTED`); 0 for other kinds."""


@dataclass(slots=True, eq=False, repr=False)
class Need:
    """Expected end of a request: it generates `left` more tokens, and then its `held` slots become free."""

    left: float = 0.0
    held: int = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RadixTables(Tables):
    """Arrays and records of SGLang's cache and scheduler: the part of `Engine` that only they use."""

    settings: RadixArguments
    state: RadixState
    free_lists: Records[FreeList]
    """Free lists of the pools `SLOTS` and `WINDOWS`, in this order."""
    free_pages: Numbers
    """Ring buffers of both pools, one after the other. Pages of `WINDOWS` have larger numbers than those of `SLOTS`."""
    node_pages: Numbers
    """Pages of all nodes, in one half of the array. When it is full, entries still needed go to the other half."""
    window_pages: Numbers
    """Page of the pool `WINDOWS` for each page of the pool `SLOTS`; `NO_PAGE` if the page has none."""
    nodes: Records[Node]
    leaves: Numbers
    """Nodes that can be evicted, as a heap. The node that is evicted next is at index 0."""
    rows: Numbers
    """Request table, flat: `RadixArguments.row_pages` entries for each row, with the pages of the request's tokens."""
    free_rows: Numbers
    """Free rows of the request table, as a stack."""
    holdings: Records[Holding]
    last: Numbers
    """Numbers of the requests in the batch of the last prefill, decodes that are mixed in included."""
    order: Numbers
    """Working memory for sorting the queue and choosing victims: numbers of requests."""
    written: Records[NodeCopy]
    """Copies to the host in progress, in the order in which they began."""
    loading: Records[NodeCopy]
    """Loads from the host in progress, in the order in which they began."""
    next_slot: Numbers
    """Links of lists of host slots: for each slot, the next slot of the same node or, if it is free, the next free
    slot. After the last free slot comes `NO_SLOT`.
    """
    copy_rows: Records[CopyRow]
    """Copies that were found ended in this slice of the run; empty if they are not recorded."""
    launches: Records[Launch]
    """One record for each step that may be in flight, at the same index as in `Engine.launched`."""
    needs: Records[Need]
    """Expected ends of requests, in ascending order of `Need.left`. Used only without a prefix cache."""
    events: Records[CacheEvent]
