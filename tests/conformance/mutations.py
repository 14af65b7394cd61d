"""Every rule of the engine, broken once: a piece of source text and what to put in its place."""

# ruff: noqa: E501  source text is quoted as it stands

from __future__ import annotations

from dataclasses import dataclass

_POOL = "engine/block_pool.py"
_PREFIXES = "engine/prefix_cache.py"
_CACHE = "engine/kv_cache.py"
_SCHEDULER = "engine/scheduler.py"
_QUEUE = "engine/waiting_queue.py"
_PIPELINE = "policies/pipeline.py"
_CLOCK = "engine/clock.py"
_HITS = "engine/prefix_hits.py"
_GROUPS = "engine/groups.py"
_QUIET = "engine/fast_forward.py"
_KEYS = "engine/prefix_keys.py"
_INITIALIZATION = "engine/initialization.py"
_MEMORY = "engine/memory.py"
_EXTENTS = "engine/extents.py"
_RESERVATIONS = "engine/reservations.py"
_HOST = "engine/host_swap.py"
_SPECULATION = "engine/speculation.py"
_STATIC = "engine/static_batch.py"
_TOTALS = "engine/totals.py"
_TIERED = "engine/tiered.py"
_RUNNING = "engine/scheduler.py"
_OFFLOAD = "engine/offload.py"
_SLOTS = "engine/host_pool.py"
_MOMENTS = "engine/moments.py"
_CONFORMANCE = "conformance/oracle.py"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One broken rule. `old` stands exactly once in `file`, a path inside the package."""

    rule: str
    """What the engine does instead."""
    file: str
    old: str
    new: str
    also: tuple[tuple[str, str], ...] = ()
    """More such pairs in the same file."""

    def apply(self, source: str) -> str:
        """The source with the rule broken.

        Raises:
            ValueError: the text to replace does not stand there exactly once; the source has changed.
        """
        for old, new in ((self.old, self.new), *self.also):
            if source.count(old) != 1:
                raise ValueError(f"{self.rule}: {old!r} stands {source.count(old)} times in {self.file}, not once")
            source = source.replace(old, new)
        return source


MUTATIONS = (
    # The block pool.
    Mutation(
        "block 0 is handed out",
        _INITIALIZATION,
        "    queue = ids if initial_free is None else np.array([0, *initial_free])\n    following, preceding = np.zeros_like(ids), np.zeros_like(ids)\n",
        "    queue = ids if initial_free is None else np.array([0, *initial_free])\n    queue = np.append(queue, 0)\n    following, preceding = np.zeros_like(ids), np.zeros_like(ids)\n",
    ),
    Mutation(
        "freed blocks without a prefix queue up behind those that are free already",
        _POOL,
        "linked_list.push_front(blocks, block)",
        "linked_list.push_back(blocks, block)",
    ),
    Mutation(
        "freed blocks without a prefix enter the queue in reverse",
        _POOL,
        "    for index in range(begin, end):\n        block = entries[index]\n        if block != NULL_BLOCK and",
        "    for index in range(end - 1, begin - 1, -1):\n        block = entries[index]\n        if block != NULL_BLOCK and",
    ),
    Mutation(
        "freed prefixes go before those freed earlier",
        _POOL,
        "linked_list.push_back(blocks, block)",
        "linked_list.push_front(blocks, block)",
    ),
    Mutation(
        "the prefix freed last is evicted first",
        _POOL,
        "        state.num_cached -= 1\n        prefix_cache.evict(engine, block)\n",
        "        linked_list.push_front(engine.blocks, block)\n        engine.blocks[block].refs = 0\n        block = engine.blocks[NULL_BLOCK].previous\n        linked_list.remove(engine.blocks, block)\n        engine.blocks[block].refs = 1\n        state.num_cached -= 1\n        prefix_cache.evict(engine, block)\n",
    ),
    Mutation(
        "a prefix is forgotten when it is freed, not when its block is taken",
        _POOL,
        "            linked_list.push_back(blocks, block)\n            state.num_free += 1\n            state.num_cached += 1\n",
        "            prefix_cache.evict(engine, block)\n",
    ),
    Mutation(
        "a taken block keeps its prefix",
        _POOL,
        "        prefix_cache.evict(engine, block)\n",
        "",
    ),
    Mutation(
        "of equal blocks the one cached last is found",
        _PREFIXES,
        "    block = engine.buckets[_bucket_of(engine, key)].first\n    while block != NO_BLOCK and engine.blocks[block].key != key:\n        block = engine.blocks[block].next_alike\n",
        "    block = engine.buckets[_bucket_of(engine, key)].last\n    while block != NO_BLOCK and engine.blocks[block].key != key:\n        block = engine.blocks[block].previous_alike\n",
    ),
    Mutation(
        "equal blocks replace each other in the prefix cache",
        _PREFIXES,
        "    engine.blocks[block].key = key\n",
        "    if find(engine, key) != NO_BLOCK:\n        if engine.blocks[find(engine, key)].refs == 0:\n            engine.state.num_cached -= 1\n        evict(engine, find(engine, key))\n    engine.blocks[block].key = key\n",
    ),
    Mutation(
        "a hit stays in the free queue",
        _POOL,
        "        linked_list.remove(engine.blocks, block)\n        state.num_free -= 1\n        state.num_cached -= 1\n    engine.blocks[block].refs += 1\n",
        "        pass\n    engine.blocks[block].refs += 1\n",
    ),
    # The tables.
    Mutation(
        "a table is freed from its beginning",
        _POOL,
        "    for index in range(end - 1, begin - 1, -1):\n        block = entries[index]\n        if block == NULL_BLOCK:",
        "    for index in range(begin, end):\n        block = entries[index]\n        if block == NULL_BLOCK:",
    ),
    Mutation(
        "all of a prompt can be hit, its last token included",
        _HITS,
        "    limit = sequence.num_tokens - 1\n",
        "    limit = sequence.num_tokens\n",
    ),
    Mutation(
        "a resumed request hits only its prompt",
        _HITS,
        "    limit = sequence.num_tokens - 1\n",
        "    limit = sequence.prompt_tokens - 1\n",
    ),
    Mutation(
        "the whole prompt need not fit at admission",
        _CACHE,
        "if settings.reserve_full_prompt and",
        "if False and",
    ),
    Mutation(
        "the whole prompt must fit although it was not asked for",
        _CACHE,
        "if settings.reserve_full_prompt and",
        "if",
    ),
    Mutation(
        "hits are not credited to the prompt that must fit",
        _CACHE,
        "num_needed_at_admission(engine, group, sequence.num_tokens, hit_tokens, True)",
        "num_blocks_for(engine, group, sequence.num_tokens)",
    ),
    Mutation(
        "a resumed request must fit with its prompt only",
        _CACHE,
        "num_needed_at_admission(engine, group, sequence.num_tokens, hit_tokens, True)",
        "num_needed_at_admission(engine, group, sequence.prompt_tokens, hit_tokens, True)",
    ),
    Mutation(
        "the watermark is ignored",
        _CACHE,
        "(engine.settings.watermark_blocks if state.num_running > 0 else 0)",
        "0",
    ),
    Mutation(
        "the watermark holds although nothing runs",
        _CACHE,
        "(engine.settings.watermark_blocks if state.num_running > 0 else 0)",
        "engine.settings.watermark_blocks",
    ),
    Mutation(
        "the watermark is a share of the usable blocks",
        _INITIALIZATION,
        "policy.cache.watermark * (num_units + 1)",
        "policy.cache.watermark * num_units",
    ),
    Mutation(
        "the watermark holds for running requests",
        _CACHE,
        "    if needed > engine.state.num_free:",
        "    if needed > engine.state.num_free - settings.watermark_blocks:",
    ),
    Mutation(
        "free hits are counted as free blocks",
        _GROUPS,
        "            needed += 1  # it is free now and will not be\n",
        "            pass\n",
    ),
    Mutation(
        "new blocks are taken before hits are held",
        _CACHE,
        "    for group in range(settings.num_groups):\n        attach_hits(engine, sequence, group, hit_tokens)\n    for group in range(settings.num_groups):\n        extend(engine, sequence, group, num_tokens, num_slots)\n",
        "    needed = -(-num_slots // settings.unit_tokens) - hit_tokens // settings.unit_tokens\n    aside = len(engine.entries) - needed\n    for index in range(needed):\n        engine.entries[aside + index] = block_pool.allocate(engine)[0]\n    for group in range(settings.num_groups):\n        attach_hits(engine, sequence, group, hit_tokens)\n    block_pool.free(engine, aside, aside + needed)\n    for group in range(settings.num_groups):\n        extend(engine, sequence, group, num_tokens, num_slots)\n",
    ),
    Mutation(
        "a prompt is cached when its first output is known, not when it is scheduled",
        _CACHE,
        "    state.written += computed * settings.token_slots\n    cache_blocks(engine, sequence, min(total, sequence.num_tokens))\n",
        "    state.written += computed * settings.token_slots\n",
    ),
    Mutation(
        "blocks that a running request fills are not cached when they are scheduled",
        _CACHE,
        "    for group in range(settings.num_groups):\n        extend(engine, sequence, group, total, slots)\n    cache_blocks(engine, sequence, min(total, sequence.num_tokens))\n    find_room",
        "    for group in range(settings.num_groups):\n        extend(engine, sequence, group, total, slots)\n    find_room",
    ),
    Mutation(
        "tokens whose values are not known are cached too",
        _CACHE,
        "    for group in range(settings.num_groups):\n        extend(engine, sequence, group, total, slots)\n    cache_blocks(engine, sequence, min(total, sequence.num_tokens))\n    find_room",
        "    for group in range(settings.num_groups):\n        extend(engine, sequence, group, total, slots)\n    cache_blocks(engine, sequence, total)\n    find_room",
    ),
    Mutation(
        "blocks of outputs are never cached",
        _CACHE,
        "    settings = engine.settings\n    if num_tokens < sequence.cache_at:\n        return\n",
        "    settings = engine.settings\n    num_tokens = min(num_tokens, sequence.prompt_tokens)\n    if num_tokens < sequence.cache_at:\n        return\n",
    ),
    Mutation(
        "a prefix cache that is off still works",
        _INITIALIZATION,
        '"prefix_caching": policy.cache.enable_prefix_caching',
        '"prefix_caching": True',
    ),
    Mutation(
        "equal blocks are equal whatever stands before them",
        _KEYS,
        '("tokens", before,',
        '("tokens", -1,',
    ),
    Mutation(
        "a request never hits what another one has",
        _HITS,
        "    if number < sequence.num_keys:\n",
        "    if False:\n",
    ),
    # Running requests.
    Mutation(
        "the request admitted first is preempted",
        _SCHEDULER,
        "    chosen = state.num_running - 1\n",
        "    chosen = 0\n",
    ),
    Mutation(
        "of the least important requests the earliest is preempted",
        _SCHEDULER,
        "            if waiting_queue.is_more_important(engine, one, other):\n",
        "            if one.priority < other.priority or (one.priority == other.priority and waiting_queue.is_more_important(engine, other, one)):\n",
    ),
    Mutation(
        "the most important request is preempted",
        _SCHEDULER,
        "            if waiting_queue.is_more_important(engine, one, other):\n",
        "            if one.priority > other.priority or (one.priority == other.priority and waiting_queue.is_more_important(engine, one, other)):\n",
    ),
    Mutation(
        "a victim's tokens are not given back to the budget",
        _SCHEDULER,
        "                budget += tokens\n",
        "",
    ),
    Mutation(
        "the place in the list is not corrected for a victim scheduled before",
        _SCHEDULER,
        "                index -= 1\n",
        "",
    ),
    Mutation(
        "the place in the list is corrected for a victim that was skipped",
        _SCHEDULER,
        "            if tokens >= 0:\n                budget += tokens\n                index -= 1\n",
        "            if tokens >= 0:\n                budget += tokens\n                index -= 1\n            elif victim != node and (index == state.num_running + 1 or engine.running[index - 1] != node):\n                index -= 1\n",
    ),
    Mutation(
        "the last token is scheduled again while it is under way",
        _SCHEDULER,
        "if placeholders > 0 and sequence.computed + 2",
        "if False and sequence.computed + 2",
    ),
    Mutation(
        "the last token but one counts as the last",
        _SCHEDULER,
        "sequence.computed + 2 -",
        "sequence.computed + 3 -",
    ),
    Mutation(
        "the threshold for long prompts is ignored while they run",
        _SCHEDULER,
        "        num_tokens = settings.long_prefill_token_threshold\n    num_tokens = min(num_tokens, budget, settings",
        "        pass\n    num_tokens = min(num_tokens, budget, settings",
    ),
    Mutation(
        "the threshold for long prompts is ignored at admission",
        _RUNNING,
        "        num_tokens = settings.long_prefill_token_threshold\n    if not settings.chunked_prefill",
        "        pass\n    if not settings.chunked_prefill",
    ),
    Mutation(
        "a running request may fill the longest sequence",
        _SCHEDULER,
        "settings.max_model_len - 1 - sequence.computed",
        "settings.max_model_len + 1 - sequence.computed",
    ),
    Mutation(
        "a running request with nothing to compute ends the round",
        _SCHEDULER,
        "        if num_tokens <= 0:\n            continue\n",
        "        if num_tokens <= 0:\n            return budget\n",
    ),
    Mutation(
        "a request whose last token is under way ends the round",
        _SCHEDULER,
        "        if num_tokens <= 0:\n            continue\n",
        "        if num_tokens <= 0:\n            if sequence.placeholders > 0 and sequence.computed + 2 - sequence.placeholders >= sequence.limit_tokens:\n                return budget\n            continue\n",
    ),
    # Admission.
    Mutation(
        "requests are admitted in a step that preempts",
        _SCHEDULER,
        "    if engine.state.num_preempted == 0:\n        budget = admit",
        "    if True:\n        budget = admit",
    ),
    Mutation(
        "one request more than allowed runs",
        _SCHEDULER,
        "state.num_running < settings.max_num_seqs and",
        "state.num_running <= settings.max_num_seqs and",
    ),
    Mutation(
        "prompts are cut although chunked prefill is off",
        _RUNNING,
        "if not settings.chunked_prefill and num_tokens > budget:",
        "if False:",
    ),
    Mutation(
        "admission forgets what it scheduled",
        _SCHEDULER,
        "        _run(engine, sequence, computed, num_tokens)\n        budget -= num_tokens\n",
        "        _run(engine, sequence, computed, num_tokens)\n",
    ),
    Mutation(
        "an admitted request runs before the others",
        _RUNNING,
        "    engine.running[state.num_running] = sequence.number\n    engine.quiet_until[state.num_running] = 0\n    state.num_running += 1\n",
        "    for place in range(state.num_running, 0, -1):\n        engine.running[place] = engine.running[place - 1]\n        engine.quiet_until[place] = engine.quiet_until[place - 1]\n    engine.running[0] = sequence.number\n    engine.quiet_until[0] = 0\n    state.num_running += 1\n",
    ),
    Mutation(
        "a request that does not fit is overtaken by the one behind it",
        _SCHEDULER,
        "        if num_tokens == 0 or not memory.admit(engine, sequence, computed, num_tokens):\n            break\n",
        "        if num_tokens == 0 or not memory.admit(engine, sequence, computed, num_tokens):\n            if state.num_queued < 2 or state.num_skipped > 0:\n                break\n            waiting_queue.remove(engine, sequence)\n            other = waiting_queue.peek(engine)\n            waiting_queue.push_preempted(engine, sequence)\n            sequence, computed = other, 0\n            num_tokens, state.hit_tokens = min(sequence.num_tokens, budget), 0\n            if not memory.admit(engine, sequence, 0, num_tokens):\n                break\n",
    ),
    Mutation(
        "hits are computed again",
        _RUNNING,
        "    sequence.computed = computed\n",
        "    sequence.computed = 0\n",
    ),
    # Queues.
    Mutation(
        "a preempted request goes to the end of the queue",
        _QUEUE,
        "linked_list.push_front(engine.sequences, sequence.number)",
        "linked_list.push_back(engine.sequences, sequence.number)",
    ),
    Mutation(
        "of equally important requests the latest is admitted first",
        _QUEUE,
        "return engine.times[one.number].arrival_s < engine.times[other.number].arrival_s",
        "return engine.times[one.number].arrival_s > engine.times[other.number].arrival_s",
    ),
    Mutation(
        "larger numbers are more important",
        _QUEUE,
        "return one.priority < other.priority",
        "return one.priority > other.priority",
    ),
    # Preemption, outputs, endings.
    Mutation(
        "a preempted request keeps what it had computed",
        _SCHEDULER,
        "    sequence.computed = sequence.drafts = 0\n",
        "    sequence.drafts = 0\n",
    ),
    Mutation(
        "a preempted request forgets the output under way",
        _SCHEDULER,
        "    sequence.computed = sequence.drafts = 0\n",
        "    sequence.computed = sequence.drafts = sequence.placeholders = 0\n",
    ),
    Mutation(
        "a preempted request does not get the output under way",
        _SCHEDULER,
        "        if sequence.status in (FINISHED, ABORTED):\n",
        "        if sequence.status != RUNNING:\n",
    ),
    Mutation(
        "an ended request gets the output under way",
        _SCHEDULER,
        "        if sequence.status in (FINISHED, ABORTED):\n",
        "        if False:\n",
    ),
    Mutation(
        "outputs are not cached when they arrive",
        _SCHEDULER,
        "            engine.memory.cache(engine, sequence, known)\n",
        "            pass\n",
    ),
    Mutation(
        "outputs under way are cached with those that arrive",
        _SCHEDULER,
        "        known = sequence.computed - sequence.placeholders\n",
        "        known = sequence.computed\n",
    ),
    Mutation(
        "a sequence may grow beyond the longest",
        _CONFORMANCE,
        "output=np.minimum(np.minimum(stop, limit), np.maximum(longest - prompt, 1)).astype(np.int64)",
        "output=np.minimum(stop, limit).astype(np.int64)",
    ),
    Mutation(
        "blocks of requests that end together are freed in reverse",
        _SCHEDULER,
        "    for index in range(first, first + engine.launched[launched].num_emitting):\n        sequence = engine.sequences[engine.emitting[index]]\n",
        "    for place in range(engine.launched[launched].num_emitting):\n        index = first + engine.launched[launched].num_emitting - 1 - place\n        sequence = engine.sequences[engine.emitting[index]]\n",
    ),
    Mutation(
        "a request that ends holds its blocks until the next step is scheduled",
        _SCHEDULER,
        "            engine.memory.free(engine, sequence)\n            if sequence.status == PREEMPTED:\n",
        "            if sequence.status == PREEMPTED:\n",
        also=(
            (
                "    budget = serve_running(engine, engine.settings.max_num_batched_tokens)\n",
                "    for place in range(engine.state.num_ended):\n        engine.memory.free(engine, engine.sequences[engine.lines[place].ended])\n    budget = serve_running(engine, engine.settings.max_num_batched_tokens)\n",
            ),
        ),
    ),
    Mutation(
        "an aborted request keeps its blocks",
        _SCHEDULER,
        "    engine.memory.free(engine, sequence)\n    end(engine, sequence, ABORTED, engine.state.host_s)\n",
        "    end(engine, sequence, ABORTED, engine.state.host_s)\n",
    ),
    Mutation(
        "the engine does not call once more after an abort",
        _SCHEDULER,
        "    end(engine, sequence, ABORTED, engine.state.host_s)\n    engine.state.unflushed = True\n",
        "    end(engine, sequence, ABORTED, engine.state.host_s)\n",
    ),
    Mutation(
        "the engine does not call once more after an ending",
        _SCHEDULER,
        "        _drop_ended(engine)\n        state.unflushed = True\n",
        "        _drop_ended(engine)\n",
    ),
    # The loop.
    Mutation(
        "every output is awaited",
        _CLOCK,
        "state.num_in_flight == engine.settings.most_in_flight",
        "True",
    ),
    Mutation(
        "a step is scheduled ahead although outputs should be awaited",
        _PIPELINE,
        "        if async_scheduling and (self.v2_model_runner or size == 1):\n",
        "        if True:\n",
    ),
    Mutation(
        "runner V1 has a step more in flight than stages",
        _PIPELINE,
        "async_scheduling and (self.v2_model_runner or size == 1)",
        "async_scheduling",
    ),
    Mutation(
        "a sequence decodes at every step of a pipeline",
        _PIPELINE,
        "self.pipeline_parallel_size if async_scheduling and self.v2_model_runner else 1",
        "1",
    ),
    Mutation(
        "a sequence decodes a step later than the last stage has its token",
        _SCHEDULER,
        "if engine.state.num_scheduled < sequence.decodes_from:",
        "if engine.state.num_scheduled <= sequence.decodes_from and settings.decode_interval > 1:",
    ),
    Mutation(
        "a chunk of a prompt yields an output while one is under way",
        _SCHEDULER,
        "sequence.computed >= sequence.num_tokens + sequence.placeholders:",
        "sequence.computed >= sequence.num_tokens:",
    ),
    Mutation(
        "a token under way when its sequence is resumed is not answered again",
        _SCHEDULER,
        "elif sequence.computed >= sequence.handed_tokens:",
        "elif sequence.computed > sequence.num_tokens:",
    ),
    Mutation(
        "a stage begins a step before it has what the stage before hands over",
        _CLOCK,
        "begin_s = max(ready_s + passing_s(engine.step_times[index], shape.num_tokens), free_s)",
        "begin_s = free_s",
    ),
    Mutation(
        "the first stage does not wait for the tokens that the last has sampled",
        _CLOCK,
        "                ready_s = max(ready_s, engine.launched[_fed_back(engine)].done_s)\n",
        "                pass\n",
    ),
    Mutation(
        "a step takes as long as its first stage",
        _CLOCK,
        "    for index in range(len(engine.stages)):\n",
        "    for index in range(1):\n",
    ),
    Mutation(
        "an empty last call is left in the pipeline until the next",
        _CLOCK,
        "state.awaiting = is_full or not (state.num_in_batch > 0 or scheduler.has_work(engine))",
        "state.awaiting = is_full",
    ),
    Mutation(
        "an output is awaited after every empty step",
        _CLOCK,
        "or not (state.num_in_batch > 0 or scheduler.has_work(engine))",
        "or not state.num_in_batch > 0",
    ),
    # Contiguous memory.
    Mutation(
        "best fit takes the highest of equal holes",
        _EXTENTS,
        "holes[index].length < holes[best].length",
        "holes[index].length <= holes[best].length",
    ),
    Mutation(
        "first fit is best fit",
        _EXTENTS,
        "    if fit in (BEST_FIT, BUDDY):\n",
        "    if fit != NEXT_FIT:\n",
    ),
    Mutation(
        "next fit begins where the last extent began",
        _EXTENTS,
        "    engine.state.rover = address + length\n",
        "    engine.state.rover = address\n",
    ),
    Mutation(
        "next fit does not go on inside a hole",
        _EXTENTS,
        "    if index > 0 and holes[index - 1].address + holes[index - 1].length > rover:\n        index -= 1\n",
        "",
    ),
    Mutation(
        "buddies merge with any neighbour",
        _EXTENTS,
        "other = address + length if address % (2 * length) == 0 else address - length",
        "other = address + length",
    ),
    Mutation(
        "buddies grow where they are not aligned",
        _EXTENTS,
        "    if engine.settings.fit == BUDDY and address % longer != 0:\n        return False\n",
        "",
    ),
    Mutation(
        "freed slots are not merged with the hole behind them",
        _EXTENTS,
        "    if after < state.num_holes and holes[after].address == address + length:\n        length += holes[after].length\n        _delete(engine, after)\n",
        "",
    ),
    Mutation(
        "a full reservation doubles past the longest sequence",
        _RESERVATIONS,
        "    wanted = min(_next_power_of_two(needed - 1), settings.max_model_len)\n",
        "    wanted = _next_power_of_two(needed - 1)\n",
    ),
    Mutation(
        "a full reservation that may not move moves",
        _RESERVATIONS,
        "    if not settings.moves or not _make_hole",
        "    if not _make_hole",
    ),
    Mutation(
        "a move copies nothing",
        _RESERVATIONS,
        "    state.num_copied_slots += sequence.computed\n    _vacate(engine, sequence)\n    _settle(engine, sequence, new, longer, wanted)",
        "    _vacate(engine, sequence)\n    _settle(engine, sequence, new, longer, wanted)",
    ),
    Mutation(
        "compaction begins with the shortest buddies",
        _RESERVATIONS,
        "is_before = one.num_units > other.num_units",
        "is_before = one.num_units < other.num_units",
    ),
    Mutation(
        "compaction puts the highest extents first",
        _RESERVATIONS,
        "is_before = one.place < other.place",
        "is_before = one.place > other.place",
    ),
    Mutation(
        "compaction in vain forgets the holes",
        _RESERVATIONS,
        "        state.num_holes, state.num_free, state.rover = num_holes, num_free, rover\n        return False",
        "        state.num_holes, state.num_free, state.rover = num_holes - 1, num_free, rover\n        return False",
    ),
    Mutation(
        "a batch at request level stays open",
        _RESERVATIONS,
        "    state.batch_is_open = False",
        "    state.batch_is_open = True",
    ),
    # Host memory, drafts, stops that come late.
    Mutation(
        "sequences are copied to a host that has no room",
        _HOST,
        "0 < num_blocks <= state.num_free_host_blocks",
        "0 < num_blocks",
    ),
    Mutation(
        "all blocks come back over the link, those still cached included",
        _HOST,
        "_num_blocks(engine, sequence.parked_tokens) - num_hits",
        "_num_blocks(engine, sequence.parked_tokens)",
    ),
    Mutation(
        "copies take no time",
        _HOST,
        "(state.num_swapped_out + state.num_swapped_in) * engine.settings.host_block_s",
        "0.0 * engine.settings.host_block_s",
    ),
    Mutation(
        "an aborted request stays on the host",
        _CACHE,
        "            host_swap.forget(engine, sequence)\n",
        "            pass\n",
    ),
    Mutation(
        "a wrong draft is accepted",
        _SPECULATION,
        "min(1 + min(sequence.drafts, engine.right_drafts[first_draft]), left)",
        "min(1 + min(sequence.drafts, engine.right_drafts[first_draft] + 1), left)",
    ),
    Mutation(
        "drafts are guessed beyond the end of an answer",
        _SPECULATION,
        "engine.right_drafts[first_draft]), left)",
        "engine.right_drafts[first_draft]), left + 1)",
    ),
    Mutation(
        "drafts have no slots",
        _INITIALIZATION,
        '        "lookahead_tokens": policy.cache.num_speculative_tokens,\n',
        '        "lookahead_tokens": min(policy.cache.num_speculative_tokens, 1),\n',
    ),
    Mutation(
        "the slot of a late stop counts as useful although it stays empty",
        _TOTALS,
        "            unsure.slot_s += unsure.slots * time_s - unsure.since_s\n",
        "",
    ),
    Mutation(
        "the slot of a late stop never counts as useful",
        _TOTALS,
        "        engine.unsure[first + index].slot_s = -math.inf\n",
        "        pass\n",
    ),
    # Static batches.
    Mutation(
        "a batch has a row more than allowed",
        _STATIC,
        "batch.num_rows == settings.batch_size or",
        "batch.num_rows > settings.batch_size or",
    ),
    Mutation(
        "the memory guard counts the column that is never written",
        _STATIC,
        "(wider + longer - 1) > settings.num_units",
        "(wider + longer) > settings.num_units",
    ),
    Mutation(
        "a batch does not wait for company",
        _STATIC,
        "settings.batch_size and state.host_s < _due_s(engine)",
        "settings.batch_size and False",
    ),
    Mutation(
        "batches of alike prompts leave the oldest out",
        _STATIC,
        "    width = waiting_queue.peek(engine).prompt_tokens\n",
        "    width = waiting_queue.peek(engine).prompt_tokens + 1\n",
    ),
    Mutation(
        "rows that have ended count as live",
        _STATIC,
        "        if new_tokens > batch.step:\n",
        "        if True:\n",
    ),
    Mutation(
        "a batch that runs out of memory is complete",
        _STATIC,
        "is_complete = batch.num_steps == batch.longest_answer",
        "is_complete = True",
    ),
    # Sequences that are left alone.
    Mutation(
        "a sequence is left alone for a step too long, to the end of its room",
        _QUIET,
        "min(sequence.room_tokens, ",
        "min(sequence.room_tokens + 1, ",
    ),
    Mutation(
        "a sequence is left alone while it fills a block that others could hit",
        _QUIET,
        "sequence.cache_at - 1,",
        "sequence.cache_at,",
    ),
    Mutation(
        "a sequence is left alone while it computes its last token",
        _QUIET,
        "sequence.end_tokens - 2)",
        "sequence.end_tokens - 1)",
    ),
    Mutation(
        "the last token of a prompt counts as a decode",
        _QUIET,
        "computed >= sequence.prompt_tokens and ",
        "",
    ),
    Mutation(
        "what was computed while a sequence was left alone is forgotten",
        _QUIET,
        "    sequence.computed += launched - since\n",
        "    pass\n",
    ),
    Mutation(
        "outputs under way are known already when a sequence is looked at again",
        _QUIET,
        "    processed = max(launched - state.num_in_flight, since)\n",
        "    processed = launched\n",
    ),
    Mutation(
        "a victim that was left alone loses what it had before",
        _SCHEDULER,
        "    fast_forward.catch_up(engine, chosen, state.num_scheduled - 1)\n    sequence =",
        "    sequence =",
    ),
    Mutation(
        "the context of sequences left alone does not grow",
        _SCHEDULER,
        "state.quiet_tokens + state.num_quiet * state.num_scheduled",
        "state.quiet_tokens + state.num_quiet * (state.num_scheduled - 1)",
    ),
    Mutation(
        "what a sequence computes while it is left alone is not written down",
        _QUIET,
        "        journal.prolong(engine, sequence, launched - since)\n",
        "        pass\n",
    ),
    # KV-cache groups.
    Mutation(
        "a window reads one token more",
        _GROUPS,
        "        return max(0, computed - window + 1)\n    if kind == CHUNKED_LOCAL",
        "        return max(0, computed - window)\n    if kind == CHUNKED_LOCAL",
    ),
    Mutation(
        "a chunk is never left",
        _GROUPS,
        "        return computed // window * window\n",
        "        return 0\n",
    ),
    Mutation(
        "a state is given back as soon as the next is computed",
        _GROUPS,
        "    if kind == MAMBA:\n        return max(0, computed - 1)\n",
        "    if kind == MAMBA:\n        return max(0, computed)\n",
    ),
    Mutation(
        "free hits of groups are counted as free blocks",
        _GROUPS,
        "            needed += 1  # it is free now and will not be\n",
        "            pass\n",
    ),
    Mutation(
        "a state can be read in the step that caches it",
        _GROUPS,
        "        if engine.blocks[block].key == key and engine.blocks[block].cached_in == engine.state.num_scheduled:",
        "        if False:",
    ),
    Mutation(
        "what a window leaves is given back first block first",
        "engine/block_pool.py",
        "    for index in range(begin, end):\n        block = entries[index]\n        if block != NULL_BLOCK and blocks[block].refs == 0 and blocks[block].key == NO_KEY:",
        "    for index in range(end - 1, begin - 1, -1):\n        block = entries[index]\n        if block != NULL_BLOCK and blocks[block].refs == 0 and blocks[block].key == NO_KEY:",
    ),
    Mutation(
        "every block of a window is cached",
        _GROUPS,
        "    if record.kind == SLIDING_WINDOW:\n        run =",
        "    if False:\n        run =",
    ),
    Mutation(
        "steps of a prompt end anywhere, whatever states are kept",
        _GROUPS,
        "    elif computed < last < computed + num_tokens:\n        num_tokens = last - computed\n",
        "",
    ),
    Mutation(
        "a step does not end where some groups hold a prefix and others do not",
        _GROUPS,
        "    if block_size <= uncached < num_tokens:\n",
        "    if False:\n",
    ),
    Mutation(
        "a window is hit by fewer blocks than it needs",
        _HITS,
        "    needed, run = -(-(record.window - 1) // record.block_size), 0\n",
        "    needed, run = 1, 0\n",
    ),
    Mutation(
        "a block serves every group",
        _HITS,
        "    return key * engine.settings.num_groups + group\n",
        "    return key\n",
    ),
    Mutation(
        "tables are given back in the opposite order of groups",
        _CACHE,
        "    settings, state = engine.settings, engine.state\n    for group in range(settings.num_groups):\n        table = table_of(engine, sequence, group)\n        begin =",
        "    settings, state = engine.settings, engine.state\n    for group in range(settings.num_groups - 1, -1, -1):\n        table = table_of(engine, sequence, group)\n        begin =",
    ),
    Mutation(
        "windows let go only when there is room",
        _CACHE,
        "    for group in range(settings.num_groups):\n        groups.let_go(engine, sequence, group, computed)\n    leader =",
        "    leader =",
    ),
    Mutation(
        "a whole prompt asks for more than a window ever holds",
        "engine/groups.py",
        "    if capped and record.kind in (SLIDING_WINDOW, CHUNKED_LOCAL):\n",
        "    if False:\n",
    ),
    Mutation(
        "a whole prompt asks for more than a chunk ever holds",
        "engine/groups.py",
        "record.kind in (SLIDING_WINDOW, CHUNKED_LOCAL):\n        required",
        "record.kind == SLIDING_WINDOW:\n        required",
    ),
    Mutation(
        "aligned states ask for every block at admission",
        "engine/groups.py",
        "needed = min(required - record.num_hits, 1)",
        "needed = required - record.num_hits",
    ),
    Mutation(
        "an aligned state grows by all blocks",
        "engine/groups.py",
        "return min(-(-num_tokens // engine.groups[group].block_size) - num_blocks, 1)",
        "return max(-(-num_tokens // engine.groups[group].block_size) - num_blocks, 0)",
    ),
    Mutation(
        "only the newest equal state is looked at in a step",
        "engine/groups.py",
        "        block = engine.blocks[block].next_alike\n    return False",
        "        return False\n    return False",
    ),
    Mutation(
        "the state before the last stays held",
        "engine/groups.py",
        "        if last >= 0 and",
        "        if False and",
    ),
    Mutation(
        "a window keeps one block more for hits",
        "engine/groups.py",
        "        run = -(-(record.window - 1) // block_size)\n        segment",
        "        run = -(-record.window // block_size)\n        segment",
    ),
    Mutation(
        "the end of a prompt is not kept for hits",
        "engine/groups.py",
        "        return retention != NEVER and prompt_end - run <= index < prompt_end\n",
        "        return False\n",
    ),
    Mutation(
        "retention of a window is ignored",
        "engine/groups.py",
        "segment = aligned if retention == NEVER else retention",
        "segment = aligned",
    ),
    Mutation(
        "every state is kept",
        "engine/groups.py",
        "    if record.kind == MAMBA and retention != NEVER:\n",
        "    if False:\n",
    ),
    Mutation(
        "the last state of a prompt is not kept",
        "engine/groups.py",
        " or index == prompt_end - 1\n",
        "\n",
    ),
    Mutation(
        "aligned steps end with the prompt alone",
        "engine/groups.py",
        "sequence.num_tokens // block_size * block_size",
        "sequence.prompt_tokens // block_size * block_size",
    ),
    Mutation(
        "two kinds are looked up until they agree",
        "engine/prefix_hits.py",
        "        if num_kinds == 2 and first_is_full:\n            break\n",
        "",
    ),
    Mutation(
        "full attention is looked up again until all agree",
        "engine/prefix_hits.py",
        "if engine.groups[leader].kind == FULL and rounds > 0:",
        "if engine.groups[leader].kind == FULL and rounds > 1_000:",
    ),
    Mutation(
        "hits of full attention are not cut",
        "engine/prefix_hits.py",
        "            engine.groups[group].num_hits = hit_tokens // engine.groups[group].block_size\n",
        "            pass\n",
    ),
    Mutation(
        "full hits end anywhere",
        "engine/prefix_hits.py",
        "        num_hits += 1\n    return _aligned(engine, leader, num_hits)",
        "        num_hits += 1\n    return num_hits",
    ),
    Mutation(
        "a window's row ends anywhere",
        "engine/prefix_hits.py",
        "        if run == 0 and (index + 1) * record.block_size % engine.settings.cache_tokens != 0:\n            continue\n",
        "",
    ),
    Mutation(
        "a chunk is hit from its beginning only",
        "engine/prefix_hits.py",
        "    while num_hits < limit // record.block_size and _is_cached(engine, sequence, leader, num_hits):\n        num_hits += 1\n    return num_hits\n\n\n@part\ndef _find_state",
        "    return num_hits\n\n\n@part\ndef _find_state",
    ),
    Mutation(
        "one group of those alike is looked up",
        "engine/prefix_hits.py",
        "        engine.entries[first_hit(engine, group) + index] = block\n        group = engine.groups[group].next_alike\n    return True",
        "        engine.entries[first_hit(engine, group) + index] = block\n        group = NO_GROUP\n    return True",
    ),
    Mutation(
        "a step ends where no group holds a prefix either",
        "engine/prefix_hits.py",
        "    state.num_uncached = longest - hit_tokens\n",
        "    state.num_uncached = limit - hit_tokens\n",
    ),
    Mutation(
        "an aligned state's first table owns nothing",
        "engine/kv_cache.py",
        "            table.owns_state = True\n",
        "",
    ),
    # The second tier.
    Mutation(
        "a victim's blocks are free at once, although a step under way may write to them",
        _TIERED,
        "if asked.last_step <= host.state.num_steps_processed or engine.settings.most_in_flight == 1:",
        "if True:",
    ),
    Mutation(
        "blocks are free when the step before the last is processed",
        _TIERED,
        "host.state.num_steps_begun, sequence.computed",
        "host.state.num_steps_begun - 1, sequence.computed",
    ),
    Mutation(
        "an empty step counts among those that must be processed",
        _TIERED,
        "    if not engine.launched[launched].computes:\n        return\n",
        "",
    ),
    Mutation(
        "who was set aside comes behind the queue",
        _QUEUE,
        "    if state.num_looked_at < state.num_skipped:\n        return engine.sequences[engine.skipped[state.num_looked_at]]\n",
        "    if state.num_queued == 0 and state.num_looked_at < state.num_skipped:\n        return engine.sequences[engine.skipped[state.num_looked_at]]\n",
        also=(
            (
                "    if engine.state.num_looked_at < engine.state.num_skipped:\n        engine.state.num_looked_at += 1",
                "    if sequence.is_skipped:\n        engine.state.num_looked_at += 1",
            ),
        ),
    ),
    Mutation(
        "an aborted load gives back its blocks at once",
        _TIERED,
        "if sequence.num_units == 0 or (sequence.status == LOADING and asked.num_jobs > 0):",
        "if sequence.num_units == 0:",
    ),
    Mutation(
        "a sequence with unfinished copies is looked up all the same",
        _OFFLOAD,
        "    if asked.num_jobs > 0:\n        return SKIP\n    found",
        "    found",
    ),
    Mutation(
        "a lookup leaves the order of evictions alone",
        _OFFLOAD,
        "    _touch(engine, sequence)\n    return found",
        "    return found",
    ),
    Mutation(
        "a store leaves the order of evictions alone",
        _OFFLOAD,
        "            last = _write(engine, sequence, index, job, last)\n    _touch(engine, sequence)\n",
        "            last = _write(engine, sequence, index, job, last)\n",
    ),
    Mutation(
        "a load reserves nothing for prompts under way",
        _OFFLOAD,
        "if needed > free - _num_reserved(engine):",
        "if needed > free:",
    ),
    Mutation(
        "less than a host block is loaded",
        _OFFLOAD,
        "    if end * slot_tokens - hit_tokens < slot_tokens:\n        return 0\n",
        "",
    ),
    Mutation(
        "a block that another sequence loads is loaded again",
        _OFFLOAD,
        "return SKIP if is_read and engine.settings.prefix_caching else",
        "return",
    ),
    Mutation(
        "what is being written is loaded",
        _OFFLOAD,
        "    if is_written:\n        return SKIP\n",
        "",
    ),
    Mutation(
        "a whole prompt that was loaded leaves nothing to compute first",
        _OFFLOAD,
        "if sequence.computed == sequence.num_tokens:",
        "if sequence.computed >= 0:",
    ),
    Mutation(
        "blocks that were loaded cannot be hit by others",
        _OFFLOAD,
        "    kv_cache.cache_blocks(engine, sequence, sequence.computed)\n",
        "",
    ),
    Mutation(
        "stores of a victim are not waited for",
        _OFFLOAD,
        "    if host.asked[record.sequence].preempted_in == state.num_scheduled:\n        return True\n",
        "",
    ),
    Mutation(
        "stores of a request that has ended are not waited for",
        _OFFLOAD,
        "if host.handed_out[host.sources[source]] == state.num_scheduled:",
        "if False:",
    ),
    Mutation(
        "blocks of generated tokens are always stored",
        _OFFLOAD,
        "    if host.settings.prompt_only:\n        num_tokens = min(num_tokens, sequence.prompt_tokens)\n",
        "",
    ),
    Mutation(
        "what was stored once is never stored again",
        _OFFLOAD,
        "    asked.stored = end\n    if num_new",
        "    asked.stored = max(asked.stored, end)\n    if num_new",
    ),
    Mutation(
        "a slot that was given back is taken before one that was never used",
        _SLOTS,
        "    if state.num_used < tier.settings.num_slots:\n        block",
        "    if state.last_given_back == 0:\n        block",
    ),
    Mutation(
        "the most recently used block of the host is evicted",
        _SLOTS,
        "    if record.readers == 0:\n        if tier.settings.adaptive:\n            tier.lists[record.stands_in].num_idle += 1\n        else:\n            _enter(engine, RECENT, block)",
        "    if record.readers == 0:\n        if tier.settings.adaptive:\n            tier.lists[record.stands_in].num_idle += 1\n        else:\n            _enter(engine, RECENT, block)\n            linked_list.remove(tier.blocks, block)\n            linked_list.insert_before(tier.blocks, tier.blocks[RECENT].next, block)",
    ),
    Mutation(
        "blocks that the caller has asked for are evicted for it",
        _SLOTS,
        "tier.blocks[block].readers != 0 or tier.blocks[block].spared == state.num_sparings",
        "tier.blocks[block].readers != 0",
    ),
    Mutation(
        "ARC takes a block that is being written for used twice",
        _SLOTS,
        "elif place == RECENT and record.readers != WRITING:",
        "elif place == RECENT:",
    ),
    Mutation(
        "ARC never learns from its ghosts",
        _SLOTS,
        "            _adapt(engine, place)\n",
        "            pass\n",
    ),
    Mutation(
        "who leaves while preempted is not noticed",
        _MOMENTS,
        "if status in (WAITING, PREEMPTED):",
        "if status == WAITING:",
    ),
    Mutation(
        "a call that scheduled nothing stays in flight",
        _MOMENTS,
        "    state.num_in_flight -= 1\n",
        "",
    ),
    Mutation(
        "who was preempted does not find what it has computed",
        _SCHEDULER,
        "    engine.memory.expect_return(engine, sequence)\n",
        "",
    ),
    Mutation(
        "who was preempted does not find what its windows had left behind",
        _GROUPS,
        "        prefix_cache.offer(engine, engine.entries[first + index])  # the sequence may be preempted yet\n",
        "",
    ),
    Mutation(
        "a block that was offered can still be found when it is taken",
        _PREFIXES,
        "    if engine.blocks[block].next_alike != _NOT_OFFERED:\n        bucket.remove(engine.blocks, engine.buckets[_bucket_of(engine, engine.blocks[block].key)], block)\n",
        "",
    ),
    Mutation(
        "a block is offered twice",
        _PREFIXES,
        "    if key != NO_KEY and engine.blocks[block].next_alike == _NOT_OFFERED:",
        "    if key != NO_KEY:",
    ),
)
