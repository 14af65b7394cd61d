"""Every rule of the paged policy, broken once: a piece of source text and what to put in its place."""

# ruff: noqa: E501  source text is quoted as it stands

from __future__ import annotations

from dataclasses import dataclass

_BLOCKS = "memory/blocks.py"
_PAGED = "scheduling/paged.py"
_CONTINUOUS = "scheduling/continuous.py"
_QUEUES = "scheduling/queues.py"
_ENGINE = "scheduling/engine.py"
_KEYS = "scheduling/keys.py"
_SEQUENCE = "scheduling/sequence.py"


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
    Mutation("block 0 is handed out", _BLOCKS, "range(1, num_blocks)", "range(num_blocks)"),
    Mutation(
        "freed blocks without a prefix queue up behind those that are free already",
        _BLOCKS,
        "self._unkeyed.extend(reversed(unkeyed))",
        "self._unkeyed[:0] = reversed(unkeyed)",
    ),
    Mutation(
        "freed blocks without a prefix enter the queue in reverse",
        _BLOCKS,
        "self._unkeyed.extend(reversed(unkeyed))",
        "self._unkeyed.extend(unkeyed)",
    ),
    Mutation(
        "freed prefixes go before those freed earlier",
        _BLOCKS,
        "self._keyed[block] = None\n",
        "self._keyed[block] = None\n                    self._keyed.move_to_end(block, last=False)\n",
    ),
    Mutation("the prefix freed last is evicted first", _BLOCKS, "popitem(last=False)", "popitem(last=True)"),
    Mutation(
        "a prefix is forgotten when it is freed, not when its block is taken",
        _BLOCKS,
        "self._keyed[block] = None\n",
        "self._forget(block)\n                    unkeyed.append(block)\n",
    ),
    Mutation("a taken block keeps its prefix", _BLOCKS, "            self._forget(block)\n", ""),
    Mutation(
        "of equal blocks the one registered last is found", _BLOCKS, "next(iter(holders))", "next(reversed(holders))"
    ),
    Mutation(
        "equal blocks replace each other in the prefix cache",
        _BLOCKS,
        "self._holders.setdefault(key, {})[block] = None",
        "self._key_of.__setitem__(self.find(key) or 0, None)\n        self._holders[key] = {block: None}",
    ),
    Mutation(
        "a hit stays in the free queue",
        _BLOCKS,
        "                del self._keyed[block]\n",
        "                pass\n",
    ),
    # The cache manager.
    Mutation("a table is freed from its beginning", _PAGED, "sequence.blocks[::-1]", "sequence.blocks"),
    Mutation(
        "all of a prompt can be hit, its last token included",
        _PAGED,
        "(sequence.num_tokens - 1) // self.block_size",
        "sequence.num_tokens // self.block_size",
    ),
    Mutation(
        "a resumed request hits only its prompt",
        _PAGED,
        "(sequence.num_tokens - 1) // self.block_size",
        "(sequence.prompt_tokens - 1) // self.block_size",
    ),
    Mutation("the whole prompt need not fit at admission", _PAGED, "if self._reserve_full_prompt and", "if False and"),
    Mutation(
        "the whole prompt must fit although it was not asked for", _PAGED, "if self._reserve_full_prompt and", "if"
    ),
    Mutation(
        "hits are not credited to the prompt that must fit",
        _PAGED,
        "self._missing(sequence.num_tokens, len(hits)) > free",
        "self._missing(sequence.num_tokens, 0) > free",
    ),
    Mutation(
        "a resumed request must fit with its prompt only",
        _PAGED,
        "self._missing(sequence.num_tokens, len(hits)) > free",
        "self._missing(sequence.prompt_tokens, len(hits)) > free",
    ),
    Mutation("the watermark is ignored", _PAGED, "(self._watermark_blocks if others_running else 0)", "0"),
    Mutation(
        "the watermark holds although nothing runs",
        _PAGED,
        "(self._watermark_blocks if others_running else 0)",
        "self._watermark_blocks",
    ),
    Mutation(
        "the watermark is a share of the usable blocks",
        _PAGED,
        "watermark * pool.num_blocks",
        "watermark * pool.num_usable",
    ),
    Mutation(
        "the watermark holds for running requests",
        _PAGED,
        "if needed > self.pool.num_free:",
        "if needed > self.pool.num_free - self._watermark_blocks:",
    ),
    Mutation(
        "free hits are counted as free blocks",
        _PAGED,
        "        free -= sum(self.pool.refs(block) == 0 for block in hits)\n",
        "",
    ),
    Mutation(
        "new blocks are taken before hits are held",
        _PAGED,
        "            self.pool.touch(hits)\n            sequence.blocks.extend(hits)\n",
        "            taken, _ = self.pool.take(needed)\n            self.pool.touch(hits)\n"
        "            sequence.blocks.extend([*hits, *taken])\n            needed = 0\n",
    ),
    Mutation(
        "a prompt is registered when its first output is known, not when it is scheduled",
        _PAGED,
        "        self.commit(sequence, min(self.tokens_in(hits) + num_tokens, sequence.num_tokens))\n",
        "",
    ),
    Mutation(
        "blocks that a running request fills are not registered when they are scheduled",
        _PAGED,
        "        self.commit(sequence, min(total, sequence.num_tokens))\n",
        "",
    ),
    Mutation(
        "tokens whose values are not known are registered too", _PAGED, "min(total, sequence.num_tokens)", "total"
    ),
    Mutation(
        "blocks of outputs are never registered",
        _PAGED,
        "full_blocks = num_tokens // self.block_size",
        "full_blocks = min(num_tokens, sequence.prompt_tokens) // self.block_size",
    ),
    Mutation(
        "a prefix cache that is off still works",
        _PAGED,
        "self._caching = settings.enable_prefix_caching",
        "self._caching = True",
    ),
    Mutation("equal blocks are equal whatever stands before them", _KEYS, '("tokens", before,', '("tokens", -1,'),
    Mutation(
        "a request never hits what another one has",
        _SEQUENCE,
        "if block < len(self.prompt_keys):",
        "if False:",
    ),
    # Running requests.
    Mutation(
        "the request admitted first is preempted", _CONTINUOUS, "return self.running[-1]", "return self.running[0]"
    ),
    Mutation(
        "of the least important requests the earliest is preempted",
        _CONTINUOUS,
        "(sequence.priority, sequence.arrival)",
        "(sequence.priority, -sequence.arrival)",
    ),
    Mutation(
        "the most important request is preempted",
        _CONTINUOUS,
        "(sequence.priority, sequence.arrival)",
        "(-sequence.priority, sequence.arrival)",
    ),
    Mutation(
        "a victim's tokens are not given back to the budget",
        _CONTINUOUS,
        "budget += tokens.pop(victim)",
        "tokens.pop(victim)",
    ),
    Mutation(
        "the place in the list is not corrected for a victim scheduled before",
        _CONTINUOUS,
        "                    index -= 1\n",
        "",
    ),
    Mutation(
        "the place in the list is corrected for a victim that was skipped",
        _CONTINUOUS,
        "                running.remove(victim)\n",
        "                index -= running.index(victim) < index and victim not in tokens\n                running.remove(victim)\n",
    ),
    Mutation(
        "the last token is scheduled again while it is under way",
        _CONTINUOUS,
        "if placeholders and sequence.computed + 2",
        "if False and sequence.computed + 2",
    ),
    Mutation(
        "the last token but one counts as the last", _CONTINUOUS, "sequence.computed + 2 -", "sequence.computed + 3 -"
    ),
    Mutation(
        "the threshold for long prompts is ignored while they run",
        _CONTINUOUS,
        "            if 0 < threshold < num_tokens:\n                num_tokens = threshold\n            num_tokens = min(num_tokens, budget, longest",
        "            num_tokens = min(num_tokens, budget, longest",
    ),
    Mutation(
        "the threshold for long prompts is ignored at admission",
        _CONTINUOUS,
        "            if 0 < threshold < num_tokens:\n                num_tokens = threshold\n            if not settings.enable_chunked_prefill",
        "            if not settings.enable_chunked_prefill",
    ),
    Mutation(
        "a running request may fill the longest sequence",
        _CONTINUOUS,
        "longest = self.settings.max_model_len - 1",
        "longest = self.settings.max_model_len + 1",
    ),
    Mutation(
        "a running request with nothing to compute ends the round",
        _CONTINUOUS,
        "            if num_tokens <= 0:\n                index += 1\n                continue\n",
        "            if num_tokens <= 0:\n                return budget\n",
    ),
    Mutation(
        "a request whose last token is under way ends the round",
        _CONTINUOUS,
        "                index += 1  # its last token is under way already\n                continue\n",
        "                return budget\n",
    ),
    # Admission.
    Mutation("requests are admitted in a step that preempts", _CONTINUOUS, "if not preempted:", "if True:"),
    Mutation(
        "one request more than allowed runs",
        _CONTINUOUS,
        "len(self.running) < settings.max_num_seqs",
        "len(self.running) <= settings.max_num_seqs",
    ),
    Mutation(
        "prompts are cut although chunked prefill is off",
        _CONTINUOUS,
        "if not settings.enable_chunked_prefill and num_tokens > budget:",
        "if False:",
    ),
    Mutation(
        "admission forgets what it scheduled",
        _CONTINUOUS,
        "            tokens[sequence] = num_tokens\n            budget -= num_tokens\n\n    def _choose",
        "            tokens[sequence] = num_tokens\n\n    def _choose",
    ),
    Mutation(
        "an admitted request runs before the others",
        _CONTINUOUS,
        "self.running.append(sequence)",
        "self.running.insert(0, sequence)",
    ),
    Mutation(
        "a request that does not fit is overtaken by the one behind it",
        _CONTINUOUS,
        "others_running=bool(self.running)):\n                return\n",
        "others_running=bool(self.running)):\n                if len(self.waiting) < 2:\n                    return\n"
        "                head, sequence = self.waiting.pop(), self.waiting.pop()\n                self.waiting.push_preempted(head)\n"
        "                self.waiting.push_preempted(sequence)\n                num_tokens = min(sequence.num_tokens, budget)\n"
        "                if not memory.admit(sequence, num_tokens, [], others_running=bool(self.running)):\n"
        "                    self.waiting.pop()\n                    self.waiting.pop()\n"
        "                    self.waiting.push_preempted(sequence)\n                    self.waiting.push_preempted(head)\n"
        "                    return\n                computed = 0\n",
    ),
    Mutation(
        "hits are computed again",
        _CONTINUOUS,
        "            sequence.computed = computed\n",
        "            sequence.computed = 0\n",
    ),
    # Queues.
    Mutation("a preempted request goes to the end of the queue", _QUEUES, "self._line.appendleft", "self._line.append"),
    Mutation(
        "of equally important requests the latest is admitted first",
        _QUEUES,
        "(sequence.priority, sequence.arrival, sequence.row, sequence)",
        "(sequence.priority, -sequence.arrival, sequence.row, sequence)",
    ),
    Mutation(
        "larger numbers are more important",
        _QUEUES,
        "(sequence.priority, sequence.arrival, sequence.row, sequence)",
        "(-sequence.priority, sequence.arrival, sequence.row, sequence)",
    ),
    # Preemption, outputs, endings.
    Mutation("a preempted request keeps what it had computed", _CONTINUOUS, "        sequence.computed = 0\n", ""),
    Mutation(
        "a preempted request forgets the output under way",
        _CONTINUOUS,
        "        sequence.computed = 0\n",
        "        sequence.computed = sequence.placeholders = 0\n",
    ),
    Mutation(
        "a preempted request does not get the output under way",
        _CONTINUOUS,
        "if sequence.status in (Status.FINISHED, Status.ABORTED):",
        "if sequence.status is not Status.RUNNING:",
    ),
    Mutation(
        "an ended request gets the output under way",
        _CONTINUOUS,
        "if sequence.status in (Status.FINISHED, Status.ABORTED):",
        "if False:",
    ),
    Mutation(
        "outputs are not registered when they arrive",
        _CONTINUOUS,
        "self.memory.commit(sequence, sequence.computed - sequence.placeholders)",
        "pass",
    ),
    Mutation(
        "outputs under way are registered with those that arrive",
        _CONTINUOUS,
        "sequence.computed - sequence.placeholders)\n",
        "sequence.computed)\n",
    ),
    Mutation(
        "a sequence may grow beyond the longest",
        _CONTINUOUS,
        "            or sequence.num_tokens >= self.settings.max_model_len\n",
        "",
    ),
    Mutation(
        "blocks of requests that end together are freed in reverse",
        _CONTINUOUS,
        "            if self._is_complete(sequence):\n                self.memory.free(sequence)\n                ended.append(sequence)\n"
        "        for sequence in ended:\n",
        "            if self._is_complete(sequence):\n                ended.append(sequence)\n"
        "        for sequence in reversed(ended):\n            self.memory.free(sequence)\n",
    ),
    Mutation(
        "a request that ends holds its blocks until the next step is scheduled",
        _CONTINUOUS,
        "        emitting = []\n        for sequence, num_tokens in tokens.items():\n",
        "        for sequence in self.late:\n            self.memory.free(sequence)\n        self.late = []\n"
        "        emitting = []\n        for sequence, num_tokens in tokens.items():\n",
        also=(
            (
                "                self.memory.free(sequence)\n                ended",
                "                self.late.append(sequence)\n                ended",
            ),
            (
                '        self._unflushed = False\n        """Whether',
                '        self.late = []\n        self._unflushed = False\n        """Whether',
            ),
        ),
    ),
    Mutation(
        "an aborted request keeps its blocks",
        _CONTINUOUS,
        "        self.memory.free(sequence)\n        sequence.status = Status.ABORTED\n",
        "        sequence.status = Status.ABORTED\n",
    ),
    Mutation(
        "the engine does not call once more after an abort",
        _CONTINUOUS,
        "        sequence.status = Status.ABORTED\n        self._unflushed = True\n",
        "        sequence.status = Status.ABORTED\n",
    ),
    Mutation(
        "the engine does not call once more after an ending",
        _CONTINUOUS,
        "if sequence.status is Status.RUNNING]\n            self._unflushed = True\n",
        "if sequence.status is Status.RUNNING]\n",
    ),
    # The loop.
    Mutation("every output is awaited", _ENGINE, "depth = 2 if", "depth = 1 if"),
    Mutation("three steps are in flight", _ENGINE, "depth = 2 if", "depth = 3 if"),
    Mutation(
        "an empty last call is left in the pipeline until the next",
        _ENGINE,
        "if len(in_flight) < depth and (batch or scheduler.has_work):",
        "if len(in_flight) < depth:",
    ),
)
