"""The decisions of vLLM 0.25.1's native offload: which blocks are stored in host memory, and which are loaded back.

After every step, the blocks that it fills are stored, unless the host has them already. The prefix of a waiting
sequence is looked up on the GPU first and then on the host. Blocks that only the host has are loaded into new GPU
blocks before the sequence runs. Each copy is a `Job`, from the step that decides it to the step that reports its end.
The clock (`copies`) decides which step reports it, or the caller if it follows a real scheduler.

Models have one KV-cache group, of full attention.
"""

from __future__ import annotations

from kvsim.engine.arrays import Numbers
from kvsim.engine.host import host_jobs, host_pool
from kvsim.engine.host_tier import NO_HOST_BLOCK, NO_JOB, RECENT, WRITING
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP
from kvsim.engine.paged import external_kv, groups, prefix_hits
from kvsim.engine.records import Sequence
from kvsim.engine.state import ABORTED, FINISHED, Engine, table_of


@part
def find(engine: Engine, sequence: Sequence, hit_tokens: int) -> int:
    """Return the number of tokens to load from the host for a waiting sequence, after its `hit_tokens` hits on the GPU.
    Return `SKIP` if the sequence has to wait for a copy.
    """
    host_sequence = engine.host.sequences[sequence.number]
    host_sequence.num_stamped = 0  # a waiting sequence has no table: its next one is recorded from the beginning
    if host_sequence.num_jobs > 0:
        return SKIP
    load_tokens = _num_tokens_to_load(engine, sequence, hit_tokens)
    _touch(engine, sequence)
    return load_tokens


@part
def begin_load(engine: Engine, sequence: Sequence, hit_tokens: int, load_tokens: int) -> bool:
    """Allocate GPU blocks for the load of a waiting sequence, and begin the load. Return False, and change nothing, if
    the load does not fit; see `external_kv.begin_load`.
    """
    host, loaded = engine.host, hit_tokens + load_tokens
    host_sequence = host.sequences[sequence.number]
    if not external_kv.begin_load(engine, sequence, hit_tokens, loaded):
        return False
    slot_tokens = host.settings.slot_tokens
    job = host_jobs.begin(engine, sequence, True, hit_tokens // slot_tokens, -(-loaded // slot_tokens))
    job_record = host.jobs[job]
    job_record.num_blocks = groups.num_blocks_for(engine, 0, loaded) - hit_tokens // engine.settings.unit_tokens
    engine.state.num_swapped_in += job_record.num_blocks
    for index in range(job_record.begin, job_record.end):
        host_pool.hold(engine, host_pool.find(engine, key_of(engine, sequence, index)))
    host_sequence.stored = job_record.end
    _record_allocations(engine, sequence)
    host_sequence.num_stamped = 0  # its whole table also counts as allocated in the step in which it runs first
    return True


@part
def end_step(engine: Engine) -> None:
    """Mark the stores for which the step just scheduled has to wait, and begin stores of the blocks that it fills."""
    state, host = engine.state, engine.host
    for index in range(state.num_in_batch):
        _record_allocations(engine, engine.sequences[engine.batch[index]])
    for index in range(state.num_preempted):
        host.sequences[engine.lists[index].preempted].preempted_in = state.num_scheduled
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        if _must_wait_for(engine, job):
            host.jobs[job].awaited_in = state.num_scheduled
            if host.jobs[job].awaited_step < 0:
                host.jobs[job].awaited_step = state.num_steps
        job = host.jobs[job].next
    for index in range(state.num_in_batch):
        _store(engine, engine.sequences[engine.batch[index]])


@part
def end_job(engine: Engine, job: int) -> None:
    """End a copy whose end was reported. Host blocks that a store has written can be read from now on. Host blocks that
    a load has read may be evicted again if no other load reads them.
    """
    host, record = engine.host, engine.host.jobs[job]
    if record.is_load:
        sequence = engine.sequences[record.sequence]
        # The GPU may have held the first GPU blocks of the first host block, so these were not copied.
        size = host.settings.blocks_per_slot
        skipped = (record.end - record.begin) * size - record.num_blocks
        table = table_of(engine, sequence, 0).begin + record.begin * size
        for index in range(record.begin, record.end):
            block = host_pool.find(engine, key_of(engine, sequence, index))
            host_pool.release(engine, block)
            first = table + (index - record.begin) * size
            _record_copies(engine, job, block, engine.entries, first + skipped, first + size)
            skipped = 0  # later host blocks are copied whole
    else:
        block = record.first_written
        while block != NO_HOST_BLOCK:
            host_pool.release(engine, block)
            first = host_pool.slot_of(block) * host.settings.blocks_per_slot
            _record_copies(engine, job, block, host.sources, first, first + host.settings.blocks_per_slot)
            block = host.blocks[block].next_of_job
    host_jobs.end(engine, job)


@part
def _record_copies(engine: Engine, job: int, block: int, units: Numbers, begin: int, end: int) -> None:
    """Write a row of the recording for each GPU block in `units[begin:end]`, which is copied to or from host block
    `block`.
    """
    if not engine.settings.records_memory:
        return
    host, record = engine.host, engine.host.jobs[job]
    for index in range(begin, end):
        row = host.copy_rows[host.state.num_copy_rows]
        host.state.num_copy_rows += 1
        row.copy, row.kind, row.request = record.number, int(record.is_load), record.sequence - 1
        row.begun_step, row.awaited_step = record.begun_step, record.awaited_step
        row.reported_step = engine.state.num_outputs
        row.address, row.slot = units[index], host_pool.slot_of(block)


@part
def key_of(engine: Engine, sequence: Sequence, index: int) -> int:
    """Return the key of the full host block at `index` among those of a sequence: the key of its last GPU block."""
    return prefix_hits.key_of(engine, sequence, 0, (index + 1) * engine.host.settings.blocks_per_slot - 1)


@part
def _num_tokens_to_load(engine: Engine, sequence: Sequence, hit_tokens: int) -> int:
    """Return the number of tokens to load after the first `hit_tokens`, up to the end of a host block; 0 if they are
    fewer than a host block has. Return `SKIP` while a store writes one of the host blocks or, with prefix caching,
    while another load reads one.
    """
    slot_tokens = engine.host.settings.slot_tokens
    most = sequence.num_tokens // slot_tokens
    if most * slot_tokens - hit_tokens < slot_tokens:
        return 0
    first = end = hit_tokens // slot_tokens
    is_written = is_read = False
    while end < most:
        block = host_pool.find(engine, key_of(engine, sequence, end))
        if block == NO_HOST_BLOCK:
            break
        is_written |= engine.host.blocks[block].readers == WRITING
        is_read |= engine.host.blocks[block].readers > 0
        end += 1
    if end == first:
        return 0
    if is_written:
        return SKIP
    if end * slot_tokens - hit_tokens < slot_tokens:
        return 0
    # With prefix caching, blocks that another request is loading can be hit after the load, so the sequence waits.
    return SKIP if is_read and engine.settings.prefix_caching else end * slot_tokens - hit_tokens


@part
def _touch(engine: Engine, sequence: Sequence) -> None:
    """Mark the host blocks that hold a sequence's full blocks as recently used, the last one first."""
    for index in range(sequence.num_tokens // engine.host.settings.slot_tokens - 1, -1, -1):
        host_pool.touch(engine, key_of(engine, sequence, index))


@part
def _record_allocations(engine: Engine, sequence: Sequence) -> None:
    """Write the number of the current scheduler call to `HostTier.allocated_in`, for the GPU blocks at the end of a
    sequence's table for which it was not written yet.
    """
    host_sequence, table = engine.host.sequences[sequence.number], table_of(engine, sequence, 0)
    for entry in range(table.begin + host_sequence.num_stamped, table.begin + table.num_blocks):
        engine.host.allocated_in[engine.entries[entry]] = engine.state.num_scheduled
    host_sequence.num_stamped = table.num_blocks


@part
def _must_wait_for(engine: Engine, job: int) -> bool:
    """Tell whether the step just scheduled has to wait for the end of copy `job`. It has to if `job` is a store of a
    sequence that it preempts. It also has to if `job` is a store of an ended sequence, and it allocates one of the GPU
    blocks that this store reads.
    """
    state, host, record = engine.state, engine.host, engine.host.jobs[job]
    if record.is_load:
        return False
    if host.sequences[record.sequence].preempted_in == state.num_scheduled:
        return True
    if engine.sequences[record.sequence].status not in (FINISHED, ABORTED):
        return False
    size, block = host.settings.blocks_per_slot, record.first_written
    while block != NO_HOST_BLOCK:
        first = host_pool.slot_of(block) * size
        for source in range(first, first + size):
            if host.allocated_in[host.sources[source]] == state.num_scheduled:
                return True
        block = host.blocks[block].next_of_job
    return False


@part
def _store(engine: Engine, sequence: Sequence) -> None:
    """Begin a store of the full host blocks of a sequence that were not stored yet and that the host lacks. If the host
    has too little room, do nothing; a later step tries again.
    """
    state, host = engine.state, engine.host
    host_sequence = host.sequences[sequence.number]
    num_tokens = min(sequence.computed, sequence.num_tokens)
    if host.settings.prompt_only:
        num_tokens = min(num_tokens, sequence.prompt_tokens)
    begin, end = host_sequence.stored, num_tokens // host.settings.slot_tokens
    num_new = _make_room_for(engine, sequence, begin, end)
    if num_new < 0:  # no room
        return
    host_sequence.stored = end
    if num_new == 0:
        return
    job = host_jobs.begin(engine, sequence, False, begin, end)
    host.jobs[job].num_blocks = num_new * host.settings.blocks_per_slot
    state.num_swapped_out += host.jobs[job].num_blocks
    last = NO_HOST_BLOCK
    for index in range(begin, end):
        key = key_of(engine, sequence, index)
        if host_pool.find(engine, key) == NO_HOST_BLOCK:
            last = _write(engine, sequence, index, job, last)
    _touch(engine, sequence)


@part
def _make_room_for(engine: Engine, sequence: Sequence, begin: int, end: int) -> int:
    """Make room for those of a sequence's host blocks [begin, end) that the host lacks. Return their number, or -1 if
    too few host blocks can be evicted. None of [begin, end) is evicted.
    """
    host, num_new, num_recent, num_frequent = engine.host, 0, 0, 0
    host_pool.begin_sparing(engine)
    for index in range(begin, end):
        block = host_pool.find(engine, key_of(engine, sequence, index))
        if block == NO_HOST_BLOCK:
            num_new += 1
            continue
        host_pool.spare(engine, block)
        if host.blocks[block].readers == 0:
            num_recent += host.blocks[block].in_list == RECENT
            num_frequent += host.blocks[block].in_list != RECENT
    return num_new if host_pool.make_room(engine, num_new, num_recent, num_frequent) else -1


@part
def _write(engine: Engine, sequence: Sequence, index: int, job: int, last: int) -> int:
    """Allocate a host block for a sequence's block at `index` (counted in host blocks), and add it to store `job`.
    Return the host block. `last` is the host block added to the store before it, or `NO_HOST_BLOCK` if it is the first.
    """
    host, size = engine.host, engine.host.settings.blocks_per_slot
    block = host_pool.store(engine, key_of(engine, sequence, index))
    entry, source = table_of(engine, sequence, 0).begin + index * size, host_pool.slot_of(block) * size
    for offset in range(size):
        host.sources[source + offset] = engine.entries[entry + offset]
    host.blocks[block].next_of_job = NO_HOST_BLOCK
    if last == NO_HOST_BLOCK:
        host.jobs[job].first_written = block
    else:
        host.blocks[last].next_of_job = block
    return block
