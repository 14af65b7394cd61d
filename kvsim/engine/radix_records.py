"""State of SGLang's radix cache: the tree, the slots, the rows of requests, and the state of the scheduler.

An engine without a radix cache has an empty tuple instead, so that its compiled code is smaller. A page is a number of
consecutive slots, one by default. Page 0 receives padding and is never allocated, so 0 means no page. A pass is one
iteration of SGLang's scheduler; it may launch no batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.host_tier import CopyRow
from kvsim.engine.records import Bucketed, Small

NO_PAGE = 0
SLOTS, WINDOWS = range(2)
"""Pools of slots: `WINDOWS` for layers with windows, if these have a pool; `SLOTS` for all other layers."""
ROOT = 0
"""Index of the root of the tree, which holds no page. It also means that there is no such node."""
FCFS, LPM, DFS_WEIGHT, LOF, HRRN, SHORTEST_PREFILL_FIRST = range(6)
"""Orders of the waiting queue, by SGLang's names."""
LRU, LFU, FIFO, FILO, MRU, LEAST_PRIORITY, SLRU = range(7)
"""Strategies that choose the leaf of the tree that is evicted first, by SGLang's names."""
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

`IN_NEXT_PASS`: in the pass after the copy's begin. `BY_CLOCK`: after the time that the copy takes on the link.
`REPORTED`: when the caller reports the end.
"""
NO_SLOT = 0
"""Index that means no slot of host memory. Slots are numbered from 1 here, and from 0 in a recording."""
NO_PRIORITY = 1 << 40
"""Number larger than all priorities. A request without a priority has this number or its negative."""
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

    has_tree: bool = False
    eviction: int = LRU
    order: int = FCFS
    max_running_requests: int = 0
    """Largest number of requests that run at once."""
    row_pages: int = 0
    """Number of pages in a row of the request table: those of the longest sequence."""
    chunk_tokens: int = 0
    """Largest number of prompt tokens in one batch; 0 if prompts are not split into chunks."""
    max_prefill_tokens: int = 0
    mixes: bool = False
    """True if running requests decode in the same step as a prefill."""
    serializes_prefills: bool = False
    """True if a prefill that follows another prefill is launched after the output of the earlier one."""
    prefill_max_requests: int = 0
    """Largest number of requests in one prefill; 0 for no limit."""
    prefill_decode_interval: int = 0
    """Number of passes after a prefill in which no further prefill is tried."""
    interval_min_seqs: int = 0
    """Number of running requests below which the interval `prefill_decode_interval` ends early."""
    by_priority: bool = False
    low_values_first: bool = False
    """True if the request with the smaller priority is the more important one."""
    preempts: bool = False
    """True if a waiting request may preempt less important running requests."""
    preemption_threshold: int = 0
    retracts_by_priority: bool = False
    first_ratio: float = 0.0
    least_ratio: float = 0.0
    """Value of `RadixState.ratio` below which it never falls."""
    ratio_decay: float = 0.0
    """Amount by which a decode step without a retraction lowers `RadixState.ratio`, down to `least_ratio`."""
    retract_steps: int = 0
    """Number of decode steps for which a retraction makes room for each request that continues."""
    most_new_tokens: int = 0
    """Largest number of output tokens of a request for which admission requires room."""
    window_tokens: int = 0
    """Number of earlier tokens that layers with windows read; 0 if these layers have no pool of their own."""
    window_pages: int = 0
    """Number of pages in the pool for layers with windows."""
    window_interval: int = 0
    """Number of tokens that a decoding request computes from one release of window slots to the next."""
    host_pages: int = 0
    write_policy: int = NO_HOST
    """Write policy of the host tier; see `NO_HOST`."""
    copies_end: int = IN_NEXT_PASS
    store_page_s: float = 0.0
    """Seconds that copying a page to the host takes."""
    load_page_s: float = 0.0
    """Seconds that copying a page from the host takes."""
    num_layers: int = 1
    """Number of layers. They are loaded one after the other while a step computes them."""
    most_copy_rows: int = 0
    """Largest number of recorded copies with which a step may begin. With more, the slice ends."""
    reports: bool = False
    """True to record evictions, duplicates and retractions."""
    most_memory_rows: int = 0
    """Capacity of the memory table, in rows."""


@dataclass(slots=True, eq=False, repr=False)
class RadixState:
    """Numbers of the cache and of its scheduler that change from step to step."""

    is_collecting: bool = False
    """True while `token_slots` collects freed pages, which `end_free_group` frees in one call."""
    num_free_windows: int = 0
    num_cached_windows: int = 0
    """Number of window pages in the tree that no request locks."""
    num_edges: int = 0
    """Number of values of `Node.edge` that were assigned since the run began."""
    matched_pages: int = 0
    """Number of pages of the last match, whether or not they have windows."""
    host_node: int = ROOT
    """Node at which the last match ended, on the device or only on the host."""
    num_nodes: int = 0
    """Largest index of a record that was ever used for a node."""
    first_spare: int = 0
    """Index of the first unused record of a node; `ROOT` for none. Its `parent` is the next unused record."""
    num_leaves: int = 0
    """Number of leaves that can be evicted now."""
    entries_end: int = 0
    """Index after the last entry of the current half of `RadixTables.node_pages` that is or was used."""
    entries_limit: int = 0
    """Index after the last entry of the current half of `RadixTables.node_pages`."""
    last_stamp: int = 0
    """Counter from which accesses to the tree get their stamps."""
    locked_pages: int = 0
    num_free_rows: int = 0
    chunked: int = NOT_CHUNKED
    """Number of the request that is in the middle of its prompt; `NOT_CHUNKED` if there is none."""
    last_mode: int = NO_BATCH
    """Kind of the batch of the previous pass."""
    last_chunked: int = NOT_CHUNKED
    num_prefills: int = 0
    """Number of requests in the last prefill's batch, without decodes that are mixed in."""
    num_ended_before: int = 0
    """Value of `State.num_ended` when the running batch was last filtered."""
    num_last_prefill: int = 0
    """Number of requests in the last prefill's batch, with decodes mixed in; see `RadixTables.last`."""
    runs_last: bool = False
    """True if the running batch is the last prefill. SGLang counts its first decode as this prefill."""
    last_puts_out: bool = False
    """True if a request of the last prefill's batch may yield further outputs."""
    puts_out: bool = False
    """True if a request of the running batch may yield outputs after the output of its prefill."""
    chosen_mode: int = NO_BATCH
    """Kind of the chosen batch that awaits the previous output before its launch; `NO_BATCH` for none."""
    is_full: bool = False
    """True if the running batch counts as full: no waiting request is tried before a request leaves."""
    ratio: float = 0.0
    """Share of its remaining output limit that each running request is currently expected to use."""
    is_ratio_reset: bool = True
    """True if `ratio` has been reset since the last batch."""
    interval_left: int = 0
    num_waiting_passes: int = 0
    """Number of passes with waiting requests since the run began. In some of these, their prefixes are matched."""
    num_entered: int = 0
    """Number of times that a request has entered the queue, since the run began."""
    num_prefilled: int = 0
    """Number of prefilled tokens since the run began, as SGLang counts them."""
    last_prefill_tokens: int = 0
    running_prefill_tokens: int = 0
    """Number of tokens of the prefill that became the running batch. SGLang counts them again in every decode."""
    num_launched: int = 0
    launched_mode: int = NO_BATCH
    """Kind of the batch that was launched last. A decode includes all running requests."""
    results_until_scan: int = 0
    """Number of results after which the running requests are scanned again for those that end by length."""
    total_offset: float = 0.0
    """Number of further slots that running and admitted requests are expected to need."""
    current_offset: float = 0.0
    """Number of slots that the requests admitted in this pass need for their prefill."""
    window_offset: int = 0
    """Number of window slots that the admitted requests will need."""
    input_left: int = 0
    chunk_left: int = 0
    num_held_rows: int = 0
    """Number of requests admitted in this pass that already have a row."""
    admitted_chunked: int = NOT_CHUNKED
    """Number of the request whose prompt is cut, among those admitted in this pass; `NOT_CHUNKED` if there is none."""
    num_needs: int = -1
    """Number of used records in `RadixTables.needs`; -1 before the first candidate of a pass."""
    num_free_host: int = 0
    num_storing: int = 0
    """Number of copies to the host in progress, as far as the scheduler knows."""
    num_loading: int = 0
    """Number of loads from the host in progress, as far as the scheduler knows."""
    num_doubled: int = 0
    """Number of values of `Node.doubled` that were assigned since the run began."""
    num_copying: int = 0
    """Number of pages on the device that only copies lock."""
    next_copy: int = 0
    first_free_slot: int = NO_SLOT
    """First free slot of host memory. `RadixTables.next_slot` links the others."""
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
    num_idle_passes: int = 0
    """Number of the latest consecutive passes that launched no batch and changed nothing."""
    num_copy_rows: int = 0
    num_events: int = 0


@dataclass(slots=True, eq=False, repr=False)
class FreeList:
    """Free pages of a pool: a ring buffer in `RadixTables.free_pages[begin:end]`."""

    begin: int = 0
    end: int = 0
    head: int = 0
    """Index in `RadixTables.free_pages` of the page that is allocated next."""
    tail: int = 0
    """Index in `RadixTables.free_pages` after the last free page."""
    collected_end: int = 0
    """Index in `RadixTables.free_pages` after the last collected page. Collected pages follow the free ones."""
    num_collected: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Node(Bucketed):
    """Node of the tree: consecutive pages of a prefix. It is found by the key of its first page."""

    key: int = 0
    parent: Small = 0
    owner: Small = 0
    """Number of a request that has the tokens of the whole path. It provides the keys of the node's pages."""
    begin: Small = 0
    """Number of pages on the path from the root to the node, without its own."""
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
    """Index of the first child with waiting requests that the sort of the queue has not visited; `ROOT` for none."""
    next_sibling: Small = ROOT
    is_spare: bool = False
    is_on_device: bool = True
    is_on_host: bool = False
    num_host_children: Small = 0
    """Number of children that are only on the host. `num_children` does not count these."""
    host_locks: Small = 0
    """Number of locks on the host copy of the node: one for each load in progress that ends at the node."""
    loaded_for: Small = ROOT
    """Node at which the load in progress ends that also loads this node; `ROOT` if there is none."""
    first_slot: Small = NO_SLOT
    """Slot of host memory with the node's first page. `RadixTables.next_slot` links the slots of its other pages."""
    doubled: int = 0
    """Position of the node in the order in which nodes became double (on device and host); 0 if it is not double."""
    has_window: bool = False
    """True if the pages of the node have window slots."""
    window_locks: Small = 0
    edge: Small = 0
    """Number that marks the node as the topmost one whose windows some request locks; 0 if it is none."""
    younger: Small = ROOT
    """Node whose windows were used next after those of this node. For `ROOT`: the node whose windows are the least
    recently used. `older` is the opposite link.
    """
    older: Small = ROOT


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """State of one request in the cache and in the scheduler."""

    node: Small = ROOT
    """Node at which the cached prefix of the request ends."""
    host_node: Small = ROOT
    """Node at which the request's cached prefix ends, on the device or only on the host."""
    host_tokens: Small = 0
    """Number of tokens of the last match whose pages are only on the host."""
    loaded_pages: Small = 0
    """Number of pages at the end of the request's prefix that the step being scheduled loads from the host."""
    lock: Small = ROOT
    """Last node of the path that the request locks."""
    edge: Small = 0
    """Value of `Node.edge` at which the request's locks on windows end; 0 if the whole path is locked."""
    freed_window_tokens: Small = 0
    """Number of leading tokens whose window slots the request has freed."""
    branch_tokens: Small = 0
    """Number of leading tokens in the tree, if the hit is shorter because nodes lack their windows; otherwise 0."""
    num_extends: Small = 0
    """Number of prefills that have computed a part of the request since its admission."""
    num_decodes: Small = 0
    prefix_tokens: Small = 0
    """Number of tokens of the request that come before those of its next prefill."""
    extend_end: Small = 0
    """Number of tokens of the request up to the end of its last prefill."""
    protected_tokens: Small = 0
    """Number of leading tokens whose slots belong to the tree."""
    inserted_tokens: Small = 0
    """Number of leading tokens that the request has inserted into the tree."""
    laid_out_tokens: Small = 0
    """Number of tokens of the request when the scheduler last copied its list of tokens."""
    matched_tokens: Small = 0
    """Number of leading tokens that the last match found on device or host, by which `LPM` sorts."""
    limit: Small = 0
    """Largest number of output tokens that the request allows."""
    begin_key: int = 0
    """Key of the request's first tokens, by which waiting requests are compared; see `Demand.begins`."""
    ignores_eos: bool = False
    is_aborted: bool = False
    """True if the request ends with its next output."""
    middle_chunks: Small = 0
    """Number of steps in flight that compute a chunk of the prompt, but not its end, and so yield no output."""
    launched_in: int = 0
    """Number of the last batch that prefilled the request; batches are counted from 1."""
    entered: int = 0
    """Position of the request in the order in which requests entered the queue."""
    entered_at: int = 0
    """Value of `RadixState.num_prefilled` when the request entered the queue."""
    rank: Small = 0
    """Position of the request's name in the order of all names. It breaks ties."""
    priority: int = 0
    is_put_back: bool = False
    """True if the request waits until an earlier request in the queue has computed their common prefix."""
    next_waiting: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Launch:
    """SGLang's part of the state of one step in flight."""

    mode: Small = NO_BATCH
    num_seqs: Small = 0
    num_prefills: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class NodeCopy:
    """Copy of the last pages of a path between device and host, in progress as far as the scheduler knows."""

    number: int = 0
    """Number of the copy, in the order in which copies begin."""
    node: Small = ROOT
    """Last node of the path."""
    num_pages: Small = 0
    request: Small = 0
    """Number of the request that loads the pages, or whose tokens are stored."""
    begun_step: Small = 0
    """Number of the first recorded step that is scheduled in or after the pass in which the copy begins."""
    awaited_step: Small = -1
    """Number of the recorded step that had to wait for the copy; -1 if there is none."""
    done_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class CacheEvent:
    """Event of the cache, or further pages of the previous event."""

    kind: Small = 0
    is_first: bool = False
    """True if the record begins an event; False if it adds pages to the previous event."""
    subject: Small = 0
    """Number of slots to evict (`ASKED`), of the request (`RETRACTED`), or otherwise of the first page."""
    length: Small = 0
    """Number of window slots to evict (`ASKED`), of output tokens (`RETRACTED`), or otherwise of pages."""
    num_continuing: Small = 0
    """Number of requests in the batch that continue while a request is retracted; 0 for other kinds."""


@dataclass(slots=True, eq=False, repr=False)
class Need:
    """Expected future of a request: after `left` more output tokens, the slots of its `held` tokens are free."""

    left: float = 0.0
    held: int = 0


class RadixTables(NamedTuple):
    """State of SGLang's cache and scheduler."""

    settings: RadixArguments
    state: RadixState
    free_lists: Records[FreeList]
    """Free lists of the pools `SLOTS` and `WINDOWS`, in this order."""
    free_pages: Numbers
    """Rings of both pools, one after the other. Window pages are numbered after the other pages."""
    node_pages: Numbers
    """Pages of all nodes, in one of two halves. When a half is full, the used entries are copied to the other half."""
    window_pages: Numbers
    """Window page of each page; `NO_PAGE` if it has none."""
    nodes: Records[Node]
    leaves: Numbers
    """Nodes that can be evicted, as a heap. The node that is evicted next is at index 0."""
    rows: Numbers
    """Pages in each row of the request table, one row after the other."""
    free_rows: Numbers
    """Free rows of the request table, as a stack."""
    holdings: Records[Holding]
    last: Numbers
    """Numbers of the requests in the batch of the last prefill."""
    order: Numbers
    """Numbers of requests in sorted order, while the queue is sorted or victims are chosen."""
    written: Records[NodeCopy]
    """Copies to the host in progress, in the order in which they began."""
    loading: Records[NodeCopy]
    """Loads from the host in progress, in the order in which they began."""
    next_slot: Numbers
    """Slot of host memory that follows each slot in its list, which has the slots of a node or the free slots."""
    copy_rows: Records[CopyRow]
    """Copies that were found ended in this slice of the run; empty if they are not recorded."""
    launches: Records[Launch]
    """One record for each step that may be in flight."""
    needs: Records[Need]
    """Future needs of requests, in ascending order of `Need.left`. For runs without a prefix cache."""
    events: Records[CacheEvent]
