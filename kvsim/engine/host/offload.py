"""vLLM 0.25.1's native offload: computed blocks are copied to host memory and come back as prefix hits.

After every step the blocks that it fills are stored, if the host does not hold them yet. A waiting sequence that the
GPU holds too little of is looked up on the host; what is found there is loaded into blocks of its own before it runs.
Copies take their time: each is a `Job` from the step that decides it to the step with whose output it is reported. When
that is, others say: the clock, an oracle or a recording. Everything else follows from it.

Of one group of full attention, in order of arrival.
"""

from __future__ import annotations

from kvsim.engine.arrays import Numbers
from kvsim.engine.host import host_jobs, host_pool
from kvsim.engine.host_tier import NO_HOST_BLOCK, NO_JOB, WRITING
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.memory import SKIP
from kvsim.engine.paged import groups, kv_cache, prefix_hits
from kvsim.engine.records import Sequence
from kvsim.engine.state import ABORTED, FINISHED, LOADING, Engine, table_of


@part
def find(engine: Engine, sequence: Sequence, hit_tokens: int) -> int:
    """Find tokens behind those that the GPU holds which can be loaded for a waiting sequence, or `SKIP`."""
    asked = engine.host.asked[sequence.number]
    asked.num_told = 0
    if asked.num_jobs > 0:
        return SKIP
    found = _num_tokens_to_load(engine, sequence, hit_tokens)
    _touch(engine, sequence)
    return found


@part
def begin_load(engine: Engine, sequence: Sequence, hit_tokens: int, load_tokens: int) -> bool:
    """Allocate blocks for the load of a waiting sequence, if others leave enough; return whether they do."""
    settings, state, host = engine.settings, engine.state, engine.host
    asked = host.asked[sequence.number]
    loaded = hit_tokens + load_tokens
    free = kv_cache.num_admissible(engine)
    whole = groups.num_needed_at_admission(engine, 0, sequence.num_tokens, hit_tokens, True)
    if settings.reserve_full_prompt and whole > free:
        return False
    needed = groups.num_needed_at_admission(engine, 0, loaded, hit_tokens, False)
    if needed > free - _num_reserved(engine):
        return False
    if settings.records_memory and state.num_memory_rows > host.settings.most_rows:
        host.state.is_crowded = True
        return False
    kv_cache.begin_tables(engine, sequence, hit_tokens, loaded, loaded)
    sequence.status = LOADING
    sequence.computed = loaded
    state.written += loaded
    asked.is_prefilling = True
    slot_tokens = host.settings.slot_tokens
    job = host_jobs.begin(engine, sequence, True, hit_tokens // slot_tokens, -(-loaded // slot_tokens))
    job_record = host.jobs[job]
    job_record.num_blocks = groups.num_blocks_for(engine, 0, loaded) - hit_tokens // settings.unit_tokens
    state.num_swapped_in += job_record.num_blocks
    for index in range(job_record.begin, job_record.end):
        host_pool.hold(engine, host_pool.find(engine, key_of(engine, sequence, index)))
    asked.stored = job_record.end
    _say_handed_out(engine, sequence)
    asked.num_told = 0
    return True


@part
def take_over(engine: Engine, sequence: Sequence) -> None:
    """Let others hit the blocks that a sequence has loaded; leave its last token to compute."""
    kv_cache.cache_blocks(engine, sequence, sequence.computed)
    if sequence.computed == sequence.num_tokens:
        sequence.computed -= 1
        sequence.rejected = 1  # its slot is written, and will be again


@part
def end_step(engine: Engine) -> None:
    """Note which copies a scheduled step has to wait for, and store the blocks that it fills."""
    state, host = engine.state, engine.host
    for index in range(state.num_in_batch):
        _say_handed_out(engine, engine.sequences[engine.batch[index]])
    for index in range(state.num_preempted):
        host.asked[engine.lists[index].preempted].preempted_in = state.num_scheduled
    job = host.jobs[NO_JOB].next
    while job != NO_JOB:
        if _must_wait_for(engine, job):
            host.jobs[job].flushed_in = state.num_scheduled
            if host.jobs[job].awaited_step < 0:
                host.jobs[job].awaited_step = state.num_steps
        job = host.jobs[job].next
    for index in range(state.num_in_batch):
        _store(engine, engine.sequences[engine.batch[index]])


@part
def end_job(engine: Engine, job: int) -> None:
    """End a reported copy: its target becomes readable, its source evictable."""
    host, record = engine.host, engine.host.jobs[job]
    if record.is_load:
        sequence = engine.sequences[record.sequence]
        # The first blocks of the first one may have been hits.
        size = host.settings.blocks_per_slot
        skipped = (record.end - record.begin) * size - record.num_blocks
        table = table_of(engine, sequence, 0).begin + record.begin * size
        for index in range(record.begin, record.end):
            block = host_pool.find(engine, key_of(engine, sequence, index))
            host_pool.let_go(engine, block)
            first = table + (index - record.begin) * size
            _write_down(engine, job, block, engine.entries, first + skipped, first + size)
            skipped = 0
    else:
        block = record.first_written
        while block != NO_HOST_BLOCK:
            host_pool.let_go(engine, block)
            first = host_pool.slot_of(block) * host.settings.blocks_per_slot
            _write_down(engine, job, block, host.sources, first, first + host.settings.blocks_per_slot)
            block = host.blocks[block].next_of_job
    host_jobs.end(engine, job)


@part
def _write_down(engine: Engine, job: int, block: int, units: Numbers, begin: int, end: int) -> None:
    """Add the copy of a host block to what is recorded, for each of `units[begin:end]`."""
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
    """Return the key of a full host block of a sequence: that of its last GPU block."""
    return prefix_hits.key_of(engine, sequence, 0, (index + 1) * engine.host.settings.blocks_per_slot - 1)


@part
def _num_tokens_to_load(engine: Engine, sequence: Sequence, hit_tokens: int) -> int:
    """Count the tokens behind the hits to load, in whole host blocks; `SKIP` while one is written or loaded."""
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
    # Blocks that come in already can be hit as soon as they are there, so none is loaded twice.
    return SKIP if is_read and engine.settings.prefix_caching else end * slot_tokens - hit_tokens


@part
def _touch(engine: Engine, sequence: Sequence) -> None:
    """Mark all full blocks of a sequence as used, the first most recently."""
    for index in range(sequence.num_tokens // engine.host.settings.slot_tokens - 1, -1, -1):
        host_pool.touch(engine, key_of(engine, sequence, index))


@part
def _num_reserved(engine: Engine) -> int:
    """Count the blocks that sequences with an unfinished prompt still need for the rest of it."""
    state, num_reserved = engine.state, 0
    for index in range(state.num_running):
        num_reserved += _num_missing(engine, engine.sequences[engine.running[index]])
    for index in range(state.num_skipped_again):
        num_reserved += _num_missing(engine, engine.sequences[engine.skipped[len(engine.skipped) // 2 + index]])
    for index in range(state.num_looked_at, state.num_skipped):
        num_reserved += _num_missing(engine, engine.sequences[engine.skipped[index]])
    return num_reserved


@part
def _num_missing(engine: Engine, sequence: Sequence) -> int:
    if not engine.host.asked[sequence.number].is_prefilling:
        return 0
    num_blocks = table_of(engine, sequence, 0).num_blocks
    return max(groups.num_blocks_for(engine, 0, sequence.num_tokens) - num_blocks, 0)


@part
def _say_handed_out(engine: Engine, sequence: Sequence) -> None:
    """Note the blocks that this step appended to a table; its whole table if it was admitted."""
    asked, table = engine.host.asked[sequence.number], table_of(engine, sequence, 0)
    for entry in range(table.begin + asked.num_told, table.begin + table.num_blocks):
        engine.host.handed_out[engine.entries[entry]] = engine.state.num_scheduled
    asked.num_told = table.num_blocks


@part
def _must_wait_for(engine: Engine, job: int) -> bool:
    """Tell whether this step takes blocks that a store reads: of a victim, or of a request that has ended."""
    state, host, record = engine.state, engine.host, engine.host.jobs[job]
    if record.is_load:
        return False
    if host.asked[record.sequence].preempted_in == state.num_scheduled:
        return True
    if engine.sequences[record.sequence].status not in (FINISHED, ABORTED):
        return False
    size, block = host.settings.blocks_per_slot, record.first_written
    while block != NO_HOST_BLOCK:
        first = host_pool.slot_of(block) * size
        for source in range(first, first + size):
            if host.handed_out[host.sources[source]] == state.num_scheduled:
                return True
        block = host.blocks[block].next_of_job
    return False


@part
def _store(engine: Engine, sequence: Sequence) -> None:
    """Store the blocks that the step fills and that the host does not hold, or try again with the next step."""
    state, host = engine.state, engine.host
    asked = host.asked[sequence.number]
    num_tokens = min(sequence.computed, sequence.num_tokens)
    if host.settings.prompt_only:
        num_tokens = min(num_tokens, sequence.prompt_tokens)
    begin, end = asked.stored, num_tokens // host.settings.slot_tokens
    num_new = _num_to_store(engine, sequence, begin, end)
    if num_new < 0:
        return
    asked.stored = end
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
def _num_to_store(engine: Engine, sequence: Sequence, begin: int, end: int) -> int:
    """Make room for those of the host blocks at [begin, end) that the host lacks; return how many, -1 for no room."""
    host, num_new, num_recent, num_frequent = engine.host, 0, 0, 0
    host_pool.begin_sparing(engine)
    for index in range(begin, end):
        block = host_pool.find(engine, key_of(engine, sequence, index))
        if block == NO_HOST_BLOCK:
            num_new += 1
            continue
        host_pool.spare(engine, block)
        if host.blocks[block].readers == 0:
            num_recent += host.blocks[block].stands_in == 0
            num_frequent += host.blocks[block].stands_in != 0
    return num_new if host_pool.make_room(engine, num_new, num_recent, num_frequent) else -1


@part
def _write(engine: Engine, sequence: Sequence, index: int, job: int, last: int) -> int:
    """Let a copy write a host block of a sequence, after block `last` if there is one; return the block."""
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
