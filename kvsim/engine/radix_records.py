"""Records of SGLang's radix cache: the tree, the slots, the rows of requests, and the state of the scheduler.

An engine without a radix cache has an empty tuple instead, so that its compiled code is smaller. A page is a number of
consecutive slots, one by default. Page 0 receives padding and is never allocated, so 0 means no page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvsim.engine.arrays import Numbers, Records
from kvsim.engine.host_tier import CopyRow
from kvsim.engine.records import Bucketed, Small

NO_PAGE = 0
SLOTS, WINDOWS = range(2)
"""Pools of slots: one for full attention (without windows, for all layers), and one for layers with windows."""
ROOT = 0
"""The root of the tree, which holds no page. As the index of a child, it means that there is none."""
FCFS, LPM, DFS_WEIGHT, LOF, HRRN, SHORTEST_PREFILL_FIRST = range(6)
"""Orders of the waiting queue, by SGLang's names."""
LRU, LFU, FIFO, FILO, MRU, LEAST_PRIORITY, SLRU = range(7)
"""Strategies that choose the leaf of the tree to evict first, by SGLang's names."""
NO_BATCH, EXTEND, DECODE, MIXED = range(4)
"""Kinds of batches: none; prompts; one token of each running request; both."""
NOT_CHUNKED = 0
"""Value of the index of the chunked request if no request is in the middle of its prompt."""
NO_HOST, WRITE_THROUGH, WRITE_SELECTIVE, WRITE_BACK = range(4)
"""Write policies. A node of the tree is copied to the host never, at its first hit, at its second hit, or at its
eviction.
"""
IN_NEXT_PASS, BY_CLOCK, REPORTED = range(3)
"""Rules for when the scheduler finds that a copy between device and host has ended.

`IN_NEXT_PASS`: in the next pass. `BY_CLOCK`: after the time that the copy takes on the link. `REPORTED`: when the
caller reports the end.
"""
NO_SLOT = 0
"""Index that means no slot of host memory. Slots are numbered from 1, and in a recording from 0."""
NO_PRIORITY = 1 << 40
"""A number larger than all priorities. A request without a priority has this number or its negative."""
ASKED, LEAF, DUPLICATE, RETRACTED, WINDOW = range(5)
"""Events of the cache.

- `ASKED`: slots were asked to be evicted.
- `LEAF`: a node was evicted.
- `DUPLICATE`: slots were freed because the tree has their tokens.
- `RETRACTED`: a request was retracted.
- `WINDOW`: the window slots of a node were evicted.
"""


@dataclass(slots=True, eq=False, repr=False)
class RadixArguments:
    """The server arguments of SGLang that its scheduler and its cache read. Nothing here changes during a run."""

    has_tree: bool = False
    eviction: int = LRU
    order: int = FCFS
    num_rows: int = 0
    """Largest number of requests that run at once."""
    row_pages: int = 0
    """Length of a row of the request table, which is the number of pages of the longest sequence."""
    chunk_tokens: int = 0
    """Largest number of prompt tokens in one batch; 0 if prompts are not split into chunks."""
    max_prefill_tokens: int = 0
    mixes: bool = False
    """Running requests decode in the same step as a prefill."""
    is_exclusive: bool = False
    """A prefill that follows another waits for its output before it is launched."""
    prefill_max_requests: int = 0
    """Largest number of requests in one prefill; 0 for no limit."""
    prefill_decode_interval: int = 0
    """Number of passes after a prefill in which no other prefill is tried."""
    interval_min_seqs: int = 0
    """Number of running requests below which `prefill_decode_interval` ends early."""
    by_priority: bool = False
    low_values_first: bool = False
    """The request with the smaller priority is the more important one."""
    preempts: bool = False
    """A waiting request may preempt less important running requests."""
    preemption_threshold: int = 0
    retracts_by_priority: bool = False
    first_ratio: float = 0.0
    """Initial share of their remaining outputs that running requests are expected to need."""
    least_ratio: float = 0.0
    """Share that `ratio` does not fall below."""
    ratio_decay: float = 0.0
    """Amount by which every decode step lowers the expected share, from `first_ratio` to `least_ratio`."""
    retract_steps: int = 0
    """Number of decode steps for which a retraction makes room for each remaining request."""
    most_new_tokens: int = 0
    """Largest number of tokens of an answer that admission takes into account."""
    window_tokens: int = 0
    """Number of tokens before a new token that layers with windows read; 0 if such layers have no pool."""
    window_pages: int = 0
    """Number of pages in the pool of layers with windows."""
    window_interval: int = 0
    """Number of computed tokens after which a decoding request frees window slots again."""
    host_pages: int = 0
    write_policy: int = NO_HOST
    """The write policy of the host tier."""
    copies_end: int = IN_NEXT_PASS
    """Time at which the scheduler finds that a copy has ended: `IN_NEXT_PASS`, `BY_CLOCK` or `REPORTED`."""
    store_page_s: float = 0.0
    """Seconds that copying a page to the host takes."""
    load_page_s: float = 0.0
    """Seconds that copying a page from the host takes."""
    num_layers: int = 1
    """Number of layers, which are loaded one after the other while a step computes them."""
    most_copy_rows: int = 0
    """Largest number of copy rows with which another step may begin."""
    reports: bool = False
    """Evictions, duplicates and retractions are recorded."""
    most_memory_rows: int = 0
    """Number of rows of the memory table for which there is room."""


@dataclass(slots=True, eq=False, repr=False)
class RadixState:
    """The numbers of the cache and of its scheduler that change from step to step."""

    is_collecting: bool = False
    """Pages that are freed are collected, so that all are freed in one call."""
    num_free_windows: int = 0
    """Number of free pages in the pool of windows."""
    num_cached_windows: int = 0
    """Number of window pages in the tree that no request locks."""
    num_edges: int = 0
    """Number of values of `Node.edge` that were assigned so far."""
    matched_pages: int = 0
    """Number of pages of the last match, with or without their windows."""
    host_node: int = ROOT
    """The node at which the last match ended, copies on the host included."""
    num_nodes: int = 0
    """Number of node records that were ever used."""
    first_spare: int = 0
    """The first node record that can be used again; its `parent` is the next one."""
    num_leaves: int = 0
    """Number of nodes that can be evicted now."""
    entries_end: int = 0
    """Index after the last used entry of `RadixTables.node_pages`. Entries of evicted nodes count as used."""
    entries_limit: int = 0
    """Index after the half of `RadixTables.node_pages` that is in use."""
    clock: int = 0
    """Counter from which accesses to the tree get their stamps."""
    locked_pages: int = 0
    num_free_rows: int = 0
    chunked: int = NOT_CHUNKED
    """The request that is in the middle of its prompt."""
    last_mode: int = NO_BATCH
    """Kind of the batch of the pass before."""
    last_chunked: int = NOT_CHUNKED
    num_prefills: int = 0
    """Number of requests of the last prefill that computed prompts."""
    num_ended_before: int = 0
    """Number of requests that had ended when the running batch was last filtered."""
    num_last: int = 0
    """Number of requests in the prefill of the pass before."""
    runs_last: bool = False
    """The running batch is the last prefill. SGLang counts its first decode as this prefill."""
    last_puts_out: bool = False
    """The last prefill has a request that may yield further outputs."""
    puts_out: bool = False
    """The running batch has a request that may yield outputs after the output of its prefill."""
    chosen_mode: int = NO_BATCH
    """Kind of the batch that is chosen, but not launched before the output of the batch before; `NO_BATCH` for none."""
    is_full: bool = False
    """The running batch counts as full, so that no waiting request is tried until a request leaves."""
    ratio: float = 0.0
    """Share of their remaining outputs that running requests are expected to need now."""
    is_rested: bool = True
    """The estimate of answers (`ratio`) has been reset since the last batch."""
    interval_left: int = 0
    num_refreshes: int = 0
    """Number of passes with waiting requests so far; in some of these, the prefixes of waiting requests are matched."""
    num_entered: int = 0
    """Number of times that a request has entered the queue."""
    num_prefilled: int = 0
    """Number of prefilled tokens so far, as SGLang counts them."""
    last_prefill_tokens: int = 0
    running_prefill_tokens: int = 0
    """Number of tokens of the prefill that became the running batch. SGLang counts them again in every decode."""
    num_launched: int = 0
    launched_mode: int = NO_BATCH
    """Kind of the batch that was launched last. A decode includes all running requests."""
    most_results: int = 0
    """Number of results to process before the running requests are scanned again for ends by length."""
    has_failed: bool = False
    """An admitted batch did not get enough slots. SGLang would end here."""
    total_offset: float = 0.0
    """Number of slots that running and admitted requests are expected to need in the future."""
    current_offset: float = 0.0
    """Number of slots that the requests admitted in this pass need now."""
    window_offset: int = 0
    """Number of window slots that admitted requests will need."""
    input_left: int = 0
    chunk_left: int = 0
    num_held_rows: int = 0
    """Number of requests admitted in this pass that have a row already."""
    admitted_chunked: int = NOT_CHUNKED
    """The request whose prompt is cut, among those admitted in this pass."""
    num_needs: int = -1
    """Number of used records in `RadixTables.needs`; -1 before the first candidate of a pass."""
    num_free_host: int = 0
    """Number of free pages in the host tier."""
    num_written: int = 0
    """Number of copies to the host that the scheduler has not finished."""
    num_loading: int = 0
    """Number of loads from the host that the scheduler has not finished."""
    num_doubled: int = 0
    """Number of values of `Node.doubled` that were assigned so far."""
    num_copying: int = 0
    """Number of pages on the device that are locked by copies, but not by a request."""
    next_copy: int = 0
    first_free_slot: int = NO_SLOT
    """The first free slot of host memory; the others are linked by `RadixTables.next_slot`."""
    store_free_s: float = 0.0
    """Time at which all copies to the host that were begun have ended, in seconds."""
    load_begin_s: float = 0.0
    """Time at which the loads of the newest step begin, in seconds."""
    load_free_s: float = 0.0
    """Time at which all copies from the host that were begun have ended, in seconds."""
    num_step_loads: int = 0
    """Number of pages that the step being scheduled loads."""
    awaited_s: float = 0.0
    """Time in seconds at which the copies to the host have ended for which an eviction waits."""
    num_idle_passes: int = 0
    """Number of consecutive passes, up to the last one, that launched no batch and in which nothing changed."""
    num_copy_rows: int = 0
    num_events: int = 0


@dataclass(slots=True, eq=False, repr=False)
class FreeList:
    """The free pages of a pool: a ring buffer in `RadixTables.free_pages[begin:end]`."""

    begin: int = 0
    end: int = 0
    head: int = 0
    """Index of the page that is allocated next."""
    tail: int = 0
    """Index after the last free page."""
    back: int = 0
    """Index after the last collected page; collected pages follow the free ones."""
    num_collected: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Node(Bucketed):
    """A node of the tree: consecutive pages of a prefix. It is found by the key of its first page."""

    key: int = 0
    parent: Small = 0
    owner: Small = 0
    """Index of a request whose tokens are those of the whole path; it provides the keys of the node's pages."""
    begin: Small = 0
    """Number of pages on the path before the node."""
    num_pages: Small = 0
    first_entry: Small = 0
    """Index in `RadixTables.node_pages` of the node's first page."""
    num_children: Small = 0
    locks: Small = 0
    copy_locks: Small = 0
    """Number of `locks` that belong to copies in progress; the others belong to requests."""
    hits: Small = 0
    place: Small = -1
    """Index in `RadixTables.leaves` of the node; -1 if it cannot be evicted."""
    priority: int = 0
    accessed: int = 0
    created: int = 0
    attached: int = 0
    """Stamp of the access in which the node got its parent."""
    weight: Small = 0
    """Number of waiting requests whose prefix ends in the subtree; used only while the queue is sorted."""
    first_waiting: Small = 0
    last_waiting: Small = 0
    first_child: Small = ROOT
    """The first child with waiting requests that the sort of the queue has not visited yet."""
    next_sibling: Small = ROOT
    is_spare: bool = False
    """The record is unused."""
    is_on_device: bool = True
    is_on_host: bool = False
    num_host_children: Small = 0
    """Number of children that are only on the host; `num_children` does not count these."""
    host_locks: Small = 0
    """Number of locks on the host copy of the node. Each load in progress that ends at the node holds one lock."""
    loaded_for: Small = ROOT
    """The last node of the load in progress that also loads this node; `ROOT` for none."""
    first_slot: Small = NO_SLOT
    """The slot of host memory with the node's first page; `RadixTables.next_slot` links the other slots."""
    doubled: int = 0
    """Position in the order in which nodes became double (on device and host); 0 for a node that is not double."""
    has_window: bool = False
    """The pages of the node have window slots."""
    window_locks: Small = 0
    edge: Small = 0
    """Number that identifies the node as the upper end of the windows that a request locks; 0 for none."""
    younger: Small = ROOT
    """The node whose windows were used next after those of this node. In the record of `ROOT`, the least recently used
    node.

    `older` is the opposite link.
    """
    older: Small = ROOT


@dataclass(slots=True, eq=False, repr=False)
class Holding:
    """The state of one request in the cache and in the scheduler."""

    node: Small = ROOT
    """The node at which the prefix of the request ends."""
    host_node: Small = ROOT
    """The node at which the prefix of the request ends if copies on the host count."""
    host_tokens: Small = 0
    """Number of tokens of the last match whose pages are only on the host."""
    loaded_pages: Small = 0
    """Number of pages at the end of the request's prefix that the step being scheduled loads from the host."""
    lock: Small = ROOT
    """The last node of the path that the request locks."""
    edge: Small = 0
    """Value of `Node.edge` at which the locked windows of the request's path end; 0 if the whole path is locked."""
    gone_tokens: Small = 0
    """Number of leading tokens whose window slots the request has freed."""
    branch_tokens: Small = 0
    """Number of leading tokens in the tree, if the hit is shorter because nodes lack their windows; otherwise 0."""
    num_extends: Small = 0
    """Number of prefills that have computed a part of the request since it was admitted."""
    num_decodes: Small = 0
    prefix_tokens: Small = 0
    """Number of tokens of the request before its next prefill."""
    extend_end: Small = 0
    """Number of tokens of the request up to the end of its last prefill."""
    protected_tokens: Small = 0
    """Number of leading tokens whose slots belong to the tree."""
    inserted_tokens: Small = 0
    """Number of leading tokens that were inserted into the tree so far."""
    laid_out_tokens: Small = 0
    """Number of tokens of the request when the scheduler last copied its list of tokens."""
    matched_tokens: Small = 0
    """Number of tokens that the last match found; the queue is sorted by it."""
    limit: Small = 0
    """Largest number of outputs that the request allows."""
    begin_key: int = 0
    """Key of the request's first tokens, by which waiting requests are compared; see `Demand.begins`."""
    ignores_eos: bool = False
    is_aborted: bool = False
    """The request ends with its next output."""
    middle_chunks: Small = 0
    """Number of steps in flight that compute a chunk of the prompt and yield no output."""
    launched_in: int = 0
    """Number of the last batch that prefilled the request, counted from 1."""
    entered: int = 0
    """Position in the order in which requests entered the queue."""
    entered_at: int = 0
    """Value of `RadixState.num_prefilled` when the request entered the queue."""
    rank: Small = 0
    """Position of the request's name in the order of all names, which breaks ties."""
    priority: int = 0
    is_put_back: bool = False
    """The request waits until an earlier request in the queue has computed their common prefix."""
    next_waiting: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class Launch:
    """A step in flight."""

    mode: Small = NO_BATCH
    num_seqs: Small = 0
    num_prefills: Small = 0


@dataclass(slots=True, eq=False, repr=False)
class NodeCopy:
    """A copy of the last pages of a path between device and host, in progress until the scheduler finds that it has
    ended.
    """

    number: int = 0
    """Number of the copy, in the order in which copies begin."""
    node: Small = ROOT
    """The node at which the copied pages end."""
    num_pages: Small = 0
    request: Small = 0
    """The request that loads the pages, or whose tokens are stored."""
    begun_step: Small = 0
    """The first recorded step that is scheduled in or after the pass in which the copy begins."""
    awaited_step: Small = -1
    """The recorded step that had to wait for the copy; -1 for none."""
    done_s: float = 0.0


@dataclass(slots=True, eq=False, repr=False)
class CacheEvent:
    """An event of the cache, or further pages of the previous event."""

    kind: Small = 0
    is_first: bool = False
    """The record begins an event; if False, it adds pages to the previous event."""
    subject: Small = 0
    """The retracted request, the number of slots to evict, or the first page: depends on `kind`."""
    length: Small = 0
    """Number of pages, of window slots to evict, or of the retracted request's outputs."""
    others: Small = 0
    """Number of requests in the batch that continue when a request is retracted."""


@dataclass(slots=True, eq=False, repr=False)
class Need:
    """Expected future of a request: `left` more outputs, after which the slots of its `held` tokens are free."""

    left: float = 0.0
    held: int = 0


class RadixTables(NamedTuple):
    """The records of SGLang's cache and scheduler."""

    settings: RadixArguments
    state: RadixState
    free: Records[FreeList]
    """Free lists of the pools `SLOTS` and `WINDOWS`."""
    free_pages: Numbers
    """The rings of both pools, one after the other. Window pages are numbered after the other pages."""
    node_pages: Numbers
    """The pages of all nodes, in one of two halves. When a half is full, the used entries are copied to the
    other half.
    """
    windows: Numbers
    """The window page of each page; `NO_PAGE` for none."""
    nodes: Records[Node]
    leaves: Numbers
    """Nodes that can be evicted, as a heap. The node that is evicted next is at index 0."""
    rows: Numbers
    """The pages of each row of the request table, row after row."""
    free_rows: Numbers
    """A stack of the free rows."""
    holdings: Records[Holding]
    """One record for each request."""
    last: Numbers
    """Requests in the prefill of the pass before."""
    order: Numbers
    """Requests in sorted order, while the queue is sorted or victims are chosen."""
    written: Records[NodeCopy]
    """Copies to the host in progress, in order."""
    loading: Records[NodeCopy]
    """Loads from the host in progress, in order."""
    next_slot: Numbers
    """The slot of host memory that follows each slot: in the list of a node's slots, or in that of the free slots."""
    copy_rows: Records[CopyRow]
    """Copies that were found finished in this slice of the run, if they are recorded."""
    launches: Records[Launch]
    """One record for each step that may be in flight."""
    needs: Records[Need]
    """Future needs of requests, in ascending order of `left`, used if there is no prefix cache; see `prefill_adder`."""
    events: Records[CacheEvent]
