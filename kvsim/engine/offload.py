"""vLLM 0.25.1's native offload: computed blocks are copied to host memory and come back as prefix hits.

After every step the blocks that it fills are stored, if the host does not hold them yet. A waiting sequence that the
GPU holds too little of is looked up on the host; what is found there is loaded into blocks of its own before it runs.
Copies take their time: each is a `Job` from the step that decides it to the step with whose output it is reported. When
that is, others say: the clock, an oracle or a recording. Everything else follows from it.

Of one group of full attention, in order of arrival.
"""

from __future__ import annotations

from kvsim.engine import groups, host_jobs, host_pool, kv_cache, prefix_hits
from kvsim.engine.compiled import part
from kvsim.engine.host_tier import NO_HOST_BLOCK, NO_JOB, WRITING
from kvsim.engine.records import NEVER, Numbers
from kvsim.engine.state import ABORTED, FINISHED, LOADING, Engine

LATER = -1
"""The answer of a lookup that has to be asked again later: a block is being written, or read by another load."""


@part
def find(engine: Engine, node: int, hit_tokens: int) -> int:
    """Find tokens behind those that the GPU holds which can be loaded for a waiting sequence, or `LATER`."""
    asked = engine.host.asked[node]
    asked.num_told = 0
    if asked.num_jobs > 0:
        return LATER
    found = _num_tokens_to_load(engine, node, hit_tokens)
    _touch(engine, node)
    return found


@part
def begin_load(engine: Engine, node: int, hit_tokens: int, load_tokens: int) -> bool:
    """Give a waiting sequence blocks for what is loaded, if there is room beside what others have begun to need."""
    settings, state, host = engine.settings[0], engine.state[0], engine.host
    sequence, asked = engine.sequences[node], host.asked[node]
    loaded = hit_tokens + load_tokens
    free = state.num_free
    if state.num_running > 0:
        free -= settings.watermark_blocks
    whole = groups.num_needed_at_admission(engine, 0, sequence.num_tokens, hit_tokens, True)
    if settings.reserve_full_prompt and whole > free:
        return False
    needed = groups.num_needed_at_admission(engine, 0, loaded, hit_tokens, False)
    if needed > free - _num_reserved(engine):
        return False
    if settings.records_memory and state.num_memory_rows > host.settings[0].most_rows:
        host.state[0].is_crowded = True
        return False
    state.num_free_places -= 1
    sequence.place = engine.lists[state.num_free_places].free_place
    sequence.num_units = 0
    kv_cache.attach_hits(engine, node, 0, hit_tokens)
    kv_cache.extend(engine, node, 0, loaded, loaded)
    sequence.cache_at = settings.cache_tokens * (hit_tokens // settings.cache_tokens + 1)
    if not settings.prefix_caching:
        sequence.cache_at = NEVER
    sequence.status = LOADING
    sequence.computed = loaded
    state.written += loaded
    asked.is_prefilling = True
    slot_tokens = host.settings[0].slot_tokens
    job = host_jobs.begin(engine, node, True, hit_tokens // slot_tokens, -(-loaded // slot_tokens))
    job_record = host.jobs[job]
    job_record.num_blocks = groups.num_blocks_for(engine, 0, loaded) - hit_tokens // settings.unit_tokens
    state.num_swapped_in += job_record.num_blocks
    for index in range(job_record.begin, job_record.end):
        host_pool.hold(engine, host_pool.find(engine, key_of(engine, node, index)))
    asked.stored = job_record.end
    _say_handed_out(engine, node)
    asked.num_told = 0
    return True


@part
def take_over(engine: Engine, node: int) -> None:
    """The blocks of a sequence were loaded: others may hit them. The last token is left to compute."""
    sequence = engine.sequences[node]
    kv_cache.cache_blocks(engine, node, sequence.computed)
    if sequence.computed == sequence.num_tokens:
        sequence.computed -= 1
        sequence.rejected = 1  # its slot is written, and will be again


@part
def end_step(engine: Engine) -> None:
    """The step is scheduled: see which copies it has to wait for, and store what it fills."""
    state, host = engine.state[0], engine.host
    for index in range(state.num_in_batch):
        _say_handed_out(engine, engine.batch[index])
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
        _store(engine, engine.batch[index])


@part
def end_job(engine: Engine, job: int) -> None:
    """A copy is reported: what it wrote can be read, what it read can be evicted."""
    host, record = engine.host, engine.host.jobs[job]
    if record.is_load:
        # The first blocks of the first one may have been hits.
        size = host.settings[0].blocks_per_slot
        skipped = (record.end - record.begin) * size - record.num_blocks
        table = groups.first_entry(engine, record.sequence, 0) + record.begin * size
        for index in range(record.begin, record.end):
            block = host_pool.find(engine, key_of(engine, record.sequence, index))
            host_pool.let_go(engine, block)
            first = table + (index - record.begin) * size
            _write_down(engine, job, block, engine.entries, first + skipped, first + size)
            skipped = 0
    else:
        block = record.first_written
        while block != NO_HOST_BLOCK:
            host_pool.let_go(engine, block)
            first = host_pool.slot_of(block) * host.settings[0].blocks_per_slot
            _write_down(engine, job, block, host.sources, first, first + host.settings[0].blocks_per_slot)
            block = host.blocks[block].next_of_job
    host_jobs.end(engine, job)


@part
def _write_down(engine: Engine, job: int, block: int, units: Numbers, begin: int, end: int) -> None:
    """Add the copy of a host block to what is recorded, for each of `units[begin:end]`."""
    if not engine.settings[0].records_memory:
        return
    host, record = engine.host, engine.host.jobs[job]
    for index in range(begin, end):
        row = host.copy_rows[host.state[0].num_copy_rows]
        host.state[0].num_copy_rows += 1
        row.copy, row.kind, row.request = record.number, int(record.is_load), record.sequence - 1
        row.begun_step, row.awaited_step = record.begun_step, record.awaited_step
        row.reported_step = engine.state[0].num_outputs
        row.address, row.slot = units[index], host_pool.slot_of(block)


@part
def key_of(engine: Engine, node: int, index: int) -> int:
    """The key of a full host block of a sequence: that of the last of its GPU blocks."""
    return prefix_hits.key_of(engine, node, 0, (index + 1) * engine.host.settings[0].blocks_per_slot - 1)


@part
def _num_tokens_to_load(engine: Engine, node: int, hit_tokens: int) -> int:
    """Tokens behind the hits, `LATER` where a block is being written, or read by another load; whole blocks only."""
    slot_tokens = engine.host.settings[0].slot_tokens
    most = engine.sequences[node].num_tokens // slot_tokens
    if most * slot_tokens - hit_tokens < slot_tokens:
        return 0
    first = end = hit_tokens // slot_tokens
    is_written = is_read = False
    while end < most:
        block = host_pool.find(engine, key_of(engine, node, end))
        if block == NO_HOST_BLOCK:
            break
        is_written |= engine.host.blocks[block].readers == WRITING
        is_read |= engine.host.blocks[block].readers > 0
        end += 1
    if end == first:
        return 0
    if is_written:
        return LATER
    if end * slot_tokens - hit_tokens < slot_tokens:
        return 0
    # Blocks that come in already can be hit as soon as they are there, so none is loaded twice.
    return LATER if is_read and engine.settings[0].prefix_caching else end * slot_tokens - hit_tokens


@part
def _touch(engine: Engine, node: int) -> None:
    """All full blocks of a sequence are used, the first most recently."""
    for index in range(engine.sequences[node].num_tokens // engine.host.settings[0].slot_tokens - 1, -1, -1):
        host_pool.touch(engine, key_of(engine, node, index))


@part
def _num_reserved(engine: Engine) -> int:
    """Blocks that sequences with a part of their prompt, or none of it computed, still need for the rest."""
    host, num_reserved = engine.host, 0
    for index in range(engine.state[0].num_running):
        num_reserved += _num_missing(engine, engine.running[index])
    for index in range(host.state[0].num_kept):
        num_reserved += _num_missing(engine, host.set_aside[index])
    for index in range(host.state[0].num_looked_at, host.state[0].num_set_aside):
        num_reserved += _num_missing(engine, host.set_aside[index])
    return num_reserved


@part
def _num_missing(engine: Engine, node: int) -> int:
    if not engine.host.asked[node].is_prefilling:
        return 0
    num_blocks = engine.tables[groups.table_of(engine, node, 0)].num_blocks
    return max(groups.num_blocks_for(engine, 0, engine.sequences[node].num_tokens) - num_blocks, 0)


@part
def _say_handed_out(engine: Engine, node: int) -> None:
    """Note which blocks of a table were handed out by the step under way: all of them where it was admitted."""
    asked, begin = engine.host.asked[node], groups.first_entry(engine, node, 0)
    num_blocks = engine.tables[groups.table_of(engine, node, 0)].num_blocks
    for entry in range(begin + asked.num_told, begin + num_blocks):
        engine.host.handed_out[engine.entries[entry]] = engine.state[0].num_scheduled
    asked.num_told = num_blocks


@part
def _must_wait_for(engine: Engine, job: int) -> bool:
    """Whether the step under way takes blocks that a store reads: those of a victim, or of a request that has ended."""
    state, host, record = engine.state[0], engine.host, engine.host.jobs[job]
    if record.is_load:
        return False
    if host.asked[record.sequence].preempted_in == state.num_scheduled:
        return True
    if engine.sequences[record.sequence].status not in (FINISHED, ABORTED):
        return False
    size, block = host.settings[0].blocks_per_slot, record.first_written
    while block != NO_HOST_BLOCK:
        first = host_pool.slot_of(block) * size
        for source in range(first, first + size):
            if host.handed_out[host.sources[source]] == state.num_scheduled:
                return True
        block = host.blocks[block].next_of_job
    return False


@part
def _store(engine: Engine, node: int) -> None:
    """Store the blocks that the step fills and that the host does not hold, or try again with the next step."""
    state, host = engine.state[0], engine.host
    sequence, asked = engine.sequences[node], host.asked[node]
    num_tokens = min(sequence.computed, sequence.num_tokens)
    if host.settings[0].prompt_only:
        num_tokens = min(num_tokens, sequence.prompt_tokens)
    begin, end = asked.stored, num_tokens // host.settings[0].slot_tokens
    num_new = _num_to_store(engine, node, begin, end)
    if num_new < 0:
        return
    asked.stored = end
    if num_new == 0:
        return
    job = host_jobs.begin(engine, node, False, begin, end)
    host.jobs[job].num_blocks = num_new * host.settings[0].blocks_per_slot
    state.num_swapped_out += host.jobs[job].num_blocks
    last = NO_HOST_BLOCK
    for index in range(begin, end):
        key = key_of(engine, node, index)
        if host_pool.find(engine, key) == NO_HOST_BLOCK:
            last = _write(engine, node, index, job, last)
    _touch(engine, node)


@part
def _num_to_store(engine: Engine, node: int, begin: int, end: int) -> int:
    """Make room for those of the host blocks at [begin, end) that the host lacks; return how many, -1 for no room."""
    host, num_new, num_recent, num_frequent = engine.host, 0, 0, 0
    host_pool.begin_sparing(engine)
    for index in range(begin, end):
        block = host_pool.find(engine, key_of(engine, node, index))
        if block == NO_HOST_BLOCK:
            num_new += 1
            continue
        host_pool.spare(engine, block)
        if host.blocks[block].readers == 0:
            num_recent += host.blocks[block].stands_in == 0
            num_frequent += host.blocks[block].stands_in != 0
    return num_new if host_pool.make_room(engine, num_new, num_recent, num_frequent) else -1


@part
def _write(engine: Engine, node: int, index: int, job: int, last: int) -> int:
    """Let a copy write a host block of a sequence, after block `last` if there is one; return the block."""
    host, size = engine.host, engine.host.settings[0].blocks_per_slot
    block = host_pool.store(engine, key_of(engine, node, index))
    entry, source = groups.first_entry(engine, node, 0) + index * size, host_pool.slot_of(block) * size
    for offset in range(size):
        host.sources[source + offset] = engine.entries[entry + offset]
    host.blocks[block].next_of_job = NO_HOST_BLOCK
    if last == NO_HOST_BLOCK:
        host.jobs[job].first_written = block
    else:
        host.blocks[last].next_of_job = block
    return block
